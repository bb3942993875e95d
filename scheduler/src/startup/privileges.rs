//! Privileges of the process: those of the node's user, for one step or for good.

use super::StartupError;
use nix::errno::Errno;
use nix::unistd::{Gid, Uid, getegid, geteuid, getgroups, setegid, seteuid, setgid, setgroups, setuid};

/// Runs `act` with the rights of the node's user, then becomes root again. Changes the whole process: no other thread runs yet.
pub(super) fn as_user<T>(uid: Uid, gid: Gid, act: impl FnOnce() -> T) -> Result<T, StartupError> {
    let refused = |errno: Errno| StartupError::Drop { uid: uid.as_raw(), source: errno.into() };
    let (own_uid, own_gid, own_groups) = (geteuid(), getegid(), getgroups().map_err(refused)?);
    setgroups(&[]).and_then(|()| setegid(gid)).and_then(|()| seteuid(uid)).map_err(refused)?;
    let done = act();
    seteuid(own_uid).and_then(|()| setegid(own_gid)).and_then(|()| setgroups(&own_groups)).map_err(refused)?;
    Ok(done)
}

/// Drops privileges for good: real, effective and saved ids, supplementary groups; the kernel clears all capabilities with the uid.
pub(super) fn drop_privileges(uid: Uid, gid: Gid) -> Result<(), StartupError> {
    let steps = setgroups(&[]).and_then(|()| setgid(gid)).and_then(|()| setuid(uid));
    steps.map_err(|errno| StartupError::Drop { uid: uid.as_raw(), source: errno.into() })
}
