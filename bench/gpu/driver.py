"""The few calls of the CUDA driver API that the GPU test needs, by ctypes.

Used by the measuring process, by the clients that run under the shim, and by the models of the node scenarios: all of
them must work with any interpreter and nothing installed. Every call that fails raises `CudaError`.
"""

import ctypes
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p

SUCCESS = 0
OUT_OF_MEMORY = 2
MEM_ATTACH_GLOBAL = 1
ADVISE_SET_PREFERRED_LOCATION = 3
DEVICE_CPU = -1
ATTRIBUTE_CONCURRENT_MANAGED_ACCESS = 89

_SIGNATURES = {
    "cuInit": [c_uint],
    "cuDriverGetVersion": [POINTER(c_int)],
    "cuDeviceGet": [POINTER(c_int), c_int],
    "cuDeviceGetName": [c_char_p, c_int, c_int],
    "cuDeviceGetAttribute": [POINTER(c_int), c_int, c_int],
    "cuDevicePrimaryCtxRetain": [POINTER(c_void_p), c_int],
    "cuCtxSetCurrent": [c_void_p],
    "cuCtxSynchronize": [],
    "cuMemAlloc_v2": [POINTER(c_uint64), c_size_t],
    "cuMemAllocManaged": [POINTER(c_uint64), c_size_t, c_uint],
    "cuMemFree_v2": [c_uint64],
    "cuMemGetInfo_v2": [POINTER(c_size_t), POINTER(c_size_t)],
    "cuMemHostAlloc": [POINTER(c_void_p), c_size_t, c_uint],
    "cuMemFreeHost": [c_void_p],
    "cuMemAdvise": [c_uint64, c_size_t, c_int, c_int],
    "cuMemPrefetchAsync": [c_uint64, c_size_t, c_int, c_void_p],
    "cuMemsetD8_v2": [c_uint64, c_ubyte, c_size_t],
    "cuMemcpyDtoD_v2": [c_uint64, c_uint64, c_size_t],
    "cuMemcpyDtoH_v2": [c_void_p, c_uint64, c_size_t],
    "cuMemcpyHtoDAsync_v2": [c_uint64, c_void_p, c_size_t, c_void_p],
    "cuMemcpyDtoHAsync_v2": [c_void_p, c_uint64, c_size_t, c_void_p],
    "cuEventCreate": [POINTER(c_void_p), c_uint],
    "cuEventRecord": [c_void_p, c_void_p],
    "cuEventSynchronize": [c_void_p],
    "cuEventElapsedTime": [POINTER(c_float), c_void_p, c_void_p],
    "cuEventDestroy_v2": [c_void_p],
}


class CudaError(Exception):
    """A call of the driver API did not succeed."""

    def __init__(self, call: str, result: int) -> None:
        super().__init__(f"{call} answered {result}")
        self.call = call
        self.result = result


class Driver:
    """Device 0 with its primary context, current on this thread."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        for name, arguments in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.argtypes = arguments
            function.restype = c_int
        self.call("cuInit", 0)
        device = c_int()
        self.call("cuDeviceGet", byref(device), 0)
        self.device = device.value
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), self.device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: object) -> None:
        """Calls an entry and raises unless it succeeds."""
        result = getattr(self._library, name)(*arguments)
        if result != SUCCESS:
            raise CudaError(name, result)

    def name(self) -> str:
        """The product's name."""
        text = ctypes.create_string_buffer(100)
        self.call("cuDeviceGetName", text, len(text), self.device)
        return text.value.decode()

    def version(self) -> int:
        """The newest CUDA version that the driver knows: 13000 is 13.0."""
        version = c_int()
        self.call("cuDriverGetVersion", byref(version))
        return version.value

    def attribute(self, number: int) -> int:
        """A number about the device."""
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), number, self.device)
        return value.value

    def memory(self) -> tuple[int, int]:
        """Bytes free, and bytes in all."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def allocate(self, size: int) -> int:
        """Device memory, as a framework asks for it."""
        address = c_uint64()
        self.call("cuMemAlloc_v2", byref(address), size)
        return address.value

    def allocate_managed(self, size: int) -> int:
        """Managed memory that prefers the device."""
        address = c_uint64()
        self.call("cuMemAllocManaged", byref(address), size, MEM_ATTACH_GLOBAL)
        self.call("cuMemAdvise", address, size, ADVISE_SET_PREFERRED_LOCATION, self.device)
        return address.value

    def free(self, address: int) -> None:
        """Gives memory back."""
        self.call("cuMemFree_v2", address)

    def fill(self, address: int, byte: int, size: int) -> None:
        """Writes on the device, and waits."""
        self.call("cuMemsetD8_v2", address, byte, size)
        self.synchronize()

    def read(self, address: int, size: int) -> bytes:
        """Copies to the host."""
        text = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", ctypes.cast(text, c_void_p), address, size)
        return text.raw

    def prefetch(self, address: int, size: int, device: int) -> None:
        """Begins to move managed memory."""
        self.call("cuMemPrefetchAsync", address, size, device, None)

    def synchronize(self) -> None:
        """Waits for everything."""
        self.call("cuCtxSynchronize")
