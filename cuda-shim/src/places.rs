//! Where the parts of the instance are: at the fixed places of a sandbox, and only elsewhere where the environment says.
//!
//! So a program inside finds all of it without any variable, and none of its variables leads to another account.

use omni_gpu_protocol::env::{self, inside};
use std::ffi::OsString;
use std::path::Path;
use std::sync::OnceLock;

/// Whether this process is in the sandbox of a GPU model: the accounting file is there. Looked up once.
pub(crate) fn is_sandboxed() -> bool {
    static IS_SANDBOXED: OnceLock<bool> = OnceLock::new();
    *IS_SANDBOXED.get_or_init(|| Path::new(inside::ACCOUNT).exists())
}

/// The accounting file.
pub(crate) fn account() -> Option<OsString> {
    place(inside::ACCOUNT, env::ACCOUNT)
}

/// The control socket.
pub(crate) fn control() -> Option<OsString> {
    place(inside::CONTROL, env::CONTROL)
}

/// The directory of the driver's own libraries.
pub(crate) fn driver() -> Option<OsString> {
    place(inside::DRIVER, env::DRIVER)
}

fn place(fixed: &str, variable: &str) -> Option<OsString> {
    if is_sandboxed() {
        return Some(fixed.into());
    }
    std::env::var_os(variable).filter(|path| !path.is_empty())
}
