/* Uses a simulated card and gives everything back, under a leak checker: here and in a child that was forked. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int cuInit(unsigned);
int cuCtxCreate_v2(void **, unsigned, int);
int cuCtxDestroy_v2(void *);
int cuMemAlloc_v2(unsigned long long *, unsigned long);
int cuMemFree_v2(unsigned long long);
int cuMemAllocAsync(unsigned long long *, unsigned long, void *);
int cuMemFreeAsync(unsigned long long, void *);
int cuCtxSynchronize(void);

static int use(void) {
    void *context = NULL;
    unsigned long long plain = 0, ordered = 0;
    int bad = cuInit(0) || cuCtxCreate_v2(&context, 0, 0) || cuMemAlloc_v2(&plain, 4 << 20);
    bad = bad || cuMemAllocAsync(&ordered, 4 << 20, NULL) || cuMemFreeAsync(ordered, NULL) || cuCtxSynchronize();
    return bad || cuMemFree_v2(plain) || cuCtxDestroy_v2(context);
}

int main(int count, char **arguments) {
    (void)arguments;
    pid_t child = fork();
    if (child == 0) exit(use());
    int status = -1;
    if (waitpid(child, &status, 0) != child || status != 0) return 3;
    if (count > 1 && !malloc(77)) return 4; /* one leak, to see that the checker checks */
    return use();
}
