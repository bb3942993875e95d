//! Checks of a process before it becomes an instance's. The zygote is foreign code as soon as it has imported a
//! package, so only the kernel's information counts.

use nix::unistd::Pid;
use omni_meminfo_fs::name_in;
use omni_process::pidfd;
use std::fs;
use std::os::fd::OwnedFd;

/// Process that came from the zygote and belongs to no instance yet.
#[derive(Debug)]
pub(super) struct Newborn {
    /// Descriptor of the process, and never of another with the same number.
    pub(super) pidfd: OwnedFd,
    /// Number in the sandbox, by which pid 1 will report its end.
    pub(super) inner: i32,
}

/// Checks that `pid` is a process in the zygote's own control group `group`. Only pid 1 of the sandbox could have put it
/// there, by being its ancestor: an instance's processes have been moved to the instance's group before they began.
pub(super) fn check(pid: i32, group: &str) -> Result<Newborn, String> {
    // From here on the number is its own, or the reads below fail.
    let pidfd = pidfd::open(Pid::from_raw(pid)).map_err(|errno| format!("process {pid} is gone: {errno}"))?;
    let read = |file: &str| {
        fs::read_to_string(format!("/proc/{pid}/{file}")).map_err(|error| format!("process {pid} is gone: {error}"))
    };
    if name_in(&read("cgroup")?) != Some(group) {
        return Err(format!("process {pid} is not one that the zygote has just made"));
    }
    let inner = pidfd::namespace_pid(&read("status")?).ok_or_else(|| format!("process {pid} has ended"))?;
    Ok(Newborn { pidfd, inner })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_another_sandbox_is_refused() {
        let own = std::process::id().cast_signed();
        assert!(check(own, "zygote-0123456789ab/model").unwrap_err().contains("not one that the zygote"));
        assert!(check(i32::MAX, "zygote-0123456789ab/model").unwrap_err().contains("is gone"));
    }
}
