//! Control thread: carries out the worker's commands, in each process that has GPU memory.
//!
//! It starts with a process's first allocation, says hello, and carries out one command after the other until the
//! connection ends. From then on nothing is moved, and nothing else changes: the next allocation starts the thread
//! again, at most once a second. A forked child has no thread until it allocates itself, nor has an executed program.
//!
//! The thread takes no signal: a program's handlers run on the program's threads.
#![allow(unsafe_code, reason = "masks of signals are not in std")]

mod socket;

use crate::account;
use crate::moves::{self, Moved};
use crate::process::PerProcess;
use omni_gpu_protocol::control::{Command, Report, ReportKind};
use socket::Socket;
use std::ffi::OsString;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Name of the thread, of which the kernel shows 15 bytes.
const NAME: &str = "omni-gpu";
/// Stack, for the driver's calls: address space, of which only the used part costs anything.
const STACK: usize = 1024 * 1024;
/// Interval between attempts to connect to the worker.
const AGAIN: Duration = Duration::from_secs(1);

static CONTROL: PerProcess<Control> = PerProcess::new();

struct Control {
    /// Path of the socket; `None`: nothing is ever moved here.
    path: Option<OsString>,
    runs: AtomicBool,
    epoch: Instant,
    /// Milliseconds after `epoch` before the next attempt.
    not_before: AtomicU64,
}

impl Control {
    fn new() -> Self {
        Self {
            path: crate::places::control(),
            runs: AtomicBool::new(false),
            epoch: Instant::now(),
            not_before: AtomicU64::new(0),
        }
    }

    /// Claims the start of the thread for the caller, if it is due.
    fn may_begin(&self) -> bool {
        if self.path.is_none() || self.runs.load(Ordering::Relaxed) {
            return false;
        }
        let now = self.epoch.elapsed();
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        if millis(now) < self.not_before.load(Ordering::Relaxed) || self.runs.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.not_before.store(millis(now + AGAIN), Ordering::Relaxed);
        true
    }
}

/// Starts the thread, if need be, after a successful allocation: there is something to move. Costs two loads from
/// memory while the thread runs.
pub(crate) fn allocated() {
    let control = CONTROL.get(Control::new);
    if control.may_begin() && !begin(control) {
        control.runs.store(false, Ordering::Release);
    }
}

/// Says hello and starts the thread, with all signals blocked, which it inherits. The worker knows of the memory before
/// the program goes on: a command that arrives then waits for the thread, however late it starts, and is not skipped.
fn begin(control: &'static Control) -> bool {
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: fills a set of ours.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: `all` is filled, `before` is written.
    if unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) } != 0 {
        return false;
    }
    let begun = greet(control).is_some_and(|socket| {
        let thread = thread::Builder::new().name(NAME.into()).stack_size(STACK);
        let serves = move || {
            serve(&socket);
            drop(socket);
            control.runs.store(false, Ordering::Release);
        };
        thread.spawn(serves).is_ok()
    });
    // SAFETY: the mask that was.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut()) };
    begun
}

fn greet(control: &Control) -> Option<Socket> {
    let socket = Socket::connect(control.path.as_ref()?)?;
    socket.send(report(ReportKind::Hello, 0, Moved::default()))?;
    Some(socket)
}

/// Carries out commands until the connection ends, or is no longer this process's.
fn serve(socket: &Socket) -> Option<()> {
    loop {
        let packet = socket.receive()?;
        let moved = match packet.command {
            Command::Evict { bytes } => moves::evict(bytes),
            Command::Restore => moves::restore(),
            Command::Report => Moved::default(),
        };
        socket.send(report(ReportKind::Done, packet.number, moved))?;
    }
}

fn report(kind: ReportKind, number: u64, moved: Moved) -> Report {
    let memory = account::own_use();
    Report {
        kind,
        number,
        pid: std::process::id(),
        error: u32::try_from(moved.error).unwrap_or(u32::MAX),
        moved: moved.bytes,
        nanos: moved.nanos,
        managed: memory.managed,
        resident: memory.resident,
        device: memory.device,
        host: memory.host,
    }
}
