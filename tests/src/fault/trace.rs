//! The two roles of the program `faulty-worker`: the worker that is traced, and its tracer.
//!
//! The tracer follows all descendants of the worker, from the first instruction of the real program until the start is
//! over: the engine's program runs, and the worker waits for events; the worker of a build is followed to its end. An
//! instance from a zygote has no program of its own to wait for. Programs that are executed on the way are released.
//! The fault is the tracer's last act: everything after it runs untraced, as it would. The result of the plan is
//! reported before that: the tracer may be in the worker's control group, and is killed with it once the launcher sees
//! an end.

use super::{Fault, MADE, Place, Plan, REAL, StartKind, take_plan};
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{SFlag, fstat};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, parent_id};
use std::path::Path;
use std::process::{Command, Stdio};

/// The real worker, traced when there is a plan. Returns only what went wrong.
///
/// # Panics
/// When there is no tracer.
pub fn worker() -> io::Error {
    // The launcher runs us from a sealed copy and without an environment: the folder is the one of its own program.
    let launcher = fs::read_link(format!("/proc/{}/exe", parent_id())).expect("a launcher");
    let folder = launcher.parent().expect("a folder");
    if let Some(plan) = take_plan(folder, start_kind()) {
        let mut tracer = Command::new(folder.join("omni-worker"));
        tracer.arg(std::process::id().to_string()).arg(plan).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut attached = tracer.spawn().expect("a tracer").stdout.expect("a pipe");
        // The end of the stream means that the tracer is attached, or never will be.
        attached.read_to_end(&mut Vec::new()).expect("a word of the tracer");
    }
    Command::new(folder.join(REAL)).arg0("omni-worker").exec()
}

/// A zygote's worker has the socket for its callers as standard output, an instance's has a pipe, and a build's has the
/// same pipe as standard error.
fn start_kind() -> StartKind {
    let [output, error] = [fstat(io::stdout()), fstat(io::stderr())].map(|found| found.expect("a standard stream"));
    let is_socket = output.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFSOCK.bits();
    match (output.st_dev, output.st_ino) == (error.st_dev, error.st_ino) {
        true => StartKind::Build,
        false if is_socket => StartKind::Zygote,
        false => StartKind::Instance,
    }
}

/// Traces a worker that waits for that.
///
/// # Panics
/// When the kernel does not let it.
pub fn tracer(worker: Pid, plan: &Path) {
    let folder = plan.parent().expect("a folder").to_owned();
    let text = fs::read_to_string(plan).expect("a plan");
    fs::remove_file(plan).expect("taken once");
    let options = Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_TRACEEXIT;
    ptrace::seize(worker, options).expect("seized");
    ptrace::interrupt(worker).expect("interrupted");
    let stopped = waitpid(worker, Some(WaitPidFlag::__WALL)).expect("stopped");
    assert!(matches!(stopped, WaitStatus::PtraceEvent(..)), "{stopped:?}");
    ptrace::syscall(worker, None).expect("resumed");
    nix::unistd::close(1).expect("the worker hears that it is traced");
    let mut trace = Trace {
        worker,
        plan: text.parse().expect("a plan"),
        tasks: BTreeMap::from([(worker, Task::new("worker".to_owned()))]),
        unborn: BTreeSet::new(),
        begun: false,
        waits: false,
        clones: false,
        serves: false,
        made: Vec::new(),
        kills: false,
    };
    trace.follow();
    let lines: String = trace.made.iter().map(|place| format!("{place}\n")).collect();
    let made = folder.join(format!("made.{worker}"));
    fs::write(&made, lines).and_then(|()| fs::rename(&made, folder.join(MADE))).expect("told");
    if trace.kills {
        let _ = kill(worker, Signal::SIGKILL);
    }
    // A stopped task continues when the tracer ends.
}

struct Task {
    name: String,
    /// How many it has made, by their number.
    calls: BTreeMap<u64, usize>,
    births: usize,
    /// The error of the call that it is in.
    fails: Option<Errno>,
}

impl Task {
    fn new(name: String) -> Self {
        Self { name, calls: BTreeMap::new(), births: 0, fails: None }
    }
}

struct Trace {
    worker: Pid,
    plan: Plan,
    tasks: BTreeMap<Pid, Task>,
    /// Stopped at their birth, which their parent has not reported yet.
    unborn: BTreeSet<Pid>,
    /// The real worker's program runs.
    begun: bool,
    /// The worker waits for events.
    waits: bool,
    /// The worker has made a process: it is not a zygote that makes its engine.
    clones: bool,
    /// The engine's program runs.
    serves: bool,
    made: Vec<Place>,
    /// The worker is to be killed where it is.
    kills: bool,
}

