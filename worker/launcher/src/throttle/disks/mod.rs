//! Limits the writes of models that write to their cache directories without end, so that the others do not feel the
//! work that they cause in the kernel (`docs/decisions/disks.md`).
//!
//! A thread of the launcher looks four times a second at the devices of all cache directories; [`policy`] decides.
//!
//! Invariants: a device is one of a cache directory, which only its model uses; and all state is in the kernel, so that
//! the death of a launcher loses nothing.

mod policy;

use crate::sandbox_paths::CACHE;
use omni_cgroup::{DiskShare, Driver, Group, GroupName, Part};
use policy::{Change, Policy, RATE, Use};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Between two looks.
const TICK: Duration = Duration::from_millis(250);
/// A group whose processes have no cache directory after so many looks has none: its sandbox is made in a few milliseconds.
const LOOKS: u32 = 20;
/// Devices of cache directories, by their major number (Documentation/admin-guide/devices.txt): nothing else is
/// touched, for anything that a model has put at the place of its directory.
const LOOP: &str = "7:";

/// The thread. Dropped, it lets all go and ends.
#[derive(Debug)]
pub(crate) struct Disks {
    end: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// State of a control group.
enum Seen {
    /// May still come to have a cache directory.
    Begins {
        looks: u32,
    },
    /// Has none, or none whose device could be limited.
    Without,
    Has(Watched),
}

struct Watched {
    share: DiskShare,
    written: u64,
}

impl Disks {
    /// Starts throttling; `images` is the folder of the cache directories' images.
    ///
    /// # Errors
    /// The kernel has no thread left, or there is no such folder.
    pub(crate) fn watch(cgroups: Arc<dyn Driver>, images: &Path) -> io::Result<Self> {
        let images = fs::canonicalize(images)?; // as the kernel names them
        let (end, ended) = sync_channel(1); // nothing is ever said by it
        let thread = thread::Builder::new().name("disks".to_owned()).spawn(move || run(&*cgroups, &images, &ended))?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it has said why, if it panicked
        }
    }
}

fn run(cgroups: &dyn Driver, images: &Path, ended: &Receiver<()>) {
    let mut groups: BTreeMap<String, Seen> = BTreeMap::new();
    let mut policy = Policy::default();
    let mut looked = Instant::now();
    while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
        let Ok(names) = cgroups.list() else { continue };
        let gone: Vec<Seen> = groups.extract_if(.., |name, _| !names.contains(name)).map(|(_, seen)| seen).collect();
        for watched in gone.iter().filter_map(Seen::watched) {
            watched.release();
            begin_anew(watched.share.device(), &groups, &mut policy);
        }
        for name in names {
            let seen = groups.entry(name.clone()).or_insert(Seen::Begins { looks: 0 });
            if let Seen::Begins { looks } = *seen {
                *seen = look_for(cgroups, images, &name, looks);
                // Decisions of an earlier launcher are not known.
                if let Some(device) = seen.watched().map(|watched| watched.share.device().to_owned()) {
                    begin_anew(&device, &groups, &mut policy);
                }
            }
        }
        let within = looked.elapsed();
        looked = Instant::now();
        let uses = groups.values_mut().filter_map(Seen::look).collect();
        for (device, change) in policy.tick(within, &uses) {
            for (name, watched) in groups.iter().filter_map(|(name, seen)| Some((name, seen.watched()?))) {
                if watched.share.device() == device {
                    watched.carry_out(name, change);
                }
            }
        }
    }
    groups.values().filter_map(Seen::watched).for_each(Watched::release);
}

/// Resets a device when its users change: no group is limited, and all of the device may be written again. With version
/// 2 the limit is each group's own, so every one is released.
fn begin_anew(device: &str, groups: &BTreeMap<String, Seen>, policy: &mut Policy) {
    let users = groups.values().filter_map(Seen::watched).filter(|watched| watched.share.device() == device);
    users.for_each(Watched::release);
    policy.forget(device);
}

