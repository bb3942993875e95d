//! libc's own `dlsym` and `dlvsym`, past the ones that this library exports.
#![allow(unsafe_code, reason = "functions that are known by address")]

use super::elf;
use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Where they are: libc since glibc 2.34, a library of its own before.
const HOMES: [&CStr; 2] = [c"libc.so.6", c"libdl.so.2"];

/// A function of libc's, found at its first use.
pub(crate) struct Own {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

/// `dlsym`.
pub(crate) static DLSYM: Own = Own::new(c"dlsym");
/// `dlvsym`.
pub(crate) static DLVSYM: Own = Own::new(c"dlvsym");

impl Own {
    const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(null_mut()) }
    }

    /// Null when this is a libc that we do not know.
    pub(crate) fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if known.is_null() { self.look_up() } else { known }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        let in_library = |home: &&CStr| {
            elf::find(|library| if library.soname() == Some(home) { library.function(self.name) } else { None })
        };
        let address = HOMES.iter().find_map(in_library).map_or(null_mut(), NonNull::as_ptr);
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// libc's own function of this name, of the two.
pub(crate) fn function(name: &CStr) -> Option<NonNull<c_void>> {
    NonNull::new([&DLSYM, &DLVSYM].into_iter().find(|own| own.name == name)?.address())
}

/// What libc's `dlsym` says when this library asks. Not for `RTLD_NEXT` and `RTLD_DEFAULT`, which depend on who asks.
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
