//! The new process, from clone to engine: every step in its order.
//!
//! Runs in the copy made by [`super::spawn`], first as root in fresh namespaces. The order is: control group, mounts,
//! pivot, then privileges from the outside in (no_new_privs, Landlock, capabilities, user), the parent-death signal
//! (changing the user clears it) and, last, the system call filter. A step that fails is reported and ends everything:
//! there is no half sandbox.

use super::mount::Mount;
use super::report::{Report, send};
use super::root::{self, CACHE_HOME, PreparedMounts};
use super::seccomp::{Filter, forbid_unix_sockets};
use super::step::{Step, StepError, invalid};
use super::{ProcFiles, Program, kernel, landlock, pid1, privileges, weights};
use crate::spec::SandboxSpec;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::sys::stat::{Mode, umask};
use nix::unistd::sethostname;
use omni_cgroup::Group;
use omni_machine::LANDLOCK_SCOPES;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::{fs, io};

/// Added to a model's badness: when the machine itself runs out of memory, models go before the node's own processes.
const OOM_SCORE_ADJ: &[u8] = b"500";

/// How often a closed connection whose peer reads nothing asks again, in this network namespace.
const ORPHAN_RETRIES: &str = "/proc/sys/net/ipv4/tcp_orphan_retries";

/// All that the child needs, made before the clone.
pub(super) struct Start<'a> {
    pub(super) spec: &'a SandboxSpec,
    pub(super) program: Program<'a>,
    pub(super) group: &'a Group,
    pub(super) proc_files: Option<ProcFiles<'a>>,
    pub(super) cache: Option<Mount>,
    pub(super) gpu: Option<&'a Mount>,
    pub(super) filter: Filter,
    pub(super) reports: BorrowedFd<'a>,
}

/// The child's whole life. Its exit code, which says nothing: all there is to say is in a report.
pub(super) fn main(start: &Start<'_>) -> i32 {
    if let Err(error) = prepare(start).and_then(|()| pid1::run(&start.program, start.reports)) {
        // Without a reader the worker is gone, and so is this process by its parent-death signal.
        let _ = send(start.reports, &Report::Failed(error.chain()));
    }
    0
}

fn prepare(start: &Start<'_>) -> Result<(), StepError> {
    let Start { spec, .. } = start;
    start.group.join_self().step(|| "join the control group".into())?;
    // Written through the host's `/proc`: the sandbox's own is read-only.
    fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ).step(|| "raise oom_score_adj".into())?;
    privileges::limit()?;
    kernel::close_except(&kept(start)).step(|| "close the worker's descriptors".into())?;
    umask(Mode::empty());
    unshare(CloneFlags::CLONE_NEWCGROUP).step(|| "make a control group namespace".into())?;
    sethostname(&spec.hostname).step(|| format!("set the host name {}", spec.hostname))?;
    if !spec.host_network {
        loopback_up().step(|| "bring up the loop-back interface".into())?;
        give_up_orphans().step(|| format!("write {ORPHAN_RETRIES}"))?;
    }
    root::enter(spec, &PreparedMounts { proc_files: start.proc_files, cache: start.cache.as_ref(), gpu: start.gpu })?;
    umask(Mode::from_bits_truncate(0o022));
    prctl::set_no_new_privs().step(|| "set no_new_privs".into())?;
    let version = landlock::restrict(spec, start.gpu.is_some())?;
    let note = |text: &str| send(start.reports, &Report::Note(text.into())).step(|| "report to the worker".into());
    if version.is_none() {
        note("this kernel has no Landlock: the sandbox stands on mounts, users and namespaces alone")?;
    }
    // Abstract sockets are the network namespace's, and Landlock has no wall around them. A build has no need of Unix
    // sockets; a model has, and an operator who gives it the host's network gives it these.
    let is_open = spec.host_network && version.is_none_or(|version| version < LANDLOCK_SCOPES);
    let is_build = start.program.engine.is_none();
    if is_open && !is_build {
        note("this kernel lets a model with the host's network connect to its abstract sockets; Linux 6.12 would not")?;
    }
    privileges::drop_all(spec)?;
    spec.weights.as_ref().map_or(Ok(()), weights::check_reach)?;
    if spec.cache.is_some()
        && let Err(error) = cache_home()
    {
        note(&format!("cannot make {CACHE_HOME}, where libraries of the model keep what they have loaded: {error}"))?;
    }
    // Nothing of this process may be read by the model, which has the same user.
    prctl::set_dumpable(false).step(|| "forbid tracing".into())?;
    prctl::set_pdeathsig(Signal::SIGKILL).step(|| "set the parent-death signal".into())?;
    if orphaned(start.reports).step(|| "look for the worker".into())? {
        return Err(invalid("the worker died meanwhile".into()));
    }
    SigSet::all().thread_unblock().step(|| "unblock signals".into())?;
    if is_open && is_build {
        forbid_unix_sockets()?;
    }
    start.filter.apply()
}

/// The directory for the caches of libraries, made by the model's user in its own file system: which may be full.
fn cache_home() -> io::Result<()> {
    match fs::create_dir(CACHE_HOME) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

fn kept(start: &Start<'_>) -> Vec<i32> {
    let Program { null, stdout, stderr, engine, .. } = start.program;
    let files = start.proc_files.map(|files| files.mount);
    let needed = [Some(null), Some(stdout), Some(stderr), engine, files, Some(start.reports)];
    let mounts = [start.cache.as_ref(), start.gpu].into_iter().flatten().map(AsFd::as_fd);
    needed.into_iter().flatten().chain(mounts).map(|fd| fd.as_raw_fd()).collect()
}

/// The parent may have died before the parent-death signal was set, and pid 1 cannot ask for its parent.
fn orphaned(reports: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut fds = [PollFd::new(reports, PollFlags::empty())];
    poll(&mut fds, PollTimeout::ZERO)?;
    Ok(fds.iter().any(|fd| fd.any() == Some(true)))
}

/// Programs talk to themselves over 127.0.0.1 (process pools, managers): it has to work in an empty network too.
fn loopback_up() -> Result<(), Errno> {
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    kernel::loopback_up(socket.as_fd())
}

/// Closed connections with unsent data have no descriptor that counts, only buffers: without this they stay for minutes, and
/// a model can have as many as the whole machine may (`tcp_max_orphans`). Their buffers are bounded all the same, so that a
/// machine whose settings cannot be written, as in a container, does without.
fn give_up_orphans() -> io::Result<()> {
    match fs::write(ORPHAN_RETRIES, "1") {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => Ok(()),
        written => written,
    }
}
