//! Driver API as a client calls it: by `dlsym`, so under `LD_PRELOAD` through the shim.
#![allow(unsafe_code, reason = "functions of the driver, found by name")]
#![allow(non_snake_case, reason = "the driver's names")]

use std::ffi::{CStr, CString, c_void};

/// Address of a symbol of the driver that every library of this process sees.
pub(crate) fn symbol(name: &str) -> Option<*mut c_void> {
    open();
    let name = CString::new(name).unwrap();
    // SAFETY: a string that ends with a zero.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

/// A symbol of the driver is the shim's function here.
pub(crate) fn is_ours(name: &str) -> bool {
    // SAFETY: zeros are as good as anything: it is written below.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: an address, and a place of ours.
    let found = symbol(name).is_some_and(|address| unsafe { libc::dladdr(address, &raw mut info) } != 0);
    // SAFETY: the loader's string, which lives as long as the library.
    found && unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes().ends_with(b"/libomni_cuda.so")
}

fn open() {
    static OPEN: std::sync::Once = std::sync::Once::new();
    OPEN.call_once(|| {
        // SAFETY: a string that ends with a zero.
        let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        assert!(!driver.is_null(), "no driver");
    });
}

macro_rules! calls {
    ($( fn $name:ident($($argument:ident: $type:ty),* $(,)?); )*) => {
        $(
            pub(crate) fn $name($($argument: $type),*) -> i32 {
                let address = symbol(stringify!($name)).unwrap_or_else(|| panic!("{} is not there", stringify!($name)));
                // SAFETY: the type is the header's.
                let function = unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> i32>(address)
                };
                // SAFETY: pointers are to places of the caller, or null, which the driver and the shim must bear.
                unsafe { function($($argument),*) }
            }
        )*
    };
}

calls! {
    fn cuInit(flags: u32);
    fn cuDriverGetVersion(version: *mut i32);
    fn cuCtxCreate_v2(context: *mut u64, flags: u32, device: i32);
    fn cuCtxDestroy_v2(context: u64);
    fn cuCtxAttach(context: *mut u64, flags: u32);
    fn cuCtxDetach(context: u64);
    fn cuCtxSetLimit(limit: i32, value: usize);
    fn cuCtxSynchronize();
    fn cuCtxSetCurrent(context: u64);
    fn cuDevicePrimaryCtxRetain(context: *mut u64, device: i32);
    fn cuDevicePrimaryCtxRelease_v2(device: i32);
    fn cuDevicePrimaryCtxReset_v2(device: i32);
    fn cuMemAlloc(address: *mut u32, bytes: u32);
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize);
    fn cuMemFree(address: u32);
    fn cuMemFree_v2(address: u64);
    fn cuMemAllocManaged(address: *mut u64, bytes: usize, flags: u32);
    fn cuMemAllocPitch(address: *mut u32, pitch: *mut u32, width: u32, height: u32, element: u32);
    fn cuMemAllocPitch_v2(address: *mut u64, pitch: *mut usize, width: usize, height: usize, element: u32);
    fn cuMemAllocHost_v2(address: *mut u64, bytes: usize);
    fn cuMemHostAlloc(address: *mut u64, bytes: usize, flags: u32);
    fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: u32);
    fn cuMemHostUnregister(address: *mut c_void);
    fn cuMemFreeHost(address: u64);
    fn cuMemAllocAsync(address: *mut u64, bytes: usize, stream: u64);
    fn cuMemAllocAsync_ptsz(address: *mut u64, bytes: usize, stream: u64);
    fn cuMemAllocFromPoolAsync(address: *mut u64, bytes: usize, pool: u64, stream: u64);
    fn cuMemAllocFromPoolAsync_ptsz(address: *mut u64, bytes: usize, pool: u64, stream: u64);
    fn cuMemFreeAsync(address: u64, stream: u64);
    fn cuStreamCreate(stream: *mut u64, flags: u32);
    fn cuStreamSynchronize(stream: u64);
    fn cuStreamBeginCapture_v2(stream: u64, mode: i32);
    fn cuStreamEndCapture(stream: u64, graph: *mut u64);
    fn cuDeviceGetDefaultMemPool(pool: *mut u64, device: i32);
    fn cuMemPoolCreate(pool: *mut u64, properties: *const PoolProperties);
    fn cuMemPoolDestroy(pool: u64);
    fn cuMemPoolGetAttribute(pool: u64, attribute: i32, value: *mut u64);
    fn cuMemPoolSetAccess(pool: u64, access: *const [u32; 3], count: usize);
    fn cuDeviceGetMemPool(pool: *mut u64, device: i32);
    fn cuDeviceSetMemPool(device: i32, pool: u64);
    fn cuMemsetD8_v2(address: u64, value: u8, bytes: usize);
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize);
    fn cuPointerGetAttributes(count: u32, which: *const [i32; 3], values: *const [*mut u64; 3], address: u64);
    fn cuMemPoolSetAttribute(pool: u64, attribute: i32, value: *mut u64);
    fn cuLaunchHostFunc(stream: u64, function: extern "C" fn(*mut c_void), data: *mut c_void);
    fn cuGraphGetNodes(graph: u64, nodes: *mut u64, count: *mut usize);
    fn cuMemPoolTrimTo(pool: u64, keep: usize);
    fn cuMemPoolExportToShareableHandle(descriptor: *mut i32, pool: u64, kind: i32, flags: u64);
    fn cuMemPoolImportFromShareableHandle(pool: *mut u64, descriptor: usize, kind: i32, flags: u64);
    fn cuMemPoolExportPointer(shared: *mut [u8; 64], address: u64);
    fn cuMemPoolImportPointer(address: *mut u64, pool: u64, shared: *const [u8; 64]);
    fn cuMemCreate(handle: *mut u64, bytes: usize, properties: *const HandleProperties, flags: u64);
    fn cuMemRelease(handle: u64);
    fn cuMemAddressReserve(address: *mut u64, bytes: usize, alignment: usize, at: u64, flags: u64);
    fn cuMemAddressFree(address: u64, bytes: usize);
    fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64);
    fn cuMemUnmap(address: u64, bytes: usize);
    fn cuMemRetainAllocationHandle(handle: *mut u64, address: u64);
    fn cuArrayCreate(array: *mut u64, shape: *const [u32; 4]);
    fn cuArrayCreate_v2(array: *mut u64, shape: *const Flat);
    fn cuArray3DCreate(array: *mut u64, shape: *const [u32; 6]);
    fn cuArray3DCreate_v2(array: *mut u64, shape: *const Solid);
    fn cuMipmappedArrayCreate(array: *mut u64, shape: *const Solid, levels: u32);
    fn cuArrayDestroy(array: u64);
    fn cuMipmappedArrayDestroy(array: u64);
    fn cuImportExternalMemory(memory: *mut u64, description: *const External);
    fn cuDestroyExternalMemory(memory: u64);
    fn cuMemExportToShareableHandle(descriptor: *mut i32, handle: u64, kind: i32, flags: u64);
    fn cuMemImportFromShareableHandle(handle: *mut u64, descriptor: usize, kind: i32);
    fn cuIpcGetMemHandle(handle: *mut IpcHandle, address: u64);
    fn cuIpcOpenMemHandle(address: *mut u64, handle: IpcHandle, flags: u32);
    fn cuIpcOpenMemHandle_v2(address: *mut u64, handle: IpcHandle, flags: u32);
    fn cuIpcCloseMemHandle(address: u64);
    fn cuGraphCreate(graph: *mut u64, flags: u32);
    fn cuGraphAddMemAllocNode(node: *mut u64, graph: u64, after: u64, count: usize, parameters: *mut AllocNode);
    fn cuGraphAddNode(node: *mut u64, graph: u64, after: u64, count: usize, parameters: *mut Node);
    fn cuGraphAddNode_v2(node: *mut u64, graph: u64, after: u64, edges: u64, count: usize, parameters: *mut Node);
    fn cuGraphAddNode_v3(node: *mut u64, graph: u64, after: u64, edges: u64, count: usize, parameters: *mut Node);
    fn cuGraphInstantiateWithFlags(exec: *mut u64, graph: u64, flags: u64);
    fn cuGraphLaunch(exec: u64, stream: u64);
    fn cuGraphExecDestroy(exec: u64);
    fn cuGraphDestroy(graph: u64);
    fn cuDeviceGraphMemTrim(device: i32);
    fn cuMemGetInfo(free: *mut u32, total: *mut u32);
    fn cuMemGetInfo_v2(free: *mut u64, total: *mut u64);
    fn cuDeviceTotalMem(bytes: *mut u32, device: i32);
    fn cuDeviceTotalMem_v2(bytes: *mut u64, device: i32);
    fn cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64);
    fn cuPointerGetAttribute(value: *mut u32, attribute: i32, address: u64);
}

