//! Functions of libc: `dlsym` and `dlvsym`, past those that this library exports, and one that only glibc has.
#![allow(unsafe_code, reason = "functions that are known by address")]

use super::elf;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

/// File name of glibc.
const GLIBC: &CStr = c"libc.so.6";
/// Libraries that define them: libc since glibc 2.34, one of its own before.
const HOMES: [&CStr; 2] = [GLIBC, c"libdl.so.2"];
/// File name of musl, which is its own loader and has no other name everywhere.
const MUSL: &str = "/ld-musl-x86_64.so.1";

/// Function of libc, looked up at its first use.
pub(crate) struct Own {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

/// `dlsym`.
pub(crate) static DLSYM: Own = Own::new(c"dlsym");
/// `dlvsym`.
pub(crate) static DLVSYM: Own = Own::new(c"dlvsym");

/// Function that `pthread_atfork` of glibc's static part calls: linked to, it would be a symbol that no other libc has.
static REGISTER_ATFORK: Own = Own::new(c"__register_atfork");

/// `true` in a process of glibc, and not in one of another libc such as musl.
pub(crate) fn is_glibc() -> bool {
    elf::find(|library| (library.soname() == Some(GLIBC)).then_some(())).is_some()
}

/// Has `child` called in every child of a fork, from now on. This library is never unloaded.
pub(crate) fn in_forks(child: unsafe extern "C" fn()) {
    type Handler = Option<unsafe extern "C" fn()>;
    type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;
    if let Some(register) = NonNull::new(REGISTER_ATFORK.address()) {
        // SAFETY: the address is that of glibc's function, whose type this is.
        let register = unsafe { transmute::<NonNull<c_void>, Register>(register) };
        // SAFETY: the handler is a function for good; null stands for the program, which is never unloaded either.
        unsafe { register(None, None, Some(child), null_mut()) };
    }
}

impl Own {
    const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(null_mut()) }
    }

    /// Address; null on an unknown libc.
    pub(crate) fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if known.is_null() { self.look_up() } else { known }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        let in_library = |is_it: &dyn Fn(&elf::Library<'_>) -> bool| {
            elf::find(|library| if is_it(library) { library.function(self.name) } else { None })
        };
        let of_glibc = HOMES.iter().find_map(|home| in_library(&|library| library.soname() == Some(home)));
        let of_musl = || in_library(&|library| library.path().to_bytes().ends_with(MUSL.as_bytes()));
        let address = of_glibc.or_else(of_musl).map_or(null_mut(), NonNull::as_ptr);
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// libc's own function of this name, of the two.
pub(crate) fn function(name: &CStr) -> Option<NonNull<c_void>> {
    NonNull::new([&DLSYM, &DLVSYM].into_iter().find(|own| own.name == name)?.address())
}

/// Calls libc's `dlsym` on behalf of this library. Not for `RTLD_NEXT` and `RTLD_DEFAULT`, which depend on the caller.
///
/// # Safety
/// `handle` is one of the loader's.
pub(crate) unsafe fn dlsym(handle: *mut c_void, name: &CStr) -> Option<NonNull<c_void>> {
    type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    let own = NonNull::new(DLSYM.address())?;
    // SAFETY: the address is that of libc's `dlsym`, whose type this is.
    let own = unsafe { transmute::<NonNull<c_void>, Dlsym>(own) };
    // SAFETY: the caller answers for the handle; the name ends with a zero.
    NonNull::new(unsafe { own(handle, name.as_ptr()) })
}

/// As [`dlsym`], for one version of a symbol.
///
/// # Safety
/// `handle` is one of the loader's.
pub(crate) unsafe fn dlvsym(handle: *mut c_void, name: &CStr, version: &CStr) -> Option<NonNull<c_void>> {
    type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
    let own = NonNull::new(DLVSYM.address())?;
    // SAFETY: the address is that of libc's `dlvsym`, whose type this is.
    let own = unsafe { transmute::<NonNull<c_void>, Dlvsym>(own) };
    // SAFETY: the caller answers for the handle; name and version end with a zero.
    NonNull::new(unsafe { own(handle, name.as_ptr(), version.as_ptr()) })
}
