//! `libomni_cuda.so`: preloaded into GPU models, it limits, accounts and moves their GPU memory.
//!
//! A call of the driver meets one of our functions in place of the driver's own, whichever way the caller found it: by
//! linking, by `dlsym`, or by `cuGetProcAddress`. Ours counts, and calls the real one. Outside a
//! sandbox, with none of our environment variables set, every one of them goes straight on.

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

/// Whether this process belongs to an instance. Read once: what a program does to its environment later changes nothing.
pub(crate) fn active() -> bool {
    static ACTIVE: OnceLock<bool> = OnceLock::new();
    *ACTIVE.get_or_init(|| {
        let ours = [env::LIMIT_BYTES, env::MODE, env::ACCOUNT, env::CONTROL, env::DRIVER];
        // Another libc's programs never reach the driver, which needs glibc; and locks that processes share are each libc's own.
        loader::libc_own::is_glibc()
            && (places::is_sandboxed() || ours.iter().any(|name| std::env::var_os(name).is_some()))
    })
}
