//! Choice of the CUDA runtime that a call is meant for.
//!
//! Two of them can be in one process, and their functions have the same names: they differ in the version of the
//! symbol, by which the loader has bound the caller, and which a hook does not see. So the caller's own library is
//! asked which runtime it needs; a caller that needs none of those loaded (a program that looked the function up) gets
//! the first. Another interposer of these functions is no runtime: it may be the caller itself, and call the next one,
//! which is the hook.
#![allow(unsafe_code, reason = "a runtime that is in use is kept loaded")]

use crate::loader::elf::{self, Library};
use std::ffi::{CStr, CString, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Function of the runtimes, with those found for its callers. Callers beyond the first few are looked up at each call,
/// which costs a walk over everything that is loaded.
pub(super) struct Function {
    name: &'static CStr,
    known: [Known; 8],
}

/// Function found for a caller: written once. Caller 0 is a free entry, 1 an entry that is being written.
struct Known {
    caller: AtomicUsize,
    function: AtomicPtr<c_void>,
}

impl Function {
    /// `name` ends with a zero.
    #[allow(clippy::panic, reason = "at compile time: it is for statics")]
    pub(super) const fn new(name: &'static str) -> Self {
        let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else { panic!("a name ends with one zero") };
        Self { name, known: [const { Known { caller: AtomicUsize::new(0), function: AtomicPtr::new(null_mut()) } }; 8] }
    }

    /// The runtime's own function, for a call that returns to the address `caller`; `None` without a runtime.
    pub(super) fn of(&self, caller: usize) -> Option<NonNull<c_void>> {
        let known = self.known.iter().find(|known| known.caller.load(Ordering::Acquire) == caller);
        known.and_then(|known| NonNull::new(known.function.load(Ordering::Relaxed))).or_else(|| self.look_up(caller))
    }

    #[cold]
    fn look_up(&self, caller: usize) -> Option<NonNull<c_void>> {
        let function = find(self.name, caller)?;
        let free = |known: &&Known| known.caller.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if let Some(known) = self.known.iter().find(free) {
            known.function.store(function.as_ptr(), Ordering::Relaxed);
            known.caller.store(caller, Ordering::Release);
        }
        Some(function)
    }
}

/// Function in the runtime that the caller's library needs, else in the first one.
pub(super) fn find(name: &CStr, caller: usize) -> Option<NonNull<c_void>> {
    let needed = elf::find(|library| {
        library.holds(caller).then(|| library.needed().map(CStr::to_owned).collect::<Vec<CString>>())
    });
    let is_needed = |library: &Library<'_>| {
        library.soname().is_some_and(|soname| needed.iter().flatten().any(|needed| needed.as_c_str() == soname))
    };
    let (function, path) = first(name, is_needed).or_else(|| first(name, is_runtime))?;
    // Not unloaded any more, so that what is remembered stays true.
    // SAFETY: a string that ends with a zero, of a library that is there already.
    unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    Some(function)
}

/// A library is a runtime: by its name, which wheels make longer (`libcudart-d0da41ae.so.11.0`), or by a function that
/// only a runtime has.
fn is_runtime(library: &Library<'_>) -> bool {
    library.soname().is_some_and(|name| name.to_bytes().starts_with(b"libcudart"))
        || library.function(c"cudaGetErrorString").is_some()
}

/// Function in the first library but this one that has it, and that library's path.
fn first(name: &CStr, fits: impl Fn(&Library<'_>) -> bool) -> Option<(NonNull<c_void>, CString)> {
    let here = find as *const () as usize;
    elf::find(|library| {
        let other = fits(library) && !library.holds(here);
        other.then(|| library.function(name)).flatten().map(|function| (function, library.path().to_owned()))
    })
}
