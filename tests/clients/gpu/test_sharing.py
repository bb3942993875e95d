"""`cuda-bindings`, unmodified: graphs with memory of their own, and memory that another process uses."""

import ctypes
import os
import subprocess
import sys

import pytest
from conftest import MIB
from cuda.bindings import driver
from test_driver import free, ok, pattern

SIZE = 2 * MIB
CHILD = """
import ctypes
import sys
from cuda.bindings import driver
from conftest import MIB
from test_driver import ok, pattern

SIZE = 2 * MIB
ok(driver.cuInit(0))
device = ok(driver.cuDeviceGet(0))
ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(device))))
back = bytearray(SIZE)
if sys.argv[1] == "ipc":
    handle = driver.CUipcMemHandle()
    ctypes.memmove(handle.getPtr(), bytes.fromhex(sys.argv[2]), 64)
    address = ok(driver.cuIpcOpenMemHandle(handle, 1))
    assert int(ok(driver.cuIpcOpenMemHandle(handle, 1))) == int(address), "opened twice, there once"
    ok(driver.cuIpcCloseMemHandle(address))
else:
    kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    handle = ok(driver.cuMemImportFromShareableHandle(int(sys.argv[2]), kind))
    address = ok(driver.cuMemAddressReserve(SIZE, 0, 0, 0))
    ok(driver.cuMemMap(address, SIZE, 0, handle, 0))
    access = driver.CUmemAccessDesc()
    access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    ok(driver.cuMemSetAccess(address, SIZE, [access], 1))
ok(driver.cuMemcpyDtoH(back, address, SIZE))
assert back == pattern(SIZE)[:SIZE], "the other's bytes"
ok(driver.cuMemsetD8(address, 0, SIZE))
if sys.argv[1] == "ipc":
    ok(driver.cuIpcCloseMemHandle(address))
"""


@pytest.fixture(autouse=True)
def device():
    ok(driver.cuInit(0))
    device = ok(driver.cuDeviceGet(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(device))))
    before = free()
    yield device
    ok(driver.cuDeviceGraphMemTrim(device))
    assert free() == before, "a test leaves nothing"
    ok(driver.cuDevicePrimaryCtxRelease(device))


def other_process(*arguments, descriptors=()):
    command = [sys.executable, "-c", CHILD, *arguments]
    subprocess.run(command, check=True, timeout=60, pass_fds=descriptors)


def test_ipc_handles():
    address = ok(driver.cuMemAlloc(SIZE))
    ok(driver.cuMemcpyHtoD(address, pattern(SIZE)[:SIZE], SIZE))
    status, handle = driver.cuIpcGetMemHandle(address)
    if os.environ.get("OMNI_GPU_MODE") == "unified":
        # Managed memory has no such handles.
        assert status == driver.CUresult.CUDA_ERROR_INVALID_VALUE
    else:
        assert status == driver.CUresult.CUDA_SUCCESS
        other_process("ipc", ctypes.string_at(handle.getPtr(), 64).hex())
        back = bytearray(SIZE)
        ok(driver.cuMemcpyDtoH(back, address, SIZE))
        assert back == bytes(SIZE), "what the other wrote"
    ok(driver.cuMemFree(address))


def test_managed_memory_has_no_ipc_handle():
    address = ok(driver.cuMemAllocManaged(SIZE, driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL.value))
    assert driver.cuIpcGetMemHandle(address)[0] == driver.CUresult.CUDA_ERROR_INVALID_VALUE
    ok(driver.cuMemFree(address))