impl Trace {
    /// Runs until the start is over, the fault is injected, or the worker ends. A task that ends while it is stopped is
    /// gone: that is not an error of any call here.
    fn follow(&mut self) {
        loop {
            let flags = WaitPidFlag::__WALL;
            let over = match waitpid(Pid::from_raw(-1), Some(flags)) {
                Ok(WaitStatus::PtraceSyscall(pid)) => self.call(pid),
                Ok(WaitStatus::PtraceEvent(pid, _, event)) => self.event(pid, event),
                Ok(WaitStatus::Stopped(pid, signal)) => {
                    let _ = ptrace::syscall(pid, signal);
                    false
                }
                // A worker that is killed by others may end without a stop.
                Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..)) => pid == self.worker,
                Ok(_) | Err(Errno::EINTR) => false,
                Err(Errno::ECHILD) => true,
                Err(errno) => panic!("cannot wait: {errno}"),
            };
            if over {
                return;
            }
        }
    }

    fn event(&mut self, pid: Pid, event: libc::c_int) -> bool {
        match event {
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                if let (Ok(born), Some(parent)) = (ptrace::getevent(pid), self.tasks.get_mut(&pid)) {
                    let born = Pid::from_raw(i32::try_from(born).expect("a process id"));
                    parent.births += 1;
                    self.clones |= event != libc::PTRACE_EVENT_CLONE;
                    let name = format!("{}.{}", parent.name, parent.births);
                    self.tasks.insert(born, Task::new(name));
                    if self.unborn.remove(&born) {
                        let _ = ptrace::syscall(born, None);
                    }
                }
            }
            libc::PTRACE_EVENT_EXEC if pid == self.worker => {
                self.begun = true;
                self.tasks.insert(pid, Task::new("worker".to_owned()));
            }
            libc::PTRACE_EVENT_EXEC => {
                // The engine is a child of process 1 of the sandbox; a tool of the worker is the worker's own child.
                let engine = self.tasks.remove(&pid).is_some_and(|task| task.name.matches('.').count() > 1);
                self.serves |= engine;
                let _ = ptrace::detach(pid, None);
                return self.is_over();
            }
            libc::PTRACE_EVENT_EXIT if pid == self.worker => return true,
            EVENT_STOP if !self.tasks.contains_key(&pid) => {
                self.unborn.insert(pid);
                return false;
            }
            _ => {}
        }
        let _ = ptrace::syscall(pid, None);
        false
    }

    /// Before or after a call of one task.
    fn call(&mut self, pid: Pid) -> bool {
        let Some(task) = self.tasks.get_mut(&pid) else { return false };
        let (Ok(info), Ok(mut registers)) = (ptrace::syscall_info(pid), ptrace::getregs(pid)) else { return false };
        if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
            let Some(errno) = task.fails else {
                let _ = ptrace::syscall(pid, None);
                return false;
            };
            registers.rax = (-i64::from(errno as i32)).cast_unsigned();
            let _ = ptrace::setregs(pid, registers);
            return true;
        }
        let number = registers.orig_rax;
        self.waits |= pid == self.worker && is_one(number, &[libc::SYS_poll]) && registers.rsi > FEW;
        let of_the_start = self.begun && !(pid == self.worker && self.waits) && !is_one(number, WITHOUT_RESULT);
        if of_the_start {
            let before = task.calls.entry(number).or_default();
            let place = Place { task: task.name.clone(), number, before: *before };
            *before += 1;
            let hit = self.plan.at.as_ref() == Some(&place);
            if hit || self.plan.at.is_none() {
                self.made.push(place);
            }
            match self.plan.fault {
                Fault::Error(errno) if hit => {
                    task.fails = Some(errno);
                    // A descriptor is closed whatever close says.
                    if !is_one(number, &[libc::SYS_close]) {
                        registers.orig_rax = u64::MAX;
                        let _ = ptrace::setregs(pid, registers);
                    }
                }
                Fault::Kill if hit => {
                    self.kills = true;
                    return true;
                }
                Fault::Error(_) | Fault::Kill => {}
            }
        }
        let _ = ptrace::syscall(pid, None);
        self.is_over()
    }

    fn is_over(&self) -> bool {
        self.waits && (self.serves || !self.clones)
    }
}

/// `PTRACE_EVENT_STOP` of `linux/ptrace.h`, which libc does not have.
const EVENT_STOP: libc::c_int = 128;
/// A poll of more descriptors is the worker's loop; one of so many is the standard library's, about standard streams.
const FEW: u64 = 3;
/// Calls that do not return: they cannot fail.
const WITHOUT_RESULT: &[libc::c_long] = &[libc::SYS_exit, libc::SYS_exit_group, libc::SYS_rt_sigreturn];

fn is_one(number: u64, calls: &[libc::c_long]) -> bool {
    calls.iter().any(|call| u64::try_from(*call) == Ok(number))
}