/// A group whose device is not known yet.
fn look_for(cgroups: &dyn Driver, images: &Path, name: &str, looks: u32) -> Seen {
    let Ok(name) = GroupName::new(name, Part::Model) else { return Seen::Without };
    let paths = cgroups.paths(&name);
    let processes = Group::open(&paths).and_then(|group| group.processes()).unwrap_or_default();
    let Some(first) = processes.into_iter().min() else { return Seen::Begins { looks } };
    let mounts = fs::read_to_string(format!("/proc/{first}/mountinfo")).unwrap_or_default();
    // Until its sandbox is made it sees the host's mounts, and the host may have a directory of that name.
    let device = device(&mounts).filter(|device| is_of(images, device));
    let share = device.map(|device| DiskShare::open(&paths, device));
    match share {
        Some(Ok(None)) => Seen::Without,
        Some(Ok(Some(share))) => match share.written() {
            Ok(written) => Seen::Has(Watched { share, written }),
            Err(_) => Seen::Begins { looks },
        },
        Some(Err(_)) | None if looks < LOOKS => Seen::Begins { looks: looks + 1 },
        Some(Err(_)) | None => Seen::Without,
    }
}

/// Tests that the image behind a loop device is in this folder (Documentation/ABI/testing/sysfs-block-loop).
fn is_of(images: &Path, device: &str) -> bool {
    let image = fs::read_to_string(format!("/sys/dev/block/{device}/loop/backing_file"));
    image.is_ok_and(|image| Path::new(image.trim_end()).starts_with(images))
}

/// The device of the cache directory, from a model's `/proc/PID/mountinfo` (proc_pid_mountinfo(5)). Pure.
fn device(mounts: &str) -> Option<&str> {
    let mut fields = mounts.lines().map(|line| line.split(' '));
    let device = fields.find_map(|mut fields| {
        let device = fields.nth(2)?;
        (fields.nth(1)? == CACHE).then_some(device)
    });
    device.filter(|device| device.starts_with(LOOP))
}

impl Seen {
    fn watched(&self) -> Option<&Watched> {
        match self {
            Self::Has(watched) => Some(watched),
            Self::Begins { .. } | Self::Without => None,
        }
    }

    /// Bytes written to its device since the last look.
    fn look(&mut self) -> Option<(String, Use)> {
        let Self::Has(Watched { share, written }) = self else { return None };
        let now = share.written().ok()?;
        let before = std::mem::replace(written, now);
        Some((share.device().to_owned(), Use { bytes: share.bytes(), written: now.saturating_sub(before) }))
    }
}

impl Watched {
    fn carry_out(&self, group: &str, change: Change) {
        match change {
            Change::Limit => {
                tracing::info!(group, rate = RATE, "writes to its cache directory without end, and is slowed down");
                log_failure(self.share.slow_down(RATE));
            }
            Change::Release => {
                tracing::info!(group, "may write to its cache directory as fast as it can again");
                self.release();
            }
        }
    }

    fn release(&self) {
        log_failure(self.share.let_go());
    }
}

/// A group that is gone takes its limit with it.
fn log_failure(done: Result<(), omni_cgroup::Error>) {
    if let Err(error) = done {
        tracing::debug!(error = omni_log::chain(&error), "a device keeps its limit");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_of_a_cache_directory() {
        let line = |device: &str, place: &str| format!("402 388 {device} / {place} rw,nosuid - ext4 /dev/loop3 rw");
        for (mounts, expected) in [
            (format!("{}\n{}\n", line("254:0", "/"), line("7:3", "/cache")), Some("7:3")),
            (line("7:3", "/cache/in"), None),
            (line("254:0", "/cache"), None),
            (String::new(), None),
            ("1 2 7:3".to_owned(), None),
        ] {
            assert_eq!(device(&mounts), expected, "{mounts}");
        }
    }
}
