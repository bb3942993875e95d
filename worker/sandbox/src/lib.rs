//! Sandbox: one program in namespaces, users and filters of its own.
//!
//! Called by the worker (`omni-instance`). The way of a start, with one module for each thing:
//!
//! | where | what | module |
//! | --- | --- | --- |
//! | worker | image of the cache directory, its mount, its owners | [`cache`], [`loop_device`], [`idmap`] |
//! | worker | the directory `/gpu` with the accounting file | [`gpu`] |
//! | worker | filter compiled, `clone3` | [`seccomp`], [`kernel`] |
//! | child, root | order of all steps | [`child`] |
//! | child, root | the root it will see | [`root`], [`tree`], [`mount`], [`etc`], [`nvidia`], [`weights`] |
//! | child | Landlock, capabilities, user, limits | [`landlock`], [`privileges`] |
//! | child as pid 1 | starts and reaps the engine | [`pid1`] |
//! | both | reports from the child to the worker | [`report`] |
//! | worker, launcher | files over those of `/proc`, and their source | [`proc_files`] |
//! | launcher | parts tried alone, to find what a machine lacks | [`trial`] |
//!
//! Invariants: no path that a model can change is resolved with privileges; every mount is attached by descriptor; the
//! engine has descriptors 0, 1, 2 and, for an instance, 3, and no others.

mod cache;
mod child;
mod etc;
mod gpu;
mod idmap;
mod kernel;
mod landlock;
mod loop_device;
mod mount;
mod nvidia;
mod pid1;
mod privileges;
mod proc_files;
mod report;
mod root;
mod seccomp;
mod spec;
mod step;
mod tree;
pub mod trial;
mod weights;

pub use gpu::GpuDir;
pub use proc_files::{ProcFiles, cgroup_view};
pub use report::{Report, Reports};
pub use step::StepError;

pub use etc::USER;
pub use kernel::wait;
pub use root::{CACHE_HOME, HOME};
pub use weights::{WEIGHTS, check as check_weights, opened as open_weights};

use child::Start;
use kernel::clone_flags;
use nix::fcntl::{OFlag, open};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::Pid;
use omni_cgroup::Group;
use omni_process::pidfd;
use seccomp::Filter;
pub use spec::{Bind, Cache, SandboxSpec, Weights};
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use step::Step;

/// Descriptors, mounts and control group that the worker passes to a sandbox.
#[derive(Debug, Clone, Copy)]
pub struct SandboxIo<'a> {
    /// Descriptor 1 of the program.
    pub stdout: BorrowedFd<'a>,
    /// Descriptor 2 of the program.
    pub stderr: BorrowedFd<'a>,
    /// Descriptor 3 of the program.
    pub engine: Option<BorrowedFd<'a>>,
    /// Files over those of `/proc` and `/sys`; without them the sandbox has the host's.
    pub proc_files: Option<ProcFiles<'a>>,
    /// Content of `/gpu`.
    pub gpu: Option<&'a GpuDir>,
    /// The program is a zygote: the sandbox stays when it ends, while there are processes that came from it, and the end
    /// of each is a report.
    pub zygote: bool,
    /// The control group that it lives in: from its first instruction in the unified tree, from its first act on v1.
    pub group: &'a Group,
}

/// The program as exec takes it.
#[derive(Clone, Copy)]
struct Program<'a> {
    argv: &'a [CString],
    env: &'a [CString],
    cwd: &'a Path,
    null: BorrowedFd<'a>,
    stdout: BorrowedFd<'a>,
    stderr: BorrowedFd<'a>,
    engine: Option<BorrowedFd<'a>>,
    zygote: bool,
}

/// Sandbox that was started. Its reports say whether its program runs.
#[derive(Debug)]
pub struct Sandbox {
    /// Process 1 of the sandbox, as this process sees it.
    pub pid: Pid,
    /// Descriptor of process 1; readable when the sandbox has ended, with every process in it.
    pub pidfd: OwnedFd,
    /// Reports of its processes.
    pub reports: Reports,
    /// Notes on the start for the operator.
    pub notes: Vec<String>,
}

impl Drop for Sandbox {
    /// No process outlives the worker's interest in it, also on the way out of an error.
    fn drop(&mut self) {
        // Both fail only for a sandbox whose end was seen before.
        let _ = pidfd::send_signal(&self.pidfd, Signal::SIGKILL);
        let _ = wait(self.pid.as_raw());
    }
}

/// Starts a sandbox.
///
/// The calling process must have a single thread, which must live as long as the sandbox: its end ends the sandbox.
///
/// # Errors
/// When a step before the clone fails. Later failures are reports.
pub fn spawn(spec: &SandboxSpec, io: &SandboxIo<'_>) -> Result<Sandbox, StepError> {
    let c_strings = |texts: &mut dyn Iterator<Item = String>| {
        texts.map(CString::new).collect::<Result<Vec<_>, _>>().step(|| "use the command and environment".into())
    };
    let argv = c_strings(&mut spec.argv.iter().cloned())?;
    let env = c_strings(&mut spec.env.iter().map(|(name, value)| format!("{name}={value}")))?;
    let mut notes = Vec::new();
    let cache = match &spec.cache {
        Some(cache) => Some(cache::mount(cache, spec.uid, spec.gid, &mut notes)?),
        None => None,
    };
    let null = open("/dev/null", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).step(|| "open /dev/null".into())?;
    let (reports, theirs) = report::channel().step(|| "make the report socket".into())?;
    let theirs = pid1::above_engine(theirs).step(|| "make the report socket".into())?;
    let engine = io.engine.map(pid1::above_engine).transpose().step(|| "pass the engine socket".into())?;
    let program = Program {
        argv: &argv,
        env: &env,
        cwd: &spec.cwd,
        null: null.as_fd(),
        stdout: io.stdout,
        stderr: io.stderr,
        engine: engine.as_ref().map(AsFd::as_fd),
        zygote: io.zygote,
    };
    let start = Start {
        spec,
        program,
        group: io.group,
        proc_files: io.proc_files,
        cache,
        gpu: io.gpu.map(|dir| &dir.mount),
        filter: Filter::compile()?,
        reports: theirs.as_fd(),
    };
    let network = if spec.host_network { 0 } else { clone_flags::NEWNET };
    let flags = clone_flags::SANDBOX | network;
    let (pid, pidfd) = kernel::clone3(flags, io.group.unified(), || child::main(&start)).step(|| "clone".into())?;
    Ok(Sandbox { pid, pidfd, reports, notes })
}
