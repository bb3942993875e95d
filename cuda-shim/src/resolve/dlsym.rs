//! `dlsym` and `dlvsym`, transparent for every name that is not hooked.
//!
//! glibc identifies the caller by the return address, which decides what `RTLD_NEXT` and `RTLD_DEFAULT` mean. So
//! nothing may stand between the caller and libc's own function: it is entered by a jump, with all arguments where they
//! were. A hooked name is answered with the hook's address, after the loader was asked whether there is such a
//! function.
#![allow(unsafe_code, reason = "functions without a frame, and the loader's arguments")]

use super::{Library, Ours, ours};
use crate::loader::libc_own::{self, DLSYM, DLVSYM};
use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{NonNull, null_mut};

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the jumps into libc's dlsym and dlvsym are written for x86-64");

/// Answer in `rax` and `rdx`, where the C ABI has two words.
#[repr(C)]
struct Decision {
    /// Function to jump to; null when there is an answer.
    go_on: *mut c_void,
    answer: *mut c_void,
}

/// libc's function of the same name.
///
/// # Safety
/// Those of libc's function.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8", // a call wants the stack at a multiple of 16
        "call {decide}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "mov rax, rdx",
        "ret",
        decide = sym decide,
    )
}

/// libc's function of the same name.
///
/// # Safety
/// Those of libc's function.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void {
    naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "call {decide}",
        "mov rcx, rdx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "mov rax, rcx",
        "ret",
        decide = sym decide_version,
    )
}

/// Hook for the two. Another interposer's `dlsym`, preloaded before this library, looks up the next one, often in a
/// version that only libc's has: it has to come by here all the same.
pub(super) fn hook(name: &str) -> Option<NonNull<c_void>> {
    type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
    let address = match name {
        "dlsym" => dlsym as Dlsym as *mut c_void,
        "dlvsym" => dlvsym as Dlvsym as *mut c_void,
        _ => return None,
    };
    NonNull::new(address)
}

extern "C" fn decide(handle: *mut c_void, name: *const c_char) -> Decision {
    // SAFETY: null, or what the caller of `dlsym` answers for.
    let Some((name, ours)) = (unsafe { named(name) }) else {
        return Decision { go_on: DLSYM.address(), answer: null_mut() };
    };
    // SAFETY: the caller of `dlsym` answers for its handle, and the others are the loader's too.
    answered(handle, name, ours, |handle| unsafe { libc_own::dlsym(handle, name) })
}

extern "C" fn decide_version(handle: *mut c_void, name: *const c_char, version: *const c_char) -> Decision {
    // SAFETY: null, or what the caller of `dlvsym` answers for.
    let named = unsafe { named(name) }.filter(|(_, ours)| ours.library != Library::Runtime && !version.is_null());
    // The version of a runtime's function tells which runtime is meant, which the hook could not tell any more.
    let Some((name, ours)) = named else {
        return Decision { go_on: DLVSYM.address(), answer: null_mut() };
    };
    // SAFETY: not null, and the caller of `dlvsym` answers for it.
    let version = unsafe { CStr::from_ptr(version) };
    // SAFETY: the caller of `dlvsym` answers for its handle, and the others are the loader's too.
    answered(handle, name, ours, |handle| unsafe { libc_own::dlvsym(handle, name, version) })
}

/// Name that is hooked, with its hook.
///
/// # Safety
/// `name` is null or a string that ends with a zero.
unsafe fn named<'a>(name: *const c_char) -> Option<(&'a CStr, Ours)> {
    if name.is_null() {
        return None;
    }
    // SAFETY: not null, and the caller answers for the rest.
    let name = unsafe { CStr::from_ptr(name) };
    ours(name).map(|ours| (name, ours))
}

fn answered(
    handle: *mut c_void,
    name: &CStr,
    ours: Ours,
    look_up: impl Fn(*mut c_void) -> Option<NonNull<c_void>>,
) -> Decision {
    let answer = answer(handle, name, ours, look_up);
    Decision { go_on: null_mut(), answer: answer.map_or(null_mut(), NonNull::as_ptr) }
}

/// Answers with the hook in place of the real function, and only of that: a handle that leads to another function of
/// that name (a second driver in a namespace of its own, say) keeps its meaning. `dlerror` reports the last call of the
/// loader, so that has to be the one that decides.
fn answer(
    handle: *mut c_void,
    name: &CStr,
    ours: Ours,
    look_up: impl Fn(*mut c_void) -> Option<NonNull<c_void>>,
) -> Option<NonNull<c_void>> {
    let own = ours.library.own(name, |library| look_up(library.as_ptr()));
    let asked_for_any = handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT;
    let found = if asked_for_any { own.or(Some(ours.address)) } else { look_up(handle) }?;
    if found != ours.address && Some(found) != own {
        return Some(found);
    }
    match own {
        None => lacking(name),
        // The handle tells which of two runtimes is meant, which the hook could not tell any more.
        Some(_) if ours.library == Library::Runtime && found != ours.address && !asked_for_any => Some(found),
        Some(_) if crate::active() => Some(ours.address),
        Some(own) => Some(own),
    }
}

/// Null, with the loader's error for `dlerror`: a look-up in a library that surely lacks the name.
fn lacking(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: a string that ends with a zero, of a library that is there.
    let handle = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    // SAFETY: the handle is the loader's, and libc is never unloaded.
    unsafe { libc_own::dlsym(handle, name) }
}
