//! A control group under limits, and a program in a sandbox in it: what a start of a model is, without the model.

use super::{ONLY_ROOT, system};
use crate::Settings;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use omni_cgroup::{CgroupPaths, Cgroupfs, CpuShare, Driver, Group, GroupName, Limits, Part};
use omni_log::chain;
use omni_machine::{Cgroups, Layout, Probe};
use omni_meminfo_fs::{Groups, Shown};
use omni_sandbox::{ProcFiles, Report, Sandbox, SandboxIo, SandboxSpec, cgroup_view};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

/// Beginning of the names of groups; the process's id follows.
const NAME: &str = "probe-";
/// Limits of every kind that a model has; far more than the program needs.
const LIMITS: Limits = Limits { memory_bytes: Some(64 << 20), pids: Some(32), cpu_millis: Some(1000) };
/// Program that runs in the sandbox: every system has it, and it ends at once.
const PROGRAM: [&str; 3] = ["/bin/sh", "-c", "exit 0"];
/// Why nothing was tried in a group.
const NO_GROUP: &str = "there is no control group for it";
/// How long that may take; it takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// Probes the control groups, and whether a sandbox can be made.
pub(super) fn probe(settings: &Settings, root: bool) -> (Cgroups, Probe) {
    // Beside the node's own, which may be in use.
    let driver = Cgroupfs::detect(&format!("{}-probe", settings.config.node.cgroup_parent));
    let layout = driver.as_ref().map(|driver| layout(driver.root())).map_err(|error| chain(error)).into();
    let untried = |why: &str| (Probe::Untried(why.to_owned()), Probe::Untried(why.to_owned()));
    let (limits, (processors, sandbox)) = match driver {
        _ if !root => (Probe::Untried(ONLY_ROOT.to_owned()), untried(ONLY_ROOT)),
        Err(error) => (Probe::Fails(chain(&error)), untried(NO_GROUP)),
        Ok(driver) => in_group(settings, &driver).unwrap_or_else(|error| (Probe::Fails(error), untried(NO_GROUP))),
    };
    // Chosen, not tried: a connection to systemd has threads, and a sandbox is made in this process.
    let chosen = settings.drivers().map(|drivers| (drivers.name().to_owned(), drivers.why_files().map(str::to_owned)));
    let driver = chosen.map_err(|error| chain(&error)).into();
    (Cgroups { layout, driver, limits, processors, confined: system::confined("cgroup") }, sandbox)
}

const fn layout(root: &CgroupPaths) -> Layout {
    match root {
        CgroupPaths::V2 { .. } => Layout::Unified,
        CgroupPaths::V1 { unified: Some(_), .. } => Layout::Hybrid,
        CgroupPaths::V1 { unified: None, .. } => Layout::Legacy,
    }
}

/// Makes and removes a group, and probes in it. An error is that of its making.
fn in_group(settings: &Settings, driver: &Cgroupfs) -> Result<(Probe, (Probe<usize>, Probe)), String> {
    let made = || -> Result<(CgroupPaths, Group), omni_cgroup::Error> {
        remove_old(driver)?;
        let paths = driver.create(&GroupName::new(&format!("{NAME}{}", std::process::id()), Part::Model)?, &LIMITS)?;
        let group = Group::open(&paths)?;
        Ok((paths, group))
    };
    let (paths, group) = made().map_err(|error| chain(&error))?;
    let tried = (processors(driver, &paths).into(), sandbox(settings, &paths, &group).into());
    let removed = group.kill().and_then(|()| driver.remove(&paths)).and_then(|()| driver.remove_parent());
    Ok((removed.map_err(|error| chain(&error)).into(), tried))
}

/// Keeps the group to each processor in turn.
fn processors(driver: &Cgroupfs, paths: &CgroupPaths) -> Result<usize, String> {
    let told = |error: omni_cgroup::Error| chain(&error);
    let all = driver.processors().map_err(told)?;
    let share = CpuShare::open(paths).map_err(told)?.ok_or("there is no cpuset controller")?;
    all.iter().try_for_each(|one| share.keep_to(&[one].into_iter().collect())).map_err(told)?;
    Ok(all.len())
}

/// Removes groups of probes that were killed.
fn remove_old(driver: &Cgroupfs) -> Result<(), omni_cgroup::Error> {
    let is_old = |name: &&String| {
        let pid = name.strip_prefix(NAME).and_then(|pid| pid.parse::<u32>().ok());
        pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
    };
    driver.list()?.iter().filter(is_old).try_for_each(|name| driver.destroy(name))
}

/// Runs the program as an instance's: with files over those of `/proc`, a network of its own and a user of its own.
fn sandbox(settings: &Settings, paths: &CgroupPaths, group: &Group) -> Result<(), String> {
    let uid = settings.source_uid();
    let spec = SandboxSpec {
        hostname: "probe".to_owned(),
        uid,
        gid: uid,
        binds: Vec::new(),
        devices: Vec::new(),
        cache: None,
        weights: None,
        tmp_bytes: 1 << 20,
        host_network: false,
        env: Vec::new(),
        argv: PROGRAM.map(str::to_owned).into(),
        cwd: "/".into(),
    };
    let null = File::options().write(true).open("/dev/null").map_err(|error| chain(&error))?;
    // Where there is no FUSE, that is said for itself; everything else is tried all the same.
    let (mount, connection) = omni_meminfo_fs::prepare().ok().unzip();
    let shown = Shown::by_limit(LIMITS.cpu_millis.unwrap_or(u32::MAX)).map_err(|error| chain(&error))?;
    let io = SandboxIo {
        stdout: null.as_fd(),
        stderr: null.as_fd(),
        engine: None,
        proc_files: mount.as_ref().map(|mount| ProcFiles { mount: mount.as_fd(), processors: shown.numbers() }),
        gpu: None,
        zygote: false,
        group,
    };
    let sandbox = omni_sandbox::spawn(&spec, &io).map_err(|error| chain(&error))?;
    drop(mount);
    let view = cgroup_view(paths, LIMITS.memory_bytes.unwrap_or(0), shown).map_err(|error| chain(&error))?;
    let server = connection.map(|connection| connection.serve(Groups::new(view))).transpose();
    let server = server.map_err(|error| chain(&error))?;
    let ended = wait_for_end(&sandbox);
    // Close the server before the sandbox is waited for: a process that still reads must get an error.
    drop(server);
    ended
}

fn wait_for_end(sandbox: &Sandbox) -> Result<(), String> {
    let patience = PollTimeout::try_from(PATIENCE).unwrap_or(PollTimeout::MAX);
    match poll(&mut [PollFd::new(sandbox.pidfd.as_fd(), PollFlags::POLLIN)], patience) {
        Ok(0) => return Err(format!("{} did not end within {PATIENCE:?}", PROGRAM.join(" "))),
        Ok(_) | Err(Errno::EINTR) => {}
        Err(errno) => return Err(format!("wait for the sandbox: {errno}")),
    }
    let mut end = Err("the sandbox ended and did not say why".to_owned());
    while let Ok(Some((_, report))) = sandbox.reports.receive() {
        match report {
            Report::Failed(step) => end = Err(step),
            Report::Ended(0) => end = Ok(()),
            Report::Ended(status) => end = Err(format!("{} ended with status {status:#x}", PROGRAM.join(" "))),
            // The note says that there is no Landlock, which is said for itself.
            Report::Note(_) | Report::Executing | Report::Orphan { .. } => {}
        }
    }
    end
}
