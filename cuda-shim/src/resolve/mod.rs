//! Look-up of functions: hooks in place of the driver's functions, in whichever way a caller looks for them.
//!
//! A caller gets a hook only where it would have got the driver's function: an entry that a driver lacks stays absent,
//! with the error that the driver or the loader has for it.

mod dlsym;
mod proc_address;

use crate::loader::libc_own;
use crate::{hooks, nvml, real, runtime};
use omni_cuda_entries::{Role, find};
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

/// Hook, with the library whose function it replaces.
#[derive(Clone, Copy)]
struct Ours {
    address: NonNull<c_void>,
    library: Library,
}

/// Libraries whose functions are hooked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Library {
    Driver,
    Nvml,
    Runtime,
    Libc,
}

/// Hook for the function of this name. Programs look up many names, so others are ruled out first.
fn ours(name: &CStr) -> Option<Ours> {
    let (library, hook): (_, fn(&str) -> _) = match name.to_bytes() {
        [b'c', b'u', b'd', b'a', ..] => (Library::Runtime, runtime::hook),
        [b'c', b'u', ..] => (Library::Driver, driver_hook),
        [b'n', b'v', b'm', b'l', ..] => (Library::Nvml, nvml::hook),
        [b'd', b'l', ..] => (Library::Libc, dlsym::hook),
        _ => return None,
    };
    hook(name.to_str().ok()?).map(|address| Ours { address, library })
}

/// Hook for an entry of the driver.
fn driver_hook(symbol: &str) -> Option<NonNull<c_void>> {
    match find(symbol)?.role {
        Role::Resolves => proc_address::hook(symbol),
        Role::Allocates | Role::Frees | Role::Reports | Role::Watched => {
            hooks::hook(symbol).and_then(|address| NonNull::new(address.cast_mut()))
        }
        Role::Other => None,
    }
}

impl Library {
    /// Function behind the hook, if the process has loaded the library already, and `look_up` finds it there.
    fn own(self, name: &CStr, look_up: impl Fn(NonNull<c_void>) -> Option<NonNull<c_void>>) -> Option<NonNull<c_void>> {
        match self {
            Self::Driver => look_up(real::DRIVER.loaded()?),
            Self::Nvml => look_up(real::NVML.loaded()?),
            Self::Runtime => runtime::any(name),
            Self::Libc => libc_own::function(name),
        }
    }
}
