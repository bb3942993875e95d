//! The driver's entries, found as the real runtime finds them: `dlopen`, `dlsym` of `cuGetProcAddress_v2`, and that for
//! all others, by name, version and flavour.
#![allow(unsafe_code, reason = "calls into a library opened at run time")]

use crate::error::{INSUFFICIENT_DRIVER, Status, ok};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::OnceLock;

/// `CUdeviceptr`.
pub(crate) type Address = u64;
/// `CUcontext`, `CUstream`.
pub(crate) type Handle = *mut c_void;

/// `CU_GET_PROC_ADDRESS_DEFAULT`.
const DEFAULT: u64 = 0;
/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;

type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> Status;

struct Finder(GetProcAddress);

impl Finder {
    fn open() -> Option<Self> {
        // SAFETY: a constant name; the library stays open for the life of the process.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return None;
        }
        // SAFETY: an open library and a constant name.
        let found = unsafe { libc::dlsym(library, c"cuGetProcAddress_v2".as_ptr()) };
        // SAFETY: the documented prototype of this symbol; null became `None` before.
        (!found.is_null()).then(|| Self(unsafe { transmute::<*mut c_void, GetProcAddress>(found) }))
    }

    fn entry(&self, name: &CStr, version: c_int, flags: u64) -> Result<*mut c_void, Status> {
        let (mut found, mut how) = (null_mut(), 0);
        // SAFETY: the documented arguments, all alive during the call.
        ok(unsafe { (self.0)(name.as_ptr(), &raw mut found, version, flags, &raw mut how) })?;
        if found.is_null() { Err(INSUFFICIENT_DRIVER) } else { Ok(found) }
    }
}

macro_rules! entries {
    ($($field:ident = $name:literal, $version:literal, $flags:ident, ($($argument:ty),*);)*) => {
        /// Every entry that this double calls.
        pub(crate) struct Driver { $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> Status,)* }

        impl Driver {
            fn load() -> Result<Self, Status> {
                let finder = Finder::open().ok_or(INSUFFICIENT_DRIVER)?;
                $(let $field = finder.entry($name, $version, $flags)?;)*
                // SAFETY: not null, and the prototypes of the headers for these names and versions.
                Ok(unsafe { Self { $($field: transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> Status>($field),)* } })
            }
        }
    };
}

entries! {
    init = c"cuInit", 2000, DEFAULT, (c_uint);
    version = c"cuDriverGetVersion", 2020, DEFAULT, (*mut c_int);
    device_count = c"cuDeviceGetCount", 2000, DEFAULT, (*mut c_int);
    device = c"cuDeviceGet", 2000, DEFAULT, (*mut c_int, c_int);
    device_name = c"cuDeviceGetName", 2000, DEFAULT, (*mut c_char, c_int, c_int);
    device_bytes = c"cuDeviceTotalMem", 3020, DEFAULT, (*mut usize, c_int);
    device_attribute = c"cuDeviceGetAttribute", 2000, DEFAULT, (*mut c_int, c_int, c_int);
    primary_retain = c"cuDevicePrimaryCtxRetain", 7000, DEFAULT, (*mut Handle, c_int);
    primary_reset = c"cuDevicePrimaryCtxReset", 11000, DEFAULT, (c_int);
    set_current = c"cuCtxSetCurrent", 4000, DEFAULT, (Handle);
    get_current = c"cuCtxGetCurrent", 4000, DEFAULT, (*mut Handle);
    synchronize = c"cuCtxSynchronize", 2000, DEFAULT, ();
    stream_create = c"cuStreamCreate", 2000, DEFAULT, (*mut Handle, c_uint);
    stream_destroy = c"cuStreamDestroy", 4000, DEFAULT, (Handle);
    stream_synchronize = c"cuStreamSynchronize", 2000, DEFAULT, (Handle);
    info = c"cuMemGetInfo", 3020, DEFAULT, (*mut usize, *mut usize);
    alloc = c"cuMemAlloc", 3020, DEFAULT, (*mut Address, usize);
    alloc_pitch = c"cuMemAllocPitch", 3020, DEFAULT, (*mut Address, *mut usize, usize, usize, c_uint);
    alloc_managed = c"cuMemAllocManaged", 6000, DEFAULT, (*mut Address, usize, c_uint);
    alloc_async = c"cuMemAllocAsync", 11020, DEFAULT, (*mut Address, usize, Handle);
    alloc_async_ptsz = c"cuMemAllocAsync", 11020, PER_THREAD, (*mut Address, usize, Handle);
    free = c"cuMemFree", 3020, DEFAULT, (Address);
    free_async = c"cuMemFreeAsync", 11020, DEFAULT, (Address, Handle);
    free_async_ptsz = c"cuMemFreeAsync", 11020, PER_THREAD, (Address, Handle);
    host_alloc = c"cuMemHostAlloc", 2020, DEFAULT, (*mut *mut c_void, usize, c_uint);
    host_free = c"cuMemFreeHost", 2000, DEFAULT, (*mut c_void);
    copy = c"cuMemcpy", 4000, DEFAULT, (Address, Address, usize);
    copy_async = c"cuMemcpyAsync", 4000, DEFAULT, (Address, Address, usize, Handle);
    set = c"cuMemsetD8", 3020, DEFAULT, (Address, u8, usize);
    set_async = c"cuMemsetD8Async", 3020, DEFAULT, (Address, u8, usize, Handle);
}

impl Driver {
    /// The driver, loaded and initialised by the first call of the process.
    ///
    /// # Errors
    /// `cudaErrorInsufficientDriver` when there is none or it lacks an entry; what `cuInit` says.
    pub(crate) fn get() -> Result<&'static Self, Status> {
        static DRIVER: OnceLock<Result<Driver, Status>> = OnceLock::new();
        let load = || {
            let driver = Self::load()?;
            // SAFETY: flags must be 0.
            ok(unsafe { (driver.init)(0) })?;
            Ok(driver)
        };
        DRIVER.get_or_init(load).as_ref().map_err(|status| *status)
    }
}
