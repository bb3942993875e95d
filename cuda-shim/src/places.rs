//! Paths of the instance's files: fixed inside a sandbox, elsewhere from the environment.
//!
//! A program inside a sandbox finds all of them without any variable, and no variable leads it to another account.

use omni_gpu_protocol::env::{self, inside};
use std::ffi::OsString;
use std::path::Path;
use std::sync::OnceLock;

/// `true` in the sandbox of a GPU model: the accounting file is there. Looked up once.
pub(crate) fn is_sandboxed() -> bool {
    static IS_SANDBOXED: OnceLock<bool> = OnceLock::new();
    *IS_SANDBOXED.get_or_init(|| Path::new(inside::ACCOUNT).exists())
}

/// Accounting file.
pub(crate) fn account() -> Option<OsString> {
    place(inside::ACCOUNT, env::ACCOUNT)
}

/// Control socket.
pub(crate) fn control() -> Option<OsString> {
    place(inside::CONTROL, env::CONTROL)
}

/// Directory of the driver's own libraries.
pub(crate) fn driver() -> Option<OsString> {
    place(inside::DRIVER, env::DRIVER)
}

fn place(fixed: &str, variable: &str) -> Option<OsString> {
    if is_sandboxed() {
        return Some(fixed.into());
    }
    std::env::var_os(variable).filter(|path| !path.is_empty())
}
