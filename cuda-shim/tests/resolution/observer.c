/* Preloaded before the shim: writes down what a runtime asks of cuGetProcAddress_v2 and what it gets, into $OBSERVED.
   One line each: name, version, flags, result, status, symbol of the answer, library of the answer. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*get_v2)(const char *, void **, int, uint64_t, int *);
typedef void *(*lookup)(void *, const char *);

static get_v2 behind;

static int observed(const char *name, void **function, int version, uint64_t flags, int *status) {
    int answer = behind(name, function, version, flags, status);
    Dl_info info = {0};
    if (answer == 0 && *function) dladdr(*function, &info);
    const char *library = info.dli_fname ? strrchr(info.dli_fname, '/') + 1 : "-";
    FILE *file = fopen(getenv("OBSERVED"), "a");
    fprintf(file, "%s %d %d %d %d %s %s\n", *name ? name : "-", version, (int)flags, answer, status ? *status : -1,
            info.dli_sname ? info.dli_sname : "-", library);
    fclose(file);
    /* What it gets by asking for this very function, it uses from then on. */
    if (answer == 0 && !strcmp(name, "cuGetProcAddress") && version >= 12000) {
        behind = (get_v2)*function;
        *function = (void *)observed;
    }
    return answer;
}

void *dlsym(void *handle, const char *name) {
    static lookup after;
    if (!after) after = (lookup)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    void *found = after(handle, name);
    if (found && !strcmp(name, "cuGetProcAddress_v2")) {
        behind = (get_v2)found;
        return (void *)observed;
    }
    return found;
}
