//! Results of calls: the API's numbers and their names.

/// A `CUresult` that is not success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Error(pub(crate) u32);

/// Result of a call.
pub(crate) type Answer = Result<(), Error>;

impl Error {
    pub(crate) const INVALID_VALUE: Self = Self(1);
    pub(crate) const OUT_OF_MEMORY: Self = Self(2);
    pub(crate) const NOT_INITIALIZED: Self = Self(3);
    pub(crate) const NO_DEVICE: Self = Self(100);
    pub(crate) const INVALID_DEVICE: Self = Self(101);
    pub(crate) const INVALID_CONTEXT: Self = Self(201);
    pub(crate) const INVALID_HANDLE: Self = Self(400);
    pub(crate) const NOT_FOUND: Self = Self(500);
    pub(crate) const NOT_READY: Self = Self(600);
    pub(crate) const NOT_SUPPORTED: Self = Self(801);
    pub(crate) const UNKNOWN: Self = Self(999);
    pub(crate) const CONTEXT_IS_DESTROYED: Self = Self(709);
    pub(crate) const UNSUPPORTED_LIMIT: Self = Self(215);
    pub(crate) const PEER_ACCESS_UNSUPPORTED: Self = Self(217);
    pub(crate) const PEER_ACCESS_ALREADY_ENABLED: Self = Self(704);
    pub(crate) const PEER_ACCESS_NOT_ENABLED: Self = Self(705);
    pub(crate) const HOST_MEMORY_ALREADY_REGISTERED: Self = Self(712);
    pub(crate) const HOST_MEMORY_NOT_REGISTERED: Self = Self(713);
    pub(crate) const STREAM_CAPTURE_UNSUPPORTED: Self = Self(900);
    pub(crate) const STREAM_CAPTURE_INVALIDATED: Self = Self(901);
    pub(crate) const STREAM_CAPTURE_WRONG_THREAD: Self = Self(908);
    pub(crate) const STREAM_CAPTURE_IMPLICIT: Self = Self(906);
    pub(crate) const ILLEGAL_STATE: Self = Self(401);
    pub(crate) const FILE_NOT_FOUND: Self = Self(301);
    pub(crate) const OPERATING_SYSTEM: Self = Self(304);
}

