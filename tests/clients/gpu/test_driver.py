"""`cuda-bindings`, unmodified: every kind of memory of the driver API, its bytes, and what it takes from the device."""

import ctypes
import os

import pytest
from conftest import MIB
from cuda.bindings import driver

OUT_OF_MEMORY = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
# Not a multiple of anything that a driver rounds to, where it may round; of everything, where it may not.
ODD = 3 * MIB + 7
EVEN = 4 * MIB


def ok(answer):
    """Results of a call behind its status."""
    status, *values = answer
    assert status == driver.CUresult.CUDA_SUCCESS, status
    return values[0] if len(values) == 1 else tuple(values)


def pattern(size):
    return bytes(index * 7 % 251 for index in range(251)) * (size // 251 + 1)


@pytest.fixture(autouse=True)
def device():
    ok(driver.cuInit(0))
    device = ok(driver.cuDeviceGet(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(device))))
    before = free()
    yield device
    assert free() == before, "a test leaves nothing"
    ok(driver.cuDevicePrimaryCtxRelease(device))


@pytest.fixture
def stream():
    stream = ok(driver.cuStreamCreate(0))
    yield stream
    ok(driver.cuStreamDestroy(stream))


def free():
    return ok(driver.cuMemGetInfo())[0]


def holds_bytes(address, size):
    """Writes from the host, reads back, sets a part and reads again."""
    data = pattern(size)[:size]
    ok(driver.cuMemcpyHtoD(address, data, size))
    back = bytearray(size)
    ok(driver.cuMemcpyDtoH(back, address, size))
    assert back == data
    ok(driver.cuMemsetD8(int(address) + 1, 0xAB, size - 1))
    ok(driver.cuMemcpyDtoH(back, address, size))
    assert back[:2] == data[:1] + b"\xab" and back[-1] == 0xAB


def test_sizes_are_the_instance_s(device, total):
    assert ok(driver.cuDeviceTotalMem(device)) == total
    available, whole = ok(driver.cuMemGetInfo())
    assert whole == total
    assert 0 < available <= total


def test_plain(device):
    before = free()
    address = ok(driver.cuMemAlloc(ODD))
    assert ODD <= before - free() < ODD + 2 * MIB
    base, size = ok(driver.cuMemGetAddressRange(int(address) + 1))
    assert (int(base), size) == (int(address), ODD)
    holds_bytes(address, ODD)
    ok(driver.cuMemFree(address))
    assert free() == before


def test_pitch(device):
    before = free()
    address, pitch = ok(driver.cuMemAllocPitch(1000, 100, 4))
    assert pitch >= 1000
    assert before - free() >= pitch * 100
    holds_bytes(address, pitch * 100)
    ok(driver.cuMemFree(address))


def test_async(device, stream):
    before = free()
    address = ok(driver.cuMemAllocAsync(EVEN, stream))
    data, back = pattern(EVEN)[:EVEN], bytearray(EVEN)
    ok(driver.cuMemcpyHtoDAsync(address, data, EVEN, stream))
    ok(driver.cuMemcpyDtoHAsync(back, address, EVEN, stream))
    ok(driver.cuStreamSynchronize(stream))
    assert back == data
    assert before - free() >= EVEN
    ok(driver.cuMemFreeAsync(address, stream))
    ok(driver.cuStreamSynchronize(stream))
    ok(driver.cuMemPoolTrimTo(ok(driver.cuDeviceGetDefaultMemPool(device)), 0))
    assert free() == before


def test_pool(device, stream):
    properties = driver.CUmemPoolProps()
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = int(device)
    pool = ok(driver.cuMemPoolCreate(properties))
    address = ok(driver.cuMemAllocFromPoolAsync(EVEN, pool, stream))
    ok(driver.cuStreamSynchronize(stream))
    holds_bytes(address, EVEN)
    used = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
    assert int(ok(driver.cuMemPoolGetAttribute(pool, used))) == EVEN
    ok(driver.cuMemFreeAsync(address, stream))
    ok(driver.cuStreamSynchronize(stream))
    ok(driver.cuMemPoolDestroy(pool))


def test_virtual_memory(device):
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = int(device)
    minimum = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    size = 2 * ok(driver.cuMemGetAllocationGranularity(properties, minimum))
    before = free()
    address = ok(driver.cuMemAddressReserve(size, 0, 0, 0))
    assert free() == before, "addresses are no memory"
    handle = ok(driver.cuMemCreate(size, properties, 0))
    assert before - free() == size
    ok(driver.cuMemMap(address, size, 0, handle, 0))
    access = driver.CUmemAccessDesc()
    access.location = properties.location
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    ok(driver.cuMemSetAccess(address, size, [access], 1))
    holds_bytes(address, size)
    ok(driver.cuMemcpyHtoD(address, pattern(size)[:size], size))
    ok(driver.cuMemUnmap(address, size))
    ok(driver.cuMemMap(address, size, 0, handle, 0))
    ok(driver.cuMemSetAccess(address, size, [access], 1))
    back = bytearray(size)
    ok(driver.cuMemcpyDtoH(back, address, size))
    assert back == pattern(size)[:size], "what a handle holds survives its mapping"
    ok(driver.cuMemUnmap(address, size))
    ok(driver.cuMemRelease(handle))
    ok(driver.cuMemAddressFree(address, size))


