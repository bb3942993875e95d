/* A library with a `marker` of its own that asks for the one after it. Built with WHO, and with BY_VERSION or without. */
#define _GNU_SOURCE
#include <dlfcn.h>

const char *marker(void) { return WHO; }

const char *marker_after_me(void) {
#ifdef BY_VERSION
    const char *(*found)(void) = (const char *(*)(void))dlvsym(RTLD_NEXT, "marker", "ANY");
#else
    const char *(*found)(void) = (const char *(*)(void))dlsym(RTLD_NEXT, "marker");
#endif
    return found ? found() : "nothing";
}
