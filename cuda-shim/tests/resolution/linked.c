/* A library that is linked to a runtime and uses it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cudaMalloc(void **out, size_t bytes);
int cudaFree(void *address);
int cudaMemGetInfo(size_t *free, size_t *total);
int cudaGetDeviceProperties(char *properties, int device);

static void say(const char *what) {
    char properties[4096];
    size_t free = 0, total = 0, size;
    cudaMemGetInfo(&free, &total);
    cudaGetDeviceProperties(properties, 0);
    memcpy(&size, properties + 288, sizeof size);
    printf("%s: %zu of %zu MiB free, the card of %s has %zu\n", what, free >> 20, total >> 20, properties, size >> 20);
}

void use(void) {
    void *first = NULL, *second = NULL;
    say("at first");
    printf("%d", cudaMalloc(&first, (size_t)768 << 20));
    printf(" %d", cudaMalloc(&second, (size_t)512 << 20));
    printf(" %s\n", second ? "an address" : "nothing");
    say("with the first");
    printf("%d\n", cudaFree(first));
    say("after all");
}