def test_shareable_handles(device):
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = int(device)
    kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    properties.requestedHandleTypes = kind
    handle = ok(driver.cuMemCreate(SIZE, properties, 0))
    assert ok(driver.cuMemGetAllocationPropertiesFromHandle(handle)).location.id == int(device)
    address = ok(driver.cuMemAddressReserve(SIZE, 0, 0, 0))
    ok(driver.cuMemMap(address, SIZE, 0, handle, 0))
    access = driver.CUmemAccessDesc()
    access.location, access.flags = properties.location, driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    assert driver.cuMemcpyHtoD(address, bytes(SIZE), SIZE)[0] == driver.CUresult.CUDA_ERROR_INVALID_VALUE, "no access"
    ok(driver.cuMemSetAccess(address, SIZE, [access], 1))
    ok(driver.cuMemcpyHtoD(address, pattern(SIZE)[:SIZE], SIZE))
    descriptor = ok(driver.cuMemExportToShareableHandle(handle, kind, 0))
    other_process("descriptor", str(descriptor), descriptors=[int(descriptor)])
    os.close(int(descriptor))
    assert int(ok(driver.cuMemRetainAllocationHandle(address))) == int(handle)
    ok(driver.cuMemRelease(handle))
    ok(driver.cuMemRelease(handle))
    back = bytearray(SIZE)
    ok(driver.cuMemcpyDtoH(back, address, SIZE))
    assert back == bytes(SIZE), "what the other wrote; mapped memory outlives its handles"
    assert driver.cuMemUnmap(address, SIZE // 2)[0] == driver.CUresult.CUDA_ERROR_INVALID_VALUE
    ok(driver.cuMemUnmap(address, SIZE))
    ok(driver.cuMemAddressFree(address, SIZE))


def test_external_memory():
    file = os.memfd_create("not ours")
    os.truncate(file, SIZE)
    kept = os.dup(file)
    description = driver.CUDA_EXTERNAL_MEMORY_HANDLE_DESC()
    description.type = driver.CUexternalMemoryHandleType.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD
    description.handle.fd, description.size = file, SIZE
    before = free()
    memory = ok(driver.cuImportExternalMemory(description))
    assert before - free() == SIZE
    buffer = driver.CUDA_EXTERNAL_MEMORY_BUFFER_DESC()
    buffer.size = SIZE
    address = ok(driver.cuExternalMemoryGetMappedBuffer(memory, buffer))
    ok(driver.cuMemsetD8(address, 0x77, SIZE))
    assert os.pread(kept, SIZE, 0) == b"\x77" * SIZE
    os.close(kept)
    ok(driver.cuMemFree(address))
    ok(driver.cuDestroyExternalMemory(memory))


def graph_memory(device, attribute):
    kind = driver.CUgraphMem_attribute
    kind = {"used": kind.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, "kept": kind.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT}
    return int(ok(driver.cuDeviceGetGraphMemAttribute(device, kind[attribute])))


def test_memory_nodes(device):
    stream, graph = ok(driver.cuStreamCreate(0)), ok(driver.cuGraphCreate(0))
    wanted = driver.CUDA_MEM_ALLOC_NODE_PARAMS()
    wanted.poolProps.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.poolProps.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.poolProps.location.id = int(device)
    wanted.bytesize = SIZE
    before = free()
    node = ok(driver.cuGraphAddMemAllocNode(graph, None, 0, wanted))
    address = int(wanted.dptr)
    assert address and free() == before, "a node has no memory yet"
    fill = driver.CUDA_MEMSET_NODE_PARAMS()
    fill.dst, fill.value, fill.elementSize, fill.width, fill.height = address, 0x5A, 1, SIZE, 1
    ok(driver.cuGraphAddMemsetNode(graph, [node], 1, fill, ok(driver.cuCtxGetCurrent())))
    launchable = ok(driver.cuGraphInstantiate(graph, 0))
    for _ in range(2):
        ok(driver.cuGraphLaunch(launchable, stream))
        ok(driver.cuStreamSynchronize(stream))
        assert (graph_memory(device, "used"), graph_memory(device, "kept"), before - free()) == (SIZE, SIZE, SIZE)
        assert driver.cuGraphLaunch(launchable, stream)[0] == driver.CUresult.CUDA_ERROR_INVALID_VALUE, "still in use"
        back = bytearray(SIZE)
        ok(driver.cuMemcpyDtoH(back, address, SIZE))
        assert back == b"\x5a" * SIZE
        ok(driver.cuMemFreeAsync(address, stream))
        ok(driver.cuStreamSynchronize(stream))
        assert (graph_memory(device, "used"), graph_memory(device, "kept")) == (0, SIZE)
    ok(driver.cuDeviceGraphMemTrim(device))
    assert graph_memory(device, "kept") == 0 and free() == before
    ok(driver.cuGraphExecDestroy(launchable))
    ok(driver.cuGraphDestroy(graph))
    ok(driver.cuStreamDestroy(stream))


def test_a_captured_stream_becomes_a_graph(device):
    stream = ok(driver.cuStreamCreate(0))
    before = free()
    ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    address = ok(driver.cuMemAllocAsync(SIZE, stream))
    ok(driver.cuMemFreeAsync(address, stream))
    graph = ok(driver.cuStreamEndCapture(stream))
    assert free() == before
    kinds = [int(ok(driver.cuGraphNodeGetType(node))) for node in ok(driver.cuGraphGetNodes(graph, 8))[0][:2]]
    assert kinds == [10, 11], "an allocation and its end"
    launchable = ok(driver.cuGraphInstantiate(graph, 0))
    ok(driver.cuGraphLaunch(launchable, stream))
    ok(driver.cuStreamSynchronize(stream))
    assert (graph_memory(device, "used"), graph_memory(device, "kept"), before - free()) == (0, SIZE, SIZE)
    ok(driver.cuGraphExecDestroy(launchable))
    ok(driver.cuGraphDestroy(graph))
    ok(driver.cuStreamDestroy(stream))


def test_copies_and_functions_in_a_graph():
    source, target = ok(driver.cuMemAlloc(4096)), ok(driver.cuMemAlloc(4096))
    ok(driver.cuMemcpyHtoD(source, pattern(4096)[:4096], 4096))
    copy = driver.CUDA_MEMCPY3D()
    copy.srcMemoryType = copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.srcDevice, copy.dstDevice = source, target
    copy.WidthInBytes, copy.Height, copy.Depth = 4096, 1, 1
    stream, graph = ok(driver.cuStreamCreate(0)), ok(driver.cuGraphCreate(0))
    node = ok(driver.cuGraphAddMemcpyNode(graph, None, 0, copy, ok(driver.cuCtxGetCurrent())))
    called = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: called.append(True))
    host = driver.CUDA_HOST_NODE_PARAMS()
    host.fn, host.userData = driver.CUhostFn(ctypes.cast(function, ctypes.c_void_p).value), 0
    ok(driver.cuGraphAddHostNode(graph, [node], 1, host))
    launchable = ok(driver.cuGraphInstantiate(graph, 0))
    ok(driver.cuGraphLaunch(launchable, stream))
    ok(driver.cuStreamSynchronize(stream))
    back = bytearray(4096)
    ok(driver.cuMemcpyDtoH(back, target, 4096))
    assert back == pattern(4096)[:4096] and called == [True]
    ok(driver.cuGraphExecDestroy(launchable))
    ok(driver.cuGraphDestroy(graph))
    ok(driver.cuStreamDestroy(stream))
    for address in [source, target]:
        ok(driver.cuMemFree(address))
