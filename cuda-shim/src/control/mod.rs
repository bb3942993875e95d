//! The control thread: one in each process that has GPU memory, at the other end of the worker's socket.
//!
//! It begins with a process's first allocation, which says hello, and carries out one order after the other until the
//! connection ends. Then nothing is moved any more, and nothing else changes: the next allocation begins it again, at
//! most once a second. A forked child has no thread until it allocates itself, nor has a program that was executed.
//!
//! The thread takes no signal: a program's handlers run on the program's threads.
#![allow(unsafe_code, reason = "masks of signals are not in std")]

mod socket;

use crate::account;
use crate::moves::{self, Moved};
use crate::process::PerProcess;
use omni_gpu_protocol::control::{Kind, Report, Verb};
use socket::Socket;
use std::ffi::OsString;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The kernel shows 15 bytes of it.
const NAME: &str = "omni-gpu";
/// For the driver's calls: address space, of which only what is used costs anything.
const STACK: usize = 1024 * 1024;
/// Between two tries to find the worker.
const AGAIN: Duration = Duration::from_secs(1);

static CONTROL: PerProcess<Control> = PerProcess::new();

struct Control {
    /// `None`: nothing is ever moved here.
    path: Option<OsString>,
    runs: AtomicBool,
    epoch: Instant,
    /// Milliseconds after `epoch` before which nobody tries.
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

    /// Whether the caller is the one who begins the thread now.
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

/// An allocation has succeeded: there is something to move. Two loads from memory unless the thread is to be begun.
pub(crate) fn allocated() {
    let control = CONTROL.get(Control::new);
    if control.may_begin() && !begin(control) {
        control.runs.store(false, Ordering::Release);
    }
}

/// Says hello and starts the thread, with all signals blocked, which it inherits. The worker knows of the memory before
/// the program goes on: an order that comes then waits for the thread, however late that begins, and is not passed by.
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
    socket.send(report(Kind::Hello, 0, Moved::default()))?;
    Some(socket)
}

/// Until the connection ends, or is no connection of ours any more.
fn serve(socket: &Socket) -> Option<()> {
    loop {
        let order = socket.receive()?;
        let moved = match order.verb {
            Verb::Evict { bytes } => moves::evict(bytes),
            Verb::Restore => moves::restore(),
            Verb::Report => Moved::default(),
        };
        socket.send(report(Kind::Done, order.number, moved))?;
    }
}

fn report(kind: Kind, number: u64, moved: Moved) -> Report {
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
