//! The functions behind ours: the real driver's and the real NVML's, by exported symbol.
//!
//! Everything that goes on to the driver goes through here, and nothing here can come back to us: symbols are looked up
//! in the library's own handle with libc's own `dlsym`. Nothing is loaded before one of our exports is called.
#![allow(unsafe_code, reason = "the loader's functions")]

use crate::loader::{self, libc_own};
use std::cell::Cell;
use std::ffi::{CStr, CString, c_int, c_void};
use std::os::unix::ffi::OsStringExt;
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The driver. Its name is in a sandbox that of the proxy, which needs us first and then the driver.
pub(crate) static DRIVER: Library = Library::new(c"libcuda.so.1");
/// The library that shows the state of the cards.
pub(crate) static NVML: Library = Library::new(c"libnvidia-ml.so.1");

/// A library behind ours.
pub(crate) struct Library {
    /// By which everybody opens it.
    name: &'static CStr,
    /// The same in the driver's directory, if that is known.
    path: OnceLock<Option<CString>>,
    /// The loader's. Never closed, so that no address can go stale.
    handle: AtomicPtr<c_void>,
}

impl Library {
    const fn new(name: &'static CStr) -> Self {
        Self { name, path: OnceLock::new(), handle: AtomicPtr::new(null_mut()) }
    }

    /// The function with this exported symbol; `None` when the library has none, or there is no library.
    pub(crate) fn entry(&self, symbol: &CStr) -> Option<NonNull<c_void>> {
        let handle = self.loaded().or_else(|| self.load())?;
        // SAFETY: the handle is of a library that is never closed.
        let found = unsafe { libc_own::dlsym(handle.as_ptr(), symbol) };
        // A proxy without the directory of the driver would lead back to us, for ever.
        found.filter(|address| !loader::is_own(address.addr().get()))
    }

    /// The loader's handle, if somebody has loaded the library already.
    pub(crate) fn loaded(&self) -> Option<NonNull<c_void>> {
        let known = NonNull::new(self.handle.load(Ordering::Acquire));
        known.or_else(|| self.keep(open(self.path(), libc::RTLD_LAZY | libc::RTLD_NOLOAD)))
    }

    /// Opens it by its name first, even when its path is known: whichever library takes the name first is what everybody
    /// gets who asks for it later, and for the driver that has to be the proxy.
    #[cold]
    fn load(&self) -> Option<NonNull<c_void>> {
        let by_name = open(self.name, libc::RTLD_LAZY);
        self.keep(if self.path() == self.name { by_name } else { open(self.path(), libc::RTLD_LAZY) })
    }

    fn keep(&self, handle: Option<NonNull<c_void>>) -> Option<NonNull<c_void>> {
        self.handle.store(handle?.as_ptr(), Ordering::Release);
        handle
    }

    /// A path that cannot be one counts as not set.
    fn path(&self) -> &CStr {
        let configured = self.path.get_or_init(|| {
            let mut path = crate::places::driver()?.into_vec();
            path.push(b'/');
            path.extend_from_slice(self.name.to_bytes());
            CString::new(path).ok()
        });
        configured.as_deref().unwrap_or(self.name)
    }
}

/// A function that remembers its address: one load from memory at each use but the first.
pub(crate) struct Entry {
    library: &'static Library,
    symbol: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Entry {
    /// `symbol` ends with a zero.
    #[allow(clippy::panic, reason = "at compile time: it is for statics")]
    pub(crate) const fn new(library: &'static Library, symbol: &'static str) -> Self {
        let Ok(symbol) = CStr::from_bytes_with_nul(symbol.as_bytes()) else { panic!("a symbol ends with one zero") };
        Self { library, symbol, address: AtomicPtr::new(null_mut()) }
    }

    /// `None` when this library has no such function, or there is no library: asked again the next time.
    pub(crate) fn get(&self) -> Option<NonNull<c_void>> {
        NonNull::new(self.address.load(Ordering::Relaxed)).or_else(|| self.look_up())
    }

    #[cold]
    fn look_up(&self) -> Option<NonNull<c_void>> {
        let address = self.library.entry(self.symbol)?;
        self.address.store(address.as_ptr(), Ordering::Relaxed);
        Some(address)
    }
}

thread_local! {
    static PASSED: Cell<u64> = const { Cell::new(0) };
}

/// A call of the driver has met ours.
pub(crate) fn pass() {
    PASSED.set(PASSED.get().wrapping_add(1));
}

/// How often calls of this thread have met ours. Unchanged over a call of somebody else: that call has met none.
pub(crate) fn passed() -> u64 {
    PASSED.get()
}

/// The driver's own function as `Option` of a typed pointer: `real::function!(cuMemFree_v2 as unsafe extern "C" fn(u64)
/// -> i32)`; another library's with `in NVML` after the symbol. The type must be that of the header, or calling the
/// pointer is undefined.
macro_rules! function {
    ($symbol:ident as $type:ty) => {
        $crate::real::function!($symbol in DRIVER as $type)
    };
    ($symbol:ident in $library:ident as $type:ty) => {{
        static ENTRY: $crate::real::Entry =
            $crate::real::Entry::new(&$crate::real::$library, concat!(stringify!($symbol), "\0"));
        // SAFETY: the address is that of a function; its type is the header's, for which the caller answers.
        ENTRY.get().map(|address| unsafe { std::mem::transmute::<std::ptr::NonNull<std::ffi::c_void>, $type>(address) })
    }};
}
pub(crate) use function;

fn open(path: &CStr, flags: c_int) -> Option<NonNull<c_void>> {
    // SAFETY: a string that ends with a zero; what the library does when it is loaded is what the caller asked for.
    NonNull::new(unsafe { libc::dlopen(path.as_ptr(), flags) })
}
