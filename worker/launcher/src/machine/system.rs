//! Kernel, identity of this process, and bounds of the system.

use super::tried;
use nix::sys::inotify::{InitFlags, Inotify};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::geteuid;
use omni_config::NodeConfig;
use omni_machine::{Identity, Limits};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// `PROC_CGROUP_INIT_INO` and `PROC_USER_INIT_INO` of `linux/proc_ns.h`: numbers of the machine's own namespaces.
const INITIAL: [(&str, u64); 2] = [("cgroup", 0xEFFF_FFFB), ("user", 0xEFFF_FFFD)];

pub(super) fn kernel() -> String {
    read("/proc/sys/kernel/osrelease").unwrap_or_default()
}

pub(super) fn identity() -> Identity {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = set.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or_default();
    Identity { uid: geteuid().as_raw(), capabilities, confined: confined("user") }
}

/// Tests that this process has another namespace of this kind than the machine's own.
pub(super) fn confined(kind: &str) -> bool {
    let number = fs::metadata(format!("/proc/self/ns/{kind}")).map(|found| found.ino());
    INITIAL.iter().any(|(name, own)| *name == kind && number.as_ref().is_ok_and(|number| number != own))
}

pub(super) fn limits(config: &NodeConfig) -> Limits {
    Limits {
        open_files: getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(_, hard)| hard),
        connections: config.server.connections,
        process_ids: number("/proc/sys/kernel/pid_max"),
        watches: number("/proc/sys/fs/inotify/max_user_watches"),
        watcher: tried(Inotify::init(InitFlags::IN_CLOEXEC).map(drop)),
    }
}

fn number(path: &str) -> Option<u64> {
    read(path)?.parse().ok()
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}
