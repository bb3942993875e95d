"""A program in Python that uses the driver and does what programs do around it; surroundings.rs starts it."""

import ctypes
import multiprocessing
import os
import resource
import subprocess
import sys
import threading

MIB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")


def say(what):
    print("client:", what, flush=True)


def begin():
    context = ctypes.c_uint64()
    assert cuda.cuInit(0) == 0
    assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0


def take(bytes):
    address = ctypes.c_uint64()
    return cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(bytes)), address


def free(address):
    return cuda.cuMemFree_v2(address)


def child(sort):
    """Takes 6 of 10 MiB, asks for 5 more, and leaves it to its end to free."""
    begin()
    say(f"{sort}: {take(6 * MIB)[0]} {take(5 * MIB)[0]}")


def children():
    for sort in ["fork", "spawn", "forkserver"]:
        process = multiprocessing.get_context(sort).Process(target=child, args=(sort,))
        process.start()
        process.join()
        assert process.exitcode == 0, process.exitcode
    begin()
    result, address = take(10 * MIB)
    more = take(1)[0]
    free(address)
    say(f"parent: {result} {more}")
    sys.stdin.readline()


def programs():
    begin()
    result, address = take(6 * MIB)
    assert result == 0
    _, spawned = os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ), 0)
    run = subprocess.run(["true"], close_fds=False, check=False).returncode
    say(f"system {os.system('true')}, spawned {spawned}, run {run}")
    result = free(address)
    say(f"6 MiB freed: {result}")
    sys.stdin.readline()


def descriptors():
    begin()
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    opened = []
    try:
        while True:
            opened.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    result, address = take(MIB)
    freed = free(address)
    for descriptor in opened:
        os.close(descriptor)
    say(f"taken: {result}, freed: {freed}")
    sys.stdin.readline()


def user():
    begin()
    if os.getuid() == 0:
        os.setuid(65534)
    result, address = take(MIB)
    freed = free(address)
    say(f"taken: {result}, freed: {freed}")
    sys.stdin.readline()


def reset():
    """Allocates in the primary context in one thread and resets it in another: any answer of the driver is right."""
    context = ctypes.c_uint64()
    assert cuda.cuInit(0) == 0
    ends = threading.Event()

    def allocate():
        while not ends.is_set():
            cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
            cuda.cuCtxSetCurrent(context)
            result, address = take(5000)
            if result == 0:
                free(address)
            cuda.cuDevicePrimaryCtxRelease_v2(0)

    threads = [threading.Thread(target=allocate) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        cuda.cuDevicePrimaryCtxReset_v2(0)
    ends.set()
    for thread in threads:
        thread.join()
    say("lived")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
