//! Locks that keep a folder, and the node's control groups, to one launcher. Called once at the start, before anything
//! is looked at.
//!
//! A launcher that was killed leaves its locks for moments to a process that it was about to start: the copies of the
//! descriptors close when that executes its program. So a lock that is not free is waited for a little.

use super::error::{LauncherError, at};
use super::keeper::ALREADY_RUNNING;
use omni_cgroup::{Claim, Drivers};
use omni_dir::Dir;
use std::fs::{self, File, TryLockError};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// The file in a folder.
const NAME: &str = "launcher.lock";
/// How long to wait for the lock of a launcher that was killed, and how often to look.
const WITHIN: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(20);

/// Locks a folder. The lock's file names its holder, and stays: removed, it could be locked by a process that waits for
/// it and, made again, by another.
pub(super) fn lock(folder: &Path) -> Result<File, LauncherError> {
    let path = folder.join(NAME);
    let file = Dir::open(folder).and_then(|dir| dir.own_file(NAME, 0o600)).map_err(at("open", &path))?;
    let take = || match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(LauncherError::AlreadyRunning { folder: folder.to_owned() }),
        Err(TryLockError::Error(error)) => Err(at("lock", &path)(error)),
    };
    unless_taken(take, || holder_lives(&path))?;
    file.set_len(0).map_err(at("write", &path))?;
    file.write_all_at(std::process::id().to_string().as_bytes(), 0).map_err(at("write", &path))?;
    Ok(file)
}

/// Takes the holder's name out of a lock's file: the next launcher waits for the lock, which is free in a moment.
pub(super) fn release(lock: &File) {
    let _ = lock.set_len(0); // on a disk that fails the next one is told that this one is here
}

/// Tests that the launcher that the lock's file names still lives.
fn holder_lives(path: &Path) -> bool {
    let pid = fs::read_to_string(path).ok().and_then(|text| text.parse::<u32>().ok());
    pid.is_some_and(|pid| Path::new("/proc").join(pid.to_string()).exists())
}

/// Claims the node's control groups. The claim does not name its holder.
pub(super) fn claim(driver: &Drivers) -> Result<Claim, LauncherError> {
    unless_taken(|| Ok(driver.claim()?), || false)
}

/// Takes what may be another's for a moment more, unless that one lives.
fn unless_taken<T>(take: impl Fn() -> Result<T, LauncherError>, lives: impl Fn() -> bool) -> Result<T, LauncherError> {
    let deadline = Instant::now() + WITHIN;
    loop {
        match take() {
            Err(error) if error.exit_code() == ALREADY_RUNNING && Instant::now() <= deadline && !lives() => {
                thread::sleep(AGAIN);
            }
            taken => return taken,
        }
    }
}
