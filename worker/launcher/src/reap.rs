//! The end of an instance: what is left of it goes, and how it ended is found out. Runs in a thread of its own, because
//! the kernel may take its time to empty a control group.

use super::runtime_dir::RuntimeDir;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use omni_cgroup::Driver;
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::id::InstanceId;

/// Removes everything of an instance whose worker is gone or must go; says how it ended. The record goes last: a launcher
/// that is killed before does this again.
pub(super) fn reap(id: &InstanceId, worker: Option<Pid>, driver: &dyn Driver, runtime_dir: &RuntimeDir) -> ExitCause {
    reap_groups(id.as_str(), id, worker, driver, runtime_dir)
}

/// As [`reap`], for what has its control groups under another name than its id.
pub(super) fn reap_groups(
    groups: &str,
    id: &InstanceId,
    worker: Option<Pid>,
    driver: &dyn Driver,
    runtime_dir: &RuntimeDir,
) -> ExitCause {
    if let Err(error) = driver.destroy(groups) {
        tracing::error!(instance = %id, error = omni_log::chain(&error), "the control groups of an instance are left");
    }
    if let Some(pid) = worker {
        // Not our child when an earlier launcher started it; then another process reaps it.
        let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
    }
    let cause = runtime_dir.exit_cause(id);
    if let Err(error) = runtime_dir.remove(id) {
        tracing::error!(instance = %id, %error, "files of an instance are left");
    }
    cause
}
