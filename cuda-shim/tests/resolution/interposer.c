/* Preloaded before the shim, and linked to no runtime: passes allocations on to the next library, and tells how many. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

static int runtimes, drivers;

int cudaMalloc(void **out, unsigned long bytes) {
    int (*next)(void **, unsigned long) = (int (*)(void **, unsigned long))dlsym(RTLD_NEXT, "cudaMalloc");
    runtimes++;
    return next ? next(out, bytes) : 99;
}

int cuMemAlloc_v2(unsigned long long *out, unsigned long bytes) {
    int (*next)(void *, unsigned long) = (int (*)(void *, unsigned long))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    drivers++;
    return next ? next(out, bytes) : 99;
}

__attribute__((destructor)) static void told(void) { printf("seen: %d %d\n", runtimes, drivers); }
