//! Processes of a group: whether there are any, killing them, and waiting for their end. Works on the directories of
//! one group, some of which may be missing already.

use crate::Error;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use omni_process::pidfd;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Rounds of reading and signalling. Each ends every process that the round before saw; one that forks meanwhile is
/// stopped by its own signal before it can fork again, so two or three are enough in practice.
const ROUNDS: u32 = 100;
/// Descriptors held at once while killing.
const BATCH: usize = 256;
/// Longest pause between two reads where the kernel has nothing to wait on.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// Sends SIGKILL to every process of the group. Returns before they are gone: see [`wait_empty`].
pub(crate) fn kill(dirs: &[&Path]) -> Result<(), Error> {
    for dir in dirs {
        let file = dir.join("cgroup.kill");
        match fs::OpenOptions::new().write(true).open(&file).and_then(|mut kill| io::Write::write_all(&mut kill, b"1"))
        {
            Err(error) if gone(&error) => {}
            result => result.map_err(Error::io("write", &file))?,
        }
    }
    // On v1 without a unified tree nothing above existed, and in any layout a process may have joined in part.
    dirs.iter().try_for_each(|dir| kill_listed(dir))
}

fn kill_listed(dir: &Path) -> Result<(), Error> {
    let mut signalled = HashSet::new();
    for _ in 0..ROUNDS {
        let mut fresh: Vec<i32> = read_procs(dir)?.into_iter().filter(|pid| !signalled.contains(pid)).collect();
        if fresh.is_empty() {
            return Ok(());
        }
        fresh.truncate(BATCH);
        // A number may be another process by the time it is signalled. A descriptor cannot: open it, see that the
        // number is still a member, and only then signal.
        let open: Vec<(i32, OwnedFd)> =
            fresh.iter().filter_map(|pid| Some((*pid, pidfd::open(Pid::from_raw(*pid)).ok()?))).collect();
        let members: HashSet<i32> = read_procs(dir)?.into_iter().collect();
        for (pid, fd) in open {
            if members.contains(&pid) {
                match pidfd::send_signal(fd, Signal::SIGKILL) {
                    Ok(()) | Err(Errno::ESRCH) => {}
                    Err(error) => return Err(Error::io("kill a process of", dir)(error)),
                }
            }
        }
        signalled.extend(fresh);
    }
    Ok(())
}

/// No process is left in any of the directories (or below, on v2).
pub(crate) fn is_empty(dirs: &[&Path]) -> Result<bool, Error> {
    for dir in dirs {
        if !read_procs(dir)?.is_empty() || populated(dir)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Waits until the group is empty.
///
/// # Errors
/// [`Error::Busy`] when it is not within `limit`.
pub(crate) fn wait_empty(dirs: &[&Path], limit: Duration) -> Result<(), Error> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_millis(1);
    // Watched before the first read, so that no change is missed between read and wait.
    let events = dirs.iter().find_map(|dir| File::open(dir.join("cgroup.events")).ok());
    loop {
        if let Some(events) = &events {
            consume(events);
        }
        if is_empty(dirs)? {
            return Ok(());
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let dir = dirs.first().map(|dir| dir.to_path_buf()).unwrap_or_default();
            return Err(Error::Busy { dir, waited: limit });
        }
        match &events {
            // The v1 directories follow within a moment of the unified one: read again after the pause at the latest.
            Some(events) => wait_for_change(events, pause.min(left)),
            None => thread::sleep(pause.min(left)),
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Removes one directory; the kernel holds it busy for a moment after its last process.
pub(crate) fn remove_dir(dir: &Path, limit: Duration) -> Result<(), Error> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_millis(1);
    loop {
        match fs::remove_dir(dir) {
            Ok(()) => return Ok(()),
            Err(error) if gone(&error) => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::ResourceBusy => return Err(Error::io("remove", dir)(error)),
            Err(_) if Instant::now() >= end => return Err(Error::Busy { dir: dir.to_owned(), waited: limit }),
            Err(_) => thread::sleep(pause),
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Process numbers in the reader's namespace; none where the directory is gone. Opened anew each time: an open v1 file
/// keeps the list of its first reading.
pub(crate) fn read_procs(dir: &Path) -> Result<Vec<i32>, Error> {
    let file = dir.join("cgroup.procs");
    let Some(text) = read(&file)? else { return Ok(Vec::new()) };
    let number = |line: &str| line.parse::<i32>().map_err(|_| Error::content(&file, line));
    // Zero stands for a process outside the reader's namespace.
    text.lines().map(number).filter(|pid| !matches!(pid, Ok(0))).collect()
}

/// `cgroup.events` reports processes in the group or one below it; false where there is no such file.
fn populated(dir: &Path) -> Result<bool, Error> {
    let file = dir.join("cgroup.events");
    let Some(text) = read(&file)? else { return Ok(false) };
    match text.lines().find_map(|line| line.strip_prefix("populated ")) {
        Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(_) | None => Err(Error::content(&file, &text)),
    }
}

fn read(file: &Path) -> Result<Option<String>, Error> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if gone(&error) => Ok(None),
        Err(error) => Err(Error::io("read", file)(error)),
    }
}

/// Error of a missing file, or of a file of a directory that was removed while it was open.
fn gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(nix::libc::ENODEV)
}

/// Reads, which re-arms the notification.
fn consume(mut events: &File) {
    let mut buffer = [0; 64];
    let _ = io::Seek::rewind(&mut events);
    let _ = events.read(&mut buffer);
}

fn wait_for_change(events: &File, limit: Duration) {
    let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
    // Interrupted or not: the caller looks again, until its own deadline.
    let _ = poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLPRI)], timeout);
}
