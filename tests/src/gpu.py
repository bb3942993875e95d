"""A model with GPU memory: it takes `WEIGHTS_MIB` on the card when it starts and uses all of it at every request.

Every request writes the whole memory anew, on the card, and reads back first what the request before it wrote. A text
in the request is run as Python after that: a test's own words, with the driver at hand, as in `probe.py`.
"""

import ctypes
import mmap
import os
import time
import zlib

PART = 4 << 20
OUT_OF_MEMORY = 2

cuda = ctypes.CDLL("libcuda.so.1")


class CudaError(Exception):
    """An entry of the driver answered something else than success."""

    def __init__(self, entry, code):
        super().__init__(f"{entry} answered {code}")
        self.code = code


def call(entry, *arguments):
    """Calls an entry of the driver; addresses and sizes need their ctypes."""
    code = getattr(cuda, entry)(*arguments)
    if code != 0:
        raise CudaError(entry, code)


def attempt(entry, *arguments):
    """The code that an entry answers."""
    return getattr(cuda, entry)(*arguments)


def enter():
    """Makes the card's context current: handlers may run on any thread."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)


def allocate(size):
    address = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
    return address


def release(address):
    call("cuMemFree_v2", address)


def memory():
    """Free and total, as the driver says."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def write(address, word, size=PART):
    call("cuMemsetD32_v2", address, ctypes.c_uint(word), ctypes.c_size_t(size // 4))


def holds(address, word, size=PART):
    """True if the first, the middle, and the last bytes are this word."""
    seen = (ctypes.c_uint32 * 16)()
    for at in (0, size // 2, size - 64):
        call("cuMemcpyDtoH_v2", seen, ctypes.c_uint64(address.value + at), ctypes.c_size_t(64))
        if any(one != word for one in seen):
            return False
    return True


class Weights:
    """The model's memory on the card, and the marks that its last request left."""

    def __init__(self, model, size):
        self.seed = zlib.crc32(model.encode())
        # No part lies beside another, or it would be left to the kernel how many pieces a move is made of.
        self.parts, self.between = [], []
        for _ in range(size // PART):
            self.parts.append(allocate(PART))
            self.between.append(mmap.mmap(-1, PART, flags=mmap.MAP_PRIVATE))
        # Marks of each part. Two marks that differ: a request was cancelled while it wrote the second one.
        self.marks = [(0, 0) for _ in self.parts]
        self.turn = 0
        self.mark()

    def mark(self):
        for part, address in enumerate(self.parts):
            word = (self.seed + self.turn * 8191 + part) & 0xFFFFFFFF
            self.marks[part] = (self.marks[part][1], word)
            write(address, word)
            self.marks[part] = (word, word)

    def use(self):
        """Checks all marks, and writes those of the next request; true if all were right."""
        marked = zip(self.parts, self.marks, strict=True)
        whole = all(any(holds(address, word) for word in set(words)) for address, words in marked)
        self.turn += 1
        self.mark()
        return whole


weights = None


def setup(context):
    global weights
    enter()
    weights = Weights(context.model, int(os.environ["WEIGHTS_MIB"]) << 20)


def handle_request(request, context):
    enter()
    began = time.monotonic()
    whole = weights.use()
    code = request.body.json
    found = {}
    if isinstance(code, str):
        exec(compile(code, "request", "exec"), {**globals(), "tell": found.update, "context": context})
    elif code:
        time.sleep(code)
    return {"whole": whole, "turn": weights.turn, "began": began, "ended": time.monotonic(), "found": found}
