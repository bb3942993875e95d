//! Unwinder that does not unwind: the symbols that std needs of libgcc, so that the library needs nothing but libc.
//!
//! No function of the shim panics. A panic would end the process here, as it would at the hook in which it began, and
//! its message is written before. The symbols are hidden: programs keep their own unwinder.
//!
//! The reason is musl: its loader reads `LD_PRELOAD` as glibc's does, and ends a program when a preloaded library needs
//! one that is not there. In a sandbox the shim is in `/etc/ld.so.preload`, which is glibc's alone.
#![allow(unsafe_code, reason = "symbols that std is linked to")]

use std::arch::global_asm;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the unwinder is written for x86-64");

// SAFETY: std calls these only while it panics or writes a backtrace. The first answers `_URC_END_OF_STACK`, which is one
// of its answers; the others do not return.
global_asm!(
    ".pushsection .text.omni_unwinder,\"ax\",@progbits",
    ".globl _Unwind_Backtrace",
    ".hidden _Unwind_Backtrace",
    "_Unwind_Backtrace:",
    "mov eax, 5",
    "ret",
    ".irp name, RaiseException, Resume, DeleteException, GetLanguageSpecificData, GetRegionStart, GetTextRelBase, \
     GetDataRelBase, GetIP, GetIPInfo, GetGR, GetCFA, SetGR, SetIP, FindEnclosingFunction",
    ".globl _Unwind_\\name",
    ".hidden _Unwind_\\name",
    "_Unwind_\\name:",
    ".endr",
    "ud2",
    ".popsection",
);