/// Every code that the API documents: its name, and what it says to people, in our words. Both end with a NUL.
const TEXTS: &[(u32, &str, &str)] = &[
    (0, "CUDA_SUCCESS\0", "no error\0"),
    (1, "CUDA_ERROR_INVALID_VALUE\0", "an argument is out of range or NULL\0"),
    (2, "CUDA_ERROR_OUT_OF_MEMORY\0", "no memory is left on the device\0"),
    (3, "CUDA_ERROR_NOT_INITIALIZED\0", "cuInit was not called\0"),
    (4, "CUDA_ERROR_DEINITIALIZED\0", "the driver is shutting down\0"),
    (5, "CUDA_ERROR_PROFILER_DISABLED\0", "the profiler is not on\0"),
    (6, "CUDA_ERROR_PROFILER_NOT_INITIALIZED\0", "the profiler was not set up\0"),
    (7, "CUDA_ERROR_PROFILER_ALREADY_STARTED\0", "the profiler runs already\0"),
    (8, "CUDA_ERROR_PROFILER_ALREADY_STOPPED\0", "the profiler stands already\0"),
    (34, "CUDA_ERROR_STUB_LIBRARY\0", "this library only stands for the driver\0"),
    (36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER\0", "the call needs a newer driver\0"),
    (46, "CUDA_ERROR_DEVICE_UNAVAILABLE\0", "the device is taken or not ready\0"),
    (47, "CUDA_ERROR_MULTICAST_RESOURCE_FULL\0", "no room for more multicast objects\0"),
    (100, "CUDA_ERROR_NO_DEVICE\0", "there is no device\0"),
    (101, "CUDA_ERROR_INVALID_DEVICE\0", "there is no such device\0"),
    (102, "CUDA_ERROR_DEVICE_NOT_LICENSED\0", "the device lacks its licence\0"),
    (200, "CUDA_ERROR_INVALID_IMAGE\0", "the image of device code is not valid\0"),
    (201, "CUDA_ERROR_INVALID_CONTEXT\0", "no valid context is current\0"),
    (202, "CUDA_ERROR_CONTEXT_ALREADY_CURRENT\0", "the context is current already\0"),
    (205, "CUDA_ERROR_MAP_FAILED\0", "the resource could not be mapped\0"),
    (206, "CUDA_ERROR_UNMAP_FAILED\0", "the resource could not be unmapped\0"),
    (207, "CUDA_ERROR_ARRAY_IS_MAPPED\0", "the array is mapped\0"),
    (208, "CUDA_ERROR_ALREADY_MAPPED\0", "the resource is mapped already\0"),
    (209, "CUDA_ERROR_NO_BINARY_FOR_GPU\0", "the image has no code for this device\0"),
    (210, "CUDA_ERROR_ALREADY_ACQUIRED\0", "the resource is acquired already\0"),
    (211, "CUDA_ERROR_NOT_MAPPED\0", "the resource is not mapped\0"),
    (212, "CUDA_ERROR_NOT_MAPPED_AS_ARRAY\0", "the resource is not mapped as an array\0"),
    (213, "CUDA_ERROR_NOT_MAPPED_AS_POINTER\0", "the resource is not mapped as a pointer\0"),
    (214, "CUDA_ERROR_ECC_UNCORRECTABLE\0", "the device's memory has an error that cannot be corrected\0"),
    (215, "CUDA_ERROR_UNSUPPORTED_LIMIT\0", "the device knows no such limit\0"),
    (216, "CUDA_ERROR_CONTEXT_ALREADY_IN_USE\0", "another thread uses the context\0"),
    (217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED\0", "these devices cannot reach each other's memory\0"),
    (218, "CUDA_ERROR_INVALID_PTX\0", "the PTX could not be compiled\0"),
    (219, "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT\0", "the graphics context is not valid\0"),
    (220, "CUDA_ERROR_NVLINK_UNCORRECTABLE\0", "the link between devices has an error that cannot be corrected\0"),
    (221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND\0", "the compiler for PTX is missing\0"),
    (222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION\0", "the PTX is too new for this driver\0"),
    (223, "CUDA_ERROR_JIT_COMPILATION_DISABLED\0", "compiling at run time is switched off\0"),
    (224, "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY\0", "the device cannot run contexts on a part of it\0"),
    (225, "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC\0", "synchronising from the device is not supported\0"),
    (226, "CUDA_ERROR_CONTAINED\0", "an error was contained, and the device lost work\0"),
    (227, "CUDA_ERROR_INSUFFICIENT_LOADER_VERSION\0", "the loader is too old for this code\0"),
    (300, "CUDA_ERROR_INVALID_SOURCE\0", "the source of device code is not valid\0"),
    (301, "CUDA_ERROR_FILE_NOT_FOUND\0", "the file was not found\0"),
    (302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND\0", "a shared library lacks a symbol\0"),
    (303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED\0", "a shared library could not be loaded\0"),
    (304, "CUDA_ERROR_OPERATING_SYSTEM\0", "a call of the operating system failed\0"),
    (400, "CUDA_ERROR_INVALID_HANDLE\0", "there is nothing with this handle\0"),
    (401, "CUDA_ERROR_ILLEGAL_STATE\0", "the object is in no state for this\0"),
    (402, "CUDA_ERROR_LOSSY_QUERY\0", "the answer would not say all\0"),
    (500, "CUDA_ERROR_NOT_FOUND\0", "nothing has this name\0"),
    (600, "CUDA_ERROR_NOT_READY\0", "the work is not done yet\0"),
    (700, "CUDA_ERROR_ILLEGAL_ADDRESS\0", "device code used an address that is not its own\0"),
    (701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES\0", "the launch needs more than the device has\0"),
    (702, "CUDA_ERROR_LAUNCH_TIMEOUT\0", "device code ran for too long\0"),
    (703, "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING\0", "the launch does not fit the texturing mode\0"),
    (704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED\0", "peer access is on already\0"),
    (705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED\0", "peer access is not on\0"),
    (708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE\0", "the primary context is in use\0"),
    (709, "CUDA_ERROR_CONTEXT_IS_DESTROYED\0", "the context is destroyed, or its device is lost\0"),
    (710, "CUDA_ERROR_ASSERT\0", "device code failed an assertion\0"),
    (711, "CUDA_ERROR_TOO_MANY_PEERS\0", "there are too many peers\0"),
    (712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED\0", "this memory is registered already\0"),
    (713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED\0", "this memory is not registered\0"),
    (714, "CUDA_ERROR_HARDWARE_STACK_ERROR\0", "the device's stack is damaged\0"),
    (715, "CUDA_ERROR_ILLEGAL_INSTRUCTION\0", "device code has an instruction that the device does not know\0"),
    (716, "CUDA_ERROR_MISALIGNED_ADDRESS\0", "device code used an address that is not aligned\0"),
    (717, "CUDA_ERROR_INVALID_ADDRESS_SPACE\0", "device code used the wrong address space\0"),
    (718, "CUDA_ERROR_INVALID_PC\0", "device code jumped to nowhere\0"),
    (719, "CUDA_ERROR_LAUNCH_FAILED\0", "device code failed\0"),
    (720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE\0", "the cooperative launch is too large\0"),
    (721, "CUDA_ERROR_TENSOR_MEMORY_LEAK\0", "device code did not free its tensor memory\0"),
    (800, "CUDA_ERROR_NOT_PERMITTED\0", "the program may not do this\0"),
    (801, "CUDA_ERROR_NOT_SUPPORTED\0", "this is not supported here\0"),
    (802, "CUDA_ERROR_SYSTEM_NOT_READY\0", "the system is not ready yet\0"),
    (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH\0", "driver and kernel module are of different versions\0"),
    (804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE\0", "the device does not take part in forward compatibility\0"),
    (805, "CUDA_ERROR_MPS_CONNECTION_FAILED\0", "the MPS server cannot be reached\0"),
    (806, "CUDA_ERROR_MPS_RPC_FAILURE\0", "the MPS server did not answer as expected\0"),
    (807, "CUDA_ERROR_MPS_SERVER_NOT_READY\0", "the MPS server is not ready\0"),
    (808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED\0", "the MPS server has no room for more clients\0"),
    (809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED\0", "the MPS server has no room for more connections\0"),
    (810, "CUDA_ERROR_MPS_CLIENT_TERMINATED\0", "the MPS server ended this client\0"),
    (811, "CUDA_ERROR_CDP_NOT_SUPPORTED\0", "device code cannot launch device code here\0"),
    (812, "CUDA_ERROR_CDP_VERSION_MISMATCH\0", "launching from the device needs other versions\0"),
    (900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED\0", "a stream that is captured does not allow this\0"),
    (901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED\0", "the capture was spoiled by an earlier error\0"),
    (902, "CUDA_ERROR_STREAM_CAPTURE_MERGE\0", "two captures cannot become one\0"),
    (903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED\0", "the capture did not begin in this stream\0"),
    (904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED\0", "the capture has a fork that did not come back\0"),
    (905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION\0", "the call would reach out of the capture\0"),
    (906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT\0", "stream 0 would wait for a stream that is captured\0"),
    (907, "CUDA_ERROR_CAPTURED_EVENT\0", "the event belongs to a capture\0"),
    (908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD\0", "the capture began in another thread\0"),
    (909, "CUDA_ERROR_TIMEOUT\0", "it took too long\0"),
    (910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE\0", "the changed graph does not fit the old one\0"),
    (911, "CUDA_ERROR_EXTERNAL_DEVICE\0", "a device of another kind failed\0"),
    (912, "CUDA_ERROR_INVALID_CLUSTER_SIZE\0", "the size of the cluster does not fit\0"),
    (913, "CUDA_ERROR_FUNCTION_NOT_LOADED\0", "the function is not loaded\0"),
    (914, "CUDA_ERROR_INVALID_RESOURCE_TYPE\0", "the resource is of the wrong type\0"),
    (915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION\0", "the resources do not go together\0"),
    (916, "CUDA_ERROR_KEY_ROTATION\0", "keys are being changed\0"),
    (917, "CUDA_ERROR_STREAM_DETACHED\0", "the stream has lost its context\0"),
    (918, "CUDA_ERROR_GRAPH_RECAPTURE_FAILURE\0", "the graph could not be captured again\0"),
    (919, "CUDA_ERROR_FABRIC_NOT_READY\0", "the fabric is not ready\0"),
    (999, "CUDA_ERROR_UNKNOWN\0", "an error that nothing is known of\0"),
];

/// The name of a code and what it says to people, each with a NUL at its end.
pub(crate) fn texts(code: u32) -> Option<(&'static str, &'static str)> {
    TEXTS.iter().find(|(known, ..)| *known == code).map(|(_, name, sentence)| (*name, *sentence))
}
