//! Retries of calls that resolve a path beneath a directory.

use nix::errno::Errno;

/// Makes a call again that has answered `EAGAIN` or `EINTR`, up to a bound: `RESOLVE_BENEATH` answers so when anything on the
/// machine is renamed meanwhile, at any time.
///
/// # Errors
/// The last answer.
pub fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..64 {
        match call() {
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            other => return other,
        }
    }
    call()
}
