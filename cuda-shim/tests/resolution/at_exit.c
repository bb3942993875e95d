/* Calls the driver in a handler of exit, when the thread's own variables are gone. */
#include <stdio.h>
#include <stdlib.h>

int cuInit(unsigned);
int cuCtxCreate_v2(void **, unsigned, int);
int cuMemAlloc_v2(unsigned long long *, unsigned long);
int cuMemFree_v2(unsigned long long);
int cuMemGetInfo_v2(size_t *, size_t *);

static unsigned long long address;

static void late(void) {
    unsigned long long other = 0;
    size_t free = 0, total = 0;
    printf("%d", cuMemFree_v2(address));
    printf(" %d", cuMemAlloc_v2(&other, 4 << 20));
    printf(" %d\n", cuMemGetInfo_v2(&free, &total));
    fflush(stdout);
}

int main(void) {
    void *context = NULL;
    if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0) || cuMemAlloc_v2(&address, 4 << 20)) return 3;
    return atexit(late);
}
