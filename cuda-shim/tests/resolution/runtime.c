/* Stands in for a CUDA runtime that never calls the driver: it has escaped. Built with NAME, and the card has 80 GiB. */
#include <stdlib.h>
#include <string.h>

int cudaMalloc(void **out, size_t bytes) {
    (void)bytes;
    *out = malloc(16);
    return 0;
}

int cudaFree(void *address) {
    free(address);
    return 0;
}

int cudaMemGetInfo(size_t *free, size_t *total) {
    *free = *total = (size_t)80 << 30;
    return 0;
}

int cudaGetDeviceProperties(char *properties, int device) {
    size_t total = (size_t)80 << 30;
    (void)device;
    strcpy(properties, NAME);
    memcpy(properties + 288, &total, sizeof total);
    return 0;
}
