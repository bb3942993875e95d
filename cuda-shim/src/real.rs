//! Real functions behind the hooks, of the driver and of NVML, by exported symbol.
//!
//! Every call that goes on to the driver uses these, and none can lead back to a hook: symbols are looked up in the
//! library's own handle with libc's own `dlsym`. Nothing is loaded before a hook is called.
#![allow(unsafe_code, reason = "the loader's functions")]

use crate::loader::{self, libc_own};
use std::cell::Cell;
use std::ffi::{CStr, CString, c_int, c_void};
use std::os::unix::ffi::OsStringExt;
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The driver. In a sandbox its name is that of the proxy, which needs the shim first and then the driver.
pub(crate) static DRIVER: Library = Library::new(c"libcuda.so.1");
/// NVML, which reports the state of the cards.
pub(crate) static NVML: Library = Library::new(c"libnvidia-ml.so.1");

/// Library whose functions are hooked.
pub(crate) struct Library {
    /// File name by which programs open it.
    name: &'static CStr,
    /// Path in the driver's directory, if that is known.
    path: OnceLock<Option<CString>>,
    /// Handle of the loader. Never closed, so that no address can go stale.
    handle: AtomicPtr<c_void>,
}

impl Library {
    const fn new(name: &'static CStr) -> Self {
        Self { name, path: OnceLock::new(), handle: AtomicPtr::new(null_mut()) }
    }

    /// Function with this exported symbol; `None` when the library has none, or there is no library.
    pub(crate) fn entry(&self, symbol: &CStr) -> Option<NonNull<c_void>> {
        let handle = self.loaded().or_else(|| self.load())?;
        // SAFETY: the handle is of a library that is never closed.
        let found = unsafe { libc_own::dlsym(handle.as_ptr(), symbol) };
        // Without the driver's directory the proxy would lead back to the hook, for ever.
        found.filter(|address| !loader::is_own(address.addr().get()))
    }

    /// Handle of the loader, if the process has loaded the library already.
    pub(crate) fn loaded(&self) -> Option<NonNull<c_void>> {
        let known = NonNull::new(self.handle.load(Ordering::Acquire));
        known.or_else(|| self.keep(open(self.path(), libc::RTLD_LAZY | libc::RTLD_NOLOAD)))
    }

    /// Opens it by its name first, even when its path is known: later opens of the name get the library that took it
    /// first, and for the driver that has to be the proxy.
    #[cold]
    fn load(&self) -> Option<NonNull<c_void>> {
        let by_name = open(self.name, libc::RTLD_LAZY);
        self.keep(if self.path() == self.name { by_name } else { open(self.path(), libc::RTLD_LAZY) })
    }

    fn keep(&self, handle: Option<NonNull<c_void>>) -> Option<NonNull<c_void>> {
        self.handle.store(handle?.as_ptr(), Ordering::Release);
        handle
    }

    /// A configured path that cannot be a C string counts as not set.
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

/// Function that caches its address: one load from memory at each use but the first.
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

    /// Address; `None` when this library has no such function, or there is no library: looked up again the next time.
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

/// Counts a call of a hook.
pub(crate) fn pass() {
    PASSED.set(PASSED.get().wrapping_add(1));
}

/// Number of calls of hooks by this thread. Unchanged over another library's call: that call has reached no hook.
pub(crate) fn passed() -> u64 {
    PASSED.get()
}

/// Looks up the driver's own function as `Option` of a typed pointer: `real::function!(cuMemFree_v2 as unsafe extern
/// "C" fn(u64) -> i32)`; another library's with `in NVML` after the symbol. The type must be that of the header, or
/// calling the pointer is undefined.
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
