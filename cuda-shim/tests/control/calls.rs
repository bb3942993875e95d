//! Calls of the driver and of libc by name, in a client: through the shim that is preloaded.
#![allow(unsafe_code, reason = "functions of the driver, found by name; fork; descriptors of others")]
#![allow(non_snake_case, reason = "the driver's names")]

use std::ffi::{CString, c_void};
use std::sync::Once;

macro_rules! calls {
    ($( fn $name:ident($($argument:ident: $type:ty),*); )*) => {
        $(
            pub(crate) fn $name($($argument: $type),*) -> i32 {
                let address = symbol(stringify!($name));
                // SAFETY: the type is the header's.
                let function = unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> i32>(address)
                };
                // SAFETY: pointers are to places of the caller.
                unsafe { function($($argument),*) }
            }
        )*
    };
}

calls! {
    fn cuInit(flags: u32);
    fn cuCtxCreate_v2(context: *mut u64, flags: u32, device: i32);
    fn cuCtxDestroy_v2(context: u64);
    fn cuCtxSetCurrent(context: u64);
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize);
    fn cuMemFree_v2(address: u64);
    fn cuMemsetD8_v2(address: u64, value: u8, bytes: usize);
    fn cuStreamCreate(stream: *mut u64, flags: u32);
    fn cuStreamBeginCapture_v2(stream: u64, mode: i32);
    fn cuStreamEndCapture(stream: u64, graph: *mut u64);
}

fn symbol(name: &str) -> *mut c_void {
    static OPEN: Once = Once::new();
    OPEN.call_once(|| {
        // SAFETY: a string that ends with a zero.
        let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        assert!(!driver.is_null(), "no driver");
    });
    let terminated = CString::new(name).unwrap();
    // SAFETY: a string that ends with a zero.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, terminated.as_ptr()) };
    assert!(!address.is_null(), "{name} is not there");
    address
}

/// Forks; returns the child's number, or 0 in the child.
pub(crate) fn fork() -> i32 {
    // SAFETY: the child goes on as a client of one thread.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    child
}

/// Puts a copy of one descriptor in the place of another, of whichever owner.
pub(crate) fn replace(descriptor: i32, by: i32) {
    // SAFETY: what a careless program does: nothing here relies on that descriptor.
    assert_eq!(unsafe { libc::dup2(by, descriptor) }, descriptor);
}

/// Ends the process without its handlers of `exit`.
pub(crate) fn end_now() -> ! {
    // SAFETY: nothing is to be kept.
    unsafe { libc::_exit(0) }
}
