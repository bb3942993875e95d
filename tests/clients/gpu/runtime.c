/* A program written against cudaMalloc, linked with libcudart_double.so (a double of the CUDA runtime, not libcudart).
 *
 * Compiled and run by tests/gpu_clients.rs, which says in OMNI_TEST_TOTAL how many bytes of memory it must see. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OUT_OF_MEMORY = 2, INVALID_VALUE = 1, TO_DEVICE = 1, TO_HOST = 2, DEFAULT = 4, TOTAL_AT = 288 };

extern int cudaGetDeviceCount(int *), cudaGetDevice(int *), cudaSetDevice(int), cudaDeviceSynchronize(void);
extern int cudaGetDeviceProperties(void *, int), cudaGetDeviceProperties_v2(void *, int);
extern int cudaMalloc(void **, size_t), cudaMallocManaged(void **, size_t, unsigned), cudaFree(void *);
extern int cudaMallocPitch(void **, size_t *, size_t, size_t), cudaMallocHost(void **, size_t), cudaFreeHost(void *);
extern int cudaMallocAsync(void **, size_t, void *), cudaFreeAsync(void *, void *);
extern int cudaMallocAsync_ptsz(void **, size_t, void *), cudaFreeAsync_ptsz(void *, void *);
extern int cudaMemcpy(void *, const void *, size_t, int), cudaMemcpyAsync(void *, const void *, size_t, int, void *);
extern int cudaMemset(void *, int, size_t), cudaMemGetInfo(size_t *, size_t *);
extern int cudaStreamCreate(void **), cudaStreamSynchronize(void *), cudaStreamDestroy(void *);
extern int cudaGetLastError(void), cudaPeekAtLastError(void);
extern const char *cudaGetErrorName(int), *cudaGetErrorString(int);

#define CHECK(claim) ((claim) ? (void)0 : (fprintf(stderr, "line %d: %s\n", __LINE__, #claim), exit(1)))
#define OK(call) CHECK((call) == 0)

static size_t available(void) {
    size_t free_bytes, total;
    OK(cudaMemGetInfo(&free_bytes, &total));
    return free_bytes;
}

/* The device keeps what it was given, and knows it again. */
static void keeps(void *there, size_t size, void *stream) {
    unsigned char *data = malloc(size), *back = calloc(1, size);
    for (size_t at = 0; at < size; at++) data[at] = (unsigned char)(at * 31);
    OK(cudaMemcpyAsync(there, data, size, DEFAULT, stream));
    OK(cudaMemcpyAsync(back, there, size, DEFAULT, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(memcmp(data, back, size) == 0);
    OK(cudaMemset(there, 0x1a5, size));
    OK(cudaMemcpy(back, there, size, TO_HOST));
    CHECK(back[0] == 0xa5 && back[size - 1] == 0xa5);
    free(data);
    free(back);
}

int main(void) {
    const size_t total = strtoull(getenv("OMNI_TEST_TOTAL"), NULL, 10), size = 4 << 20;
    int number = -1;
    OK(cudaGetDeviceCount(&number));
    CHECK(number == 1);
    OK(cudaSetDevice(0));
    OK(cudaGetDevice(&number));
    CHECK(number == 0);

    char properties[1032];
    OK(cudaGetDeviceProperties(properties, 0));
    CHECK(memcmp(properties + TOTAL_AT, &total, sizeof total) == 0);
    OK(cudaGetDeviceProperties_v2(properties, 0));
    CHECK(memcmp(properties + TOTAL_AT, &total, sizeof total) == 0);
    size_t whole;
    OK(cudaMemGetInfo(NULL, &whole));
    CHECK(whole == total);

    void *there, *stream;
    OK(cudaStreamCreate(&stream));
    const size_t before = available();
    CHECK(before <= total);
    OK(cudaMalloc(&there, size));
    CHECK(before - available() == size);
    keeps(there, size, stream);
    OK(cudaFree(there));
    CHECK(available() == before);

    size_t pitch;
    OK(cudaMallocPitch(&there, &pitch, 1000, 10));
    CHECK(pitch >= 1000 && before - available() >= pitch * 10);
    keeps(there, pitch * 10, stream);
    OK(cudaFree(there));

    OK(cudaMallocManaged(&there, size, 1));
    memset(there, 7, size);
    keeps(there, size, stream);
    OK(cudaFree(there));

    OK(cudaMallocAsync(&there, size, stream));
    keeps(there, size, stream);
    CHECK(before - available() >= size);
    OK(cudaFreeAsync(there, stream));
    OK(cudaMallocAsync_ptsz(&there, size, NULL));
    OK(cudaFreeAsync_ptsz(there, NULL));

    OK(cudaMallocHost(&there, size));
    keeps(there, size, stream);
    OK(cudaFreeHost(there));
    OK(cudaStreamSynchronize(stream));

    OK(cudaMalloc(&there, 0));
    CHECK(there == NULL);
    OK(cudaFree(NULL));
    CHECK(cudaMalloc(NULL, size) == INVALID_VALUE && cudaGetLastError() == INVALID_VALUE);
    CHECK(cudaMalloc(&there, total + 1) == OUT_OF_MEMORY);
    CHECK(cudaPeekAtLastError() == OUT_OF_MEMORY && cudaGetLastError() == OUT_OF_MEMORY && cudaGetLastError() == 0);
    CHECK(strcmp(cudaGetErrorName(OUT_OF_MEMORY), "cudaErrorMemoryAllocation") == 0);
    CHECK(strcmp(cudaGetErrorString(OUT_OF_MEMORY), "out of memory") == 0);
    OK(cudaStreamDestroy(stream));
    OK(cudaDeviceSynchronize());
    return 0;
}