/// `CUmemPoolProps`: memory of device 0 for this process.
#[repr(C)]
pub(crate) struct PoolProperties {
    pub kind: i32,
    pub handles: i32,
    pub location: [i32; 2],
    pub rest: [u64; 9],
}

impl PoolProperties {
    pub(crate) const DEVICE: Self = Self { kind: 1, handles: 0, location: [1, 0], rest: [0; 9] };
}

/// `CUmemAllocationProp`.
#[repr(C)]
pub(crate) struct HandleProperties {
    pub kind: i32,
    pub handles: i32,
    pub location: [i32; 2],
    pub rest: [u64; 2],
}

impl HandleProperties {
    pub(crate) const DEVICE: Self = Self { kind: 1, handles: 0, location: [1, 0], rest: [0; 2] };
    /// `CU_MEM_LOCATION_TYPE_HOST_NUMA`, node 0.
    pub(crate) const HOST: Self = Self { kind: 1, handles: 0, location: [3, 0], rest: [0; 2] };
}

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
pub(crate) struct Flat {
    pub width: usize,
    pub height: usize,
    pub format: i32,
    pub channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
pub(crate) struct Solid {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub format: i32,
    pub channels: u32,
    pub flags: u32,
}

/// `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`.
#[repr(C)]
pub(crate) struct External {
    pub kind: i32,
    pub handle: [u64; 2],
    pub bytes: u64,
    pub rest: [u32; 18],
}

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IpcHandle(pub [u8; 64]);

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
pub(crate) struct AllocNode {
    pub pool: PoolProperties,
    pub access: u64,
    pub access_count: usize,
    pub bytes: usize,
    pub address: u64,
}

impl AllocNode {
    pub(crate) fn of(bytes: usize) -> Self {
        Self { pool: PoolProperties::DEVICE, access: 0, access_count: 0, bytes, address: 0 }
    }
}

/// `CUgraphNodeParams` of a memory node.
#[repr(C)]
pub(crate) struct Node {
    pub kind: i32,
    pub reserved: [i32; 3],
    pub alloc: AllocNode,
    pub rest: [u64; 15],
}

impl Node {
    pub(crate) fn of(bytes: usize) -> Self {
        Self { kind: 10, reserved: [0; 3], alloc: AllocNode::of(bytes), rest: [0; 15] }
    }
}