def prefetch(address, size, device, stream):
    """To a device, or to the host when it is None; in the form that these bindings have."""
    if hasattr(driver, "cuMemPrefetchAsync_v2"):
        ok(driver.cuMemPrefetchAsync(address, size, -1 if device is None else device, stream))
        call = driver.cuMemPrefetchAsync_v2
    else:
        call = driver.cuMemPrefetchAsync
    kind = driver.CUmemLocationType
    location = driver.CUmemLocation()
    location.type = kind.CU_MEM_LOCATION_TYPE_HOST if device is None else kind.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = 0 if device is None else int(device)
    ok(call(address, size, location, 0, stream))


def test_managed(device, stream):
    before = free()
    attach = driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL
    address = ok(driver.cuMemAllocManaged(EVEN, attach.value))
    ctypes.memset(int(address), 0x5C, EVEN)  # the host uses it as its own
    back = bytearray(EVEN)
    ok(driver.cuMemcpyDtoH(back, address, EVEN))
    assert back == b"\x5c" * EVEN
    prefetch(address, EVEN, device, stream)
    ok(driver.cuStreamSynchronize(stream))
    assert before - free() >= EVEN
    holds_bytes(address, EVEN)
    data = ctypes.string_at(int(address), EVEN)
    prefetch(address, EVEN, None, stream)
    ok(driver.cuStreamSynchronize(stream))
    assert ctypes.string_at(int(address), EVEN) == data, "moving changes no byte"
    managed = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED
    assert ok(driver.cuPointerGetAttribute(managed, address))
    ok(driver.cuMemFree(address))


def array(kind, width, height=0, depth=0):
    if depth:
        shape = driver.CUDA_ARRAY3D_DESCRIPTOR()
        shape.Depth = depth
    else:
        shape = driver.CUDA_ARRAY_DESCRIPTOR()
    shape.Width, shape.Height = width, height
    shape.Format, shape.NumChannels = kind, 4
    return ok(driver.cuArray3DCreate(shape) if depth else driver.cuArrayCreate(shape))


def test_arrays(device):
    floats, element = driver.CUarray_format.CU_AD_FORMAT_FLOAT, 16
    before = free()

    line = array(floats, 4096)
    assert before - free() >= 4096 * element
    data, back = pattern(4096 * element)[: 4096 * element], bytearray(4096 * element)
    ok(driver.cuMemcpyHtoA(line, 0, data, len(data)))
    ok(driver.cuMemcpyAtoH(back, line, 0, len(data)))
    assert back == data
    ok(driver.cuArrayDestroy(line))

    plane = array(floats, 100, 50)
    size = 100 * 50 * element
    assert before - free() >= size
    data, back = pattern(size)[:size], bytearray(size)
    there = driver.CUDA_MEMCPY2D()
    there.srcMemoryType, there.srcHost, there.srcPitch = driver.CUmemorytype.CU_MEMORYTYPE_HOST, data, 100 * element
    there.dstMemoryType, there.dstArray = driver.CUmemorytype.CU_MEMORYTYPE_ARRAY, plane
    there.WidthInBytes, there.Height = 100 * element, 50
    ok(driver.cuMemcpy2D(there))
    again = driver.CUDA_MEMCPY2D()
    again.srcMemoryType, again.srcArray = driver.CUmemorytype.CU_MEMORYTYPE_ARRAY, plane
    again.dstMemoryType, again.dstHost, again.dstPitch = driver.CUmemorytype.CU_MEMORYTYPE_HOST, back, 100 * element
    again.WidthInBytes, again.Height = 100 * element, 50
    ok(driver.cuMemcpy2D(again))
    assert back == data
    ok(driver.cuArrayDestroy(plane))

    block = array(floats, 32, 16, 8)
    size = 32 * 16 * 8 * element
    assert before - free() >= size
    shape = ok(driver.cuArray3DGetDescriptor(block))
    assert (shape.Width, shape.Height, shape.Depth, shape.NumChannels) == (32, 16, 8, 4)
    ok(driver.cuArrayDestroy(block))


@pytest.mark.parametrize("kind", ["plain", "async", "managed", "virtual"])
def test_past_the_end_is_out_of_memory(device, stream, total, kind):
    """The API's own code, nothing taken, and all that is left can still be had."""
    before = free()
    beyond = (total // (2 * MIB) + 1) * 2 * MIB
    if kind == "plain":
        status, _ = driver.cuMemAlloc(beyond)
    elif kind == "async":
        status, _ = driver.cuMemAllocAsync(beyond, stream)
    elif kind == "managed":
        if "OMNI_GPU_LIMIT_BYTES" not in os.environ:
            pytest.skip("a card gives more managed memory than it has; the instance's limit counts it")
        status, _ = driver.cuMemAllocManaged(beyond, driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL.value)
    else:
        properties = driver.CUmemAllocationProp()
        properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        status, _ = driver.cuMemCreate(beyond, properties, 0)
    assert status == OUT_OF_MEMORY
    assert free() == before
    address = ok(driver.cuMemAlloc(before - before % (2 * MIB)))
    assert free() < 2 * MIB
    assert driver.cuMemAlloc(2 * MIB)[0] == OUT_OF_MEMORY
    ok(driver.cuMemFree(address))
