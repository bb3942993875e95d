/* Asks for functions in one way, named by its first argument, and prints what it got. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int (*get_v1)(const char *, void **, int, uint64_t);
typedef int (*get_v2)(const char *, void **, int, uint64_t, int *);
typedef int (*no_arguments)(void);

static const char *object_of(void *address) {
    Dl_info info;
    if (!address) return "nothing";
    if (!dladdr(address, &info)) return "unknown";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}

static const char *symbol_of(void *address) {
    Dl_info info;
    return address && dladdr(address, &info) && info.dli_sname ? info.dli_sname : "-";
}

static void say(const char *what, void *address) {
    const char *error = dlerror();
    printf("%s: %s in %s, %s\n", what, symbol_of(address), object_of(address), error ? "an error" : "no error");
}

static void *opened(const char *path, int flags) {
    void *handle = dlopen(path, flags);
    if (!handle) {
        printf("dlopen: %s\n", dlerror());
        exit(1);
    }
    return handle;
}

/* lookup NAME...: by handle, by any, by version, each */
static int lookup(int count, char **names) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    dlerror();
    for (int i = 0; i < count; i++) {
        printf("%s\n", names[i]);
        if (driver) say("  handle", dlsym(driver, names[i]));
        if (driver) say("  version", dlvsym(driver, names[i], "ANY"));
        say("  default", dlsym(RTLD_DEFAULT, names[i]));
        say("  next", dlsym(RTLD_NEXT, names[i]));
    }
    return 0;
}

/* proc NAME:VERSION:FLAGS...: by both forms of cuGetProcAddress */
static int proc(int count, char **requests) {
    void *driver = opened("libcuda.so.1", RTLD_LAZY);
    get_v2 get = (get_v2)dlsym(driver, "cuGetProcAddress_v2");
    get_v1 get_old = (get_v1)dlsym(driver, "cuGetProcAddress");
    for (int i = 0; i < count; i++) {
        char name[128];
        int version, flags;
        if (sscanf(requests[i], "%127[^:]:%d:%d", name, &version, &flags) != 3) return 2;
        void *address = NULL, *old = NULL;
        int status = -1, rc = get(name, &address, version, flags, &status);
        int old_rc = get_old(name, &old, version, flags);
        printf("%s %d %d: %d %d %s in %s\n", name, version, flags, rc, status, symbol_of(address), object_of(address));
        if (old_rc != rc || old != address) printf("  the old form: %d %s\n", old_rc, symbol_of(old));
    }
    return 0;
}

static int null(void) {
    void *driver = opened("libcuda.so.1", RTLD_LAZY), *address = NULL;
    get_v2 get = (get_v2)dlsym(driver, "cuGetProcAddress_v2");
    get_v1 get_old = (get_v1)dlsym(driver, "cuGetProcAddress");
    printf("%d", get(NULL, &address, 12000, 0, NULL));
    printf(" %d", get("cuMemAlloc", NULL, 12000, 0, NULL));
    printf(" %d", get(NULL, NULL, -1, ~0ull, NULL));
    printf(" %d", get_old(NULL, &address, 12000, 0));
    printf(" %d", get_old("cuMemAlloc", NULL, 12000, 0));
    printf(" %d", get("cuMemAlloc", &address, 12000, 0, NULL));
    printf(" %s\n", object_of(address));
    return 0;
}

/* runtime PATH [deepbind]: one call of a runtime, which resolves the whole driver first */
static int runtime(const char *path, int flags) {
    void *library = opened(path, RTLD_NOW | flags);
    int (*release)(void *) = (int (*)(void *))dlsym(library, "cudaFree");
    if (!release) return 2;
    release(NULL);
    return 0;
}

/* namespace: the driver in a namespace of its own, where nothing is preloaded */
static int in_namespace(void) {
    void *driver = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
    if (!driver) {
        printf("dlmopen: %s\n", dlerror());
        return 1;
    }
    get_v2 get = (get_v2)dlsym(driver, "cuGetProcAddress_v2");
    void *address = NULL, *here = dlsym(opened("libcuda.so.1", RTLD_NOW), "cuGetProcAddress_v2");
    get("cuMemAlloc", &address, 12000, 0, NULL);
    printf("%s in %s, %s\n", symbol_of(address), object_of(address), here == (void *)get ? "one copy" : "two copies");
    return 0;
}

/* next LIBRARY: which `marker` a library finds after itself */
static int next(const char *path) {
    void *library = opened(path, RTLD_NOW);
    const char *(*after)(void) = (const char *(*)(void))dlsym(library, "marker_after_me");
    printf("%s\n", after());
    return 0;
}

/* use LIBRARY...: each is linked to some runtime */
static int use(int count, char **libraries) {
    for (int i = 0; i < count; i++) ((void (*)(void))dlsym(opened(libraries[i], RTLD_NOW), "use"))();
    return 0;
}

int main(int count, char **arguments) {
    const char *how = count > 1 ? arguments[1] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(how, "lookup")) return lookup(count - 2, arguments + 2);
    if (!strcmp(how, "proc")) return proc(count - 2, arguments + 2);
    if (!strcmp(how, "null")) return null();
    if (!strcmp(how, "runtime")) return runtime(arguments[2], count > 3 ? RTLD_DEEPBIND : 0);
    if (!strcmp(how, "namespace")) return in_namespace();
    if (!strcmp(how, "next")) return next(arguments[2]);
    if (!strcmp(how, "use")) return use(count - 2, arguments + 2);
    if (!strcmp(how, "forked")) {
        opened("libcuda.so.1", RTLD_NOW);
        pid_t child = fork();
        if (child == 0) return runtime(arguments[2], 0);
        int status = -1;
        return waitpid(child, &status, 0) == child ? status : 2;
    }
    return 2;
}
