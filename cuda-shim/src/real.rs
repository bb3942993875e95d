//! The functions behind ours: the real driver's, by exported symbol.
//!
//! Everything that goes on to the driver goes through here, and nothing here can come back to us: symbols are looked up
//! in the driver's own handle with libc's own `dlsym`. Nothing is loaded before one of our exports is called.
#![allow(unsafe_code, reason = "the loader's functions")]

use crate::resolve::libc_own;
use omni_gpu_wire::env;
use std::ffi::{CStr, CString, c_int, c_void};
use std::os::unix::ffi::OsStringExt;
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The name by which everybody opens the driver. In a sandbox it is the proxy, which needs us and the driver.
const DRIVER: &CStr = c"libcuda.so.1";

/// The driver's entry by its exported symbol; `None` when this driver has no such, or there is no driver.
pub(crate) fn entry(symbol: &CStr) -> Option<NonNull<c_void>> {
    lookup(handle()?, symbol)
}

/// As [`entry`], of a driver that somebody has loaded already.
pub(crate) fn loaded_entry(symbol: &CStr) -> Option<NonNull<c_void>> {
    lookup(loaded_handle()?, symbol)
}

/// An entry of the driver that remembers its address: one load from memory at each use but the first.
pub(crate) struct Entry {
    symbol: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Entry {
    /// `symbol` ends with a zero.
    pub(crate) const fn new(symbol: &'static str) -> Self {
        let Ok(symbol) = CStr::from_bytes_with_nul(symbol.as_bytes()) else { panic!("a symbol ends with one zero") };
        Self { symbol, address: AtomicPtr::new(null_mut()) }
    }

    /// `None` when this driver has no such entry, or there is no driver: asked again the next time.
    pub(crate) fn get(&self) -> Option<NonNull<c_void>> {
        NonNull::new(self.address.load(Ordering::Relaxed)).or_else(|| self.look_up())
    }

    #[cold]
    fn look_up(&self) -> Option<NonNull<c_void>> {
        let address = entry(self.symbol)?;
        self.address.store(address.as_ptr(), Ordering::Relaxed);
        Some(address)
    }
}

/// The driver's own function as `Option` of a typed pointer: `real::function!(cuMemFree_v2 as unsafe extern "C" fn(u64)
/// -> i32)`. The type must be that of the header, or calling the pointer is undefined.
macro_rules! function {
    ($symbol:ident as $type:ty) => {{
        static ENTRY: $crate::real::Entry = $crate::real::Entry::new(concat!(stringify!($symbol), "\0"));
        // SAFETY: the address is that of a function; its type is the header's, for which the caller answers.
        ENTRY.get().map(|address| unsafe { std::mem::transmute::<std::ptr::NonNull<std::ffi::c_void>, $type>(address) })
    }};
}
pub(crate) use function;

fn lookup(handle: NonNull<c_void>, symbol: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the handle is of a library that is never closed.
    unsafe { libc_own::dlsym(handle.as_ptr(), symbol) }
}

/// What the loader gave for the driver. Never closed, so that no address of it can go stale.
static HANDLE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

fn handle() -> Option<NonNull<c_void>> {
    loaded_handle().or_else(load)
}

fn loaded_handle() -> Option<NonNull<c_void>> {
    NonNull::new(HANDLE.load(Ordering::Acquire)).or_else(|| keep(open(path(), libc::RTLD_LAZY | libc::RTLD_NOLOAD)?))
}

/// Opens the driver by its name first, even when its path is known: whichever library takes the name first is what
/// everybody gets who asks for it later, and that has to be the proxy.
#[cold]
fn load() -> Option<NonNull<c_void>> {
    let by_name = open(DRIVER, libc::RTLD_LAZY);
    let driver = if std::ptr::eq(path(), DRIVER) { by_name } else { open(path(), libc::RTLD_LAZY) };
    keep(driver?)
}

fn keep(handle: NonNull<c_void>) -> Option<NonNull<c_void>> {
    HANDLE.store(handle.as_ptr(), Ordering::Release);
    Some(handle)
}

fn open(path: &CStr, flags: c_int) -> Option<NonNull<c_void>> {
    // SAFETY: a string that ends with a zero; what the driver does when it is loaded is what the caller asked for.
    NonNull::new(unsafe { libc::dlopen(path.as_ptr(), flags) })
}

/// Where the driver itself is. A path that cannot be one counts as not set.
fn path() -> &'static CStr {
    static PATH: OnceLock<Option<CString>> = OnceLock::new();
    let configured = PATH.get_or_init(|| {
        let mut path = std::env::var_os(env::DRIVER)?.into_vec();
        path.extend_from_slice(b"/libcuda.so.1");
        CString::new(path).ok()
    });
    configured.as_deref().unwrap_or(DRIVER)
}
