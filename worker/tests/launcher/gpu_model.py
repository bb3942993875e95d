"""The beginning of a model that opens the CUDA driver by itself: what the tests' models have in common."""

import ctypes
import json
import os
import subprocess
import sys

size_t = ctypes.c_size_t
END = "# the test's own" + " part"


def tell(**facts):
    print(json.dumps(facts), flush=True)


def say(fact):
    print(json.dumps(fact), flush=True)


def child(python, *without):
    """Output of a separate program, started without these variables; the error's name when it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in without}
    with open(__file__) as own:
        source = own.read().split(END, 1)[0] + "\n" + python
    command = [sys.executable, "-c", source]
    run = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    if run.returncode == 0:
        return json.loads(run.stdout)
    print(run.stderr, flush=True)
    return run.stderr.strip().splitlines()[-1].split(":")[0]


def prepare(cuda):
    """The driver with a context on its first device."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    for result in (
        cuda.cuInit(0),
        cuda.cuDeviceGet(ctypes.byref(device), 0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        cuda.cuCtxSetCurrent(context),
    ):
        assert result == 0, result
    return device


def allocate(cuda, size):
    pointer = ctypes.c_ulonglong()
    return cuda.cuMemAlloc_v2(ctypes.byref(pointer), size_t(size)), pointer


def use(cuda, missing=None):
    """Everything about a limit, as one value."""
    if missing:
        opened = ctypes.CDLL(missing, mode=os.RTLD_NOW | os.RTLD_GLOBAL)
        cuda = ctypes.CDLL(None)
        assert opened
    init, count = cuda.cuInit(0), ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    device, total, free = prepare(cuda), size_t(), size_t()
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    facts = {"init": init, "devices": count.value, "total": total.value}
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    facts["info"] = [free.value, total.value]
    facts["half"], pointer = allocate(cuda, total.value // 2)
    facts["past"], _ = allocate(cuda, total.value // 2 + 1)
    cuda.cuMemFree_v2(pointer)
    facts["again"], _ = allocate(cuda, total.value)
    say(facts)
