//! Fixtures: a parent group of its own for each test, and children inside groups. Everything is gone when the test
//! ends.
#![allow(unsafe_code, reason = "children join their group between fork and exec, as in the sandbox")]

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use omni_cgroup::{Cgroupfs, Driver, Group, GroupName, Part};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Removes everything below it when it is dropped, also after a failed assertion.
pub(crate) struct Parent {
    pub(crate) driver: Cgroupfs,
}

impl Parent {
    pub(crate) fn new(test: &str) -> Self {
        let name = format!("omni-test-{}-{test}", std::process::id());
        Self { driver: Cgroupfs::detect(&name).expect("cgroups and root") }
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        let left = self.driver.list().unwrap_or_default();
        let cleaned = left.iter().try_for_each(|instance| self.driver.destroy(instance));
        let result = cleaned.and_then(|()| self.driver.remove_parent());
        if !std::thread::panicking() {
            result.expect("cleaned up");
        }
    }
}

pub(crate) fn model(instance: &str) -> GroupName {
    GroupName::new(instance, Part::Model).unwrap()
}

/// Shell that joins the group before it does anything else.
pub(crate) fn shell(group: &Arc<Group>, script: &str) -> Child {
    spawn(group, &["sh", "-c", script])
}

/// Python process that joins the group first.
pub(crate) fn python(group: &Arc<Group>, script: &str) -> Child {
    spawn(group, &["python3", "-c", script])
}

fn spawn(group: &Arc<Group>, argv: &[&str]) -> Child {
    let mut command = Command::new(argv[0]);
    command.args(&argv[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let group = Arc::clone(group);
    // Directory that a sandbox is cloned into.
    let unified =
        group.paths().unified().map(|dir| File::options().write(true).open(dir.join("cgroup.procs")).unwrap());
    let join = move || {
        group.join_self()?;
        unified.as_ref().map_or(Ok(()), |mut procs| procs.write_all(b"0"))
    };
    // SAFETY: between fork and exec the closure only writes to open descriptors, as `join_self` promises.
    unsafe { command.pre_exec(join) };
    command.spawn().expect("spawned")
}

pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    child.wait().unwrap()
}

/// Waits for one line of the child's output.
pub(crate) fn line(child: &mut Child) {
    let mut line = String::new();
    let read = BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).unwrap();
    assert!(read > 0, "the child ended early");
}

pub(crate) fn readable(fd: &impl AsFd, limit: Duration) -> bool {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::try_from(limit).unwrap()).unwrap() == 1
}
