/* Asks NVML for a card's memory in both forms, before and after a runtime has allocated 256 MiB. */
#include <dlfcn.h>
#include <stdio.h>

struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };

static void *find(const char *library, const char *name) { return dlsym(dlopen(library, RTLD_NOW), name); }

static void say(void *device) {
    struct memory memory = {0};
    struct memory_v2 newer = {.version = sizeof newer | 2 << 24};
    int (*info)(void *, void *) = (int (*)(void *, void *))find("libnvidia-ml.so.1", "nvmlDeviceGetMemoryInfo");
    int (*info_v2)(void *, void *) = (int (*)(void *, void *))find("libnvidia-ml.so.1", "nvmlDeviceGetMemoryInfo_v2");
    int rc = info(device, &memory), rc_v2 = info_v2(device, &newer);
    printf("%d %llu %llu %llu, ", rc, memory.total >> 20, memory.free >> 20, memory.used >> 20);
    printf("%d %llu %llu %llu\n", rc_v2, newer.total >> 20, newer.free >> 20, newer.used >> 20);
    printf("without arguments: %s\n", info(device, NULL) && info_v2(device, NULL) ? "errors" : "no error");
}

int main(int count, char **arguments) {
    void *device = NULL, *address = NULL;
    if (count != 2) return 2;
    ((int (*)(void))find("libnvidia-ml.so.1", "nvmlInit_v2"))();
    ((int (*)(unsigned, void **))find("libnvidia-ml.so.1", "nvmlDeviceGetHandleByIndex_v2"))(0, &device);
    say(device);
    printf("%d\n", ((int (*)(void **, size_t))find(arguments[1], "cudaMalloc"))(&address, 256 << 20));
    say(device);
    return 0;
}
