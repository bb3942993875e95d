//! `libomni_cuda.so`, preloaded into GPU models: limits, accounts and moves their GPU memory.
//!
//! Calls of the driver reach a function of this library in place of the driver's own, whichever way the caller found
//! it: by linking, by `dlsym`, or by `cuGetProcAddress`. It counts, and calls the real one. Outside a sandbox, with
//! none of the shim's environment variables set, every call goes straight on.
//!
//! Modules, from the bottom up; none uses one above it:
//!
//! - [`process`], [`places`], [`loader`], [`abi`]: values per process, paths, symbol tables, types of the driver;
//! - [`real`], [`driver`]: the real driver's functions, and those that the shim itself calls;
//! - [`ranges`], [`account`]: the allocations of this process, and the memory of the whole instance with its limit;
//! - [`moves`], [`control`]: eviction and restore, on the worker's commands;
//! - [`hooks`], [`runtime`], [`nvml`]: functions that replace the driver's, the CUDA runtime's and NVML's;
//! - [`resolve`]: the look-ups by which callers find them.

mod abi;
mod account;
mod control;
mod driver;
mod hooks;
mod loader;
mod moves;
mod nvml;
mod places;
mod process;
mod ranges;
mod real;
mod resolve;
mod runtime;
#[cfg(not(test))]
mod unwinder;

use omni_gpu_protocol::env;
use std::sync::OnceLock;

/// Membership of an instance. Read once: what a program does to its environment later changes nothing.
pub(crate) fn active() -> bool {
    static ACTIVE: OnceLock<bool> = OnceLock::new();
    *ACTIVE.get_or_init(|| {
        let ours = [env::LIMIT_BYTES, env::MODE, env::ACCOUNT, env::CONTROL, env::DRIVER];
        // Programs of another libc never reach the driver, which needs glibc; and locks that processes share are each
        // libc's own.
        loader::libc_own::is_glibc()
            && (places::is_sandboxed() || ours.iter().any(|name| std::env::var_os(name).is_some()))
    })
}
