//! Threads of a backend, which work on the parts of one computation after another.
//!
//! ```text
//!  caller:  run ─ part 0 ────────── waits ─┐ run ─ part 0 …
//!  worker:  spins ─ part 1 ─┐ spins, parks ┴ part 1 …
//! ```
//!
//! A run costs about a microsecond while the workers spin, which they do for [`SPIN`] after each part; an idle backend
//! takes no time of the processors. A run allocates nothing.
#![allow(unsafe_code, reason = "threads borrow the computation of a run, which has no lifetime of its own")]

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Time that a thread looks for work, or for the end of the others' work, before it sleeps.
const SPIN: Duration = Duration::from_micros(40);

/// Threads of a backend. The thread that calls [`Threads::run`] is one of them.
///
/// Not `Sync`: a computation cannot start another one on the threads that it occupies.
#[derive(Debug)]
pub struct Threads {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    not_sync: PhantomData<Cell<()>>,
}

/// Computation of a run: called with the part and the number of parts.
type Work = dyn Fn(usize, usize) + Sync;

/// State of a run, as caller and workers see it.
struct Shared {
    /// Number of runs so far.
    run: AtomicUsize,
    /// Workers that are not done with the run.
    remaining: AtomicUsize,
    /// Computation of the run. Written by the caller while `remaining` is 0, read by workers while it is not.
    work: UnsafeCell<Option<*const Work>>,
    /// The workers are to end.
    end: AtomicBool,
    /// Workers that sleep.
    parked: Vec<AtomicBool>,
    /// The caller sleeps, or is about to.
    caller_parked: AtomicBool,
    caller: Mutex<Option<Thread>>,
    /// Panic of a worker's part.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `work` points to something `Sync`, and is read and written at different times only, ordered by `run` and
// `remaining`; every other field is `Send`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Shared").field("run", &self.run).field("remaining", &self.remaining).finish()
    }
}

impl Threads {
    /// Starts the workers: one fewer than `count`, which is at least 1.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn new(count: usize) -> std::io::Result<Self> {
        let workers = count.max(1) - 1;
        let shared = Arc::new(Shared {
            run: AtomicUsize::new(0),
            remaining: AtomicUsize::new(0),
            work: UnsafeCell::new(None),
            end: AtomicBool::new(false),
            parked: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            caller_parked: AtomicBool::new(false),
            caller: Mutex::new(None),
            panic: Mutex::new(None),
        });
        let mut threads = Self { shared, workers: Vec::with_capacity(workers), not_sync: PhantomData };
        for worker in 0..workers {
            let shared = Arc::clone(&threads.shared);
            let name = format!("kernels-{}", worker + 1);
            let handle = std::thread::Builder::new().name(name).spawn(move || shared.work(worker, workers + 1))?;
            threads.workers.push(handle);
        }
        Ok(threads)
    }

    /// Number of parts of a run.
    #[must_use]
    pub fn count(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `work(part, parts)` for every part, each on a thread of its own, and returns when all are done.
    ///
    /// # Panics
    /// If a part does, after all are done.
    pub fn run<F: Fn(usize, usize) + Sync>(&self, work: F) {
        let parts = self.count();
        if parts == 1 {
            return work(0, 1);
        }
        self.shared.start(&work, &self.workers);
        let own = catch_unwind(AssertUnwindSafe(|| work(0, parts)));
        self.shared.wait();
        let panic = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = own.err().or(panic) {
            resume_unwind(panic);
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.end.store(true, SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of its parts and has none of its own.
            _ = worker.join();
        }
    }
}

impl Shared {
    /// Begins a run. The caller keeps `work` alive until [`Shared::wait`] returns.
    fn start(&self, work: &(dyn Fn(usize, usize) + Sync), workers: &[JoinHandle<()>]) {
        // SAFETY: the lifetime alone is changed; only the workers of this run use the pointer, which `wait` awaits.
        let work: &'static Work = unsafe { std::mem::transmute(work) };
        // SAFETY: no worker reads, as none is in a run.
        unsafe { *self.work.get() = Some(std::ptr::from_ref(work)) };
        self.remaining.store(workers.len(), SeqCst);
        self.run.fetch_add(1, SeqCst);
        for (parked, worker) in self.parked.iter().zip(workers) {
            if parked.load(SeqCst) {
                worker.thread().unpark();
            }
        }
    }

    /// Waits for the workers of the run.
    fn wait(&self) {
        if spin(|| self.remaining.load(SeqCst) == 0) {
            return;
        }
        *self.caller.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::thread::current());
        self.caller_parked.store(true, SeqCst);
        while self.remaining.load(SeqCst) != 0 {
            std::thread::park();
        }
        self.caller_parked.store(false, SeqCst);
    }

    /// Works on a part of each run until the end.
    fn work(&self, worker: usize, parts: usize) {
        let mut done = 0;
        while self.next(worker, done) {
            done += 1;
            // SAFETY: the caller does not write before this worker is done with the run.
            let work = unsafe { *self.work.get() };
            let result = catch_unwind(AssertUnwindSafe(|| {
                if let Some(work) = work {
                    // SAFETY: the caller keeps it alive until this worker is done with the run.
                    let work = unsafe { &*work };
                    work(worker + 1, parts);
                }
            }));
            if let Err(panic) = result {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            }
            let last = self.remaining.fetch_sub(1, SeqCst) == 1;
            if last && self.caller_parked.load(SeqCst) {
                self.caller.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(Thread::unpark);
            }
        }
    }

    /// Waits for a run after the first `done`. Returns false at the end.
    fn next(&self, worker: usize, done: usize) -> bool {
        let ready = || self.run.load(SeqCst) != done || self.end.load(SeqCst);
        if !spin(ready) {
            self.parked[worker].store(true, SeqCst);
            while !ready() {
                std::thread::park();
            }
            self.parked[worker].store(false, SeqCst);
        }
        self.run.load(SeqCst) != done
    }
}

/// Looks for a while whether something is so.
fn spin(is_so: impl Fn() -> bool) -> bool {
    let mut since = None;
    loop {
        for _ in 0..64 {
            if is_so() {
                return true;
            }
            std::hint::spin_loop();
        }
        if since.get_or_insert_with(Instant::now).elapsed() > SPIN {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_runs_once() {
        for count in 1..6 {
            let threads = Threads::new(count).unwrap();
            let calls: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            for run in 1..2000 {
                threads.run(|part, parts| {
                    assert_eq!(parts, count);
                    calls[part].fetch_add(1, SeqCst);
                });
                assert!(calls.iter().all(|calls| calls.load(SeqCst) == run));
            }
        }
    }

    #[test]
    fn runs_follow_pauses_in_which_all_sleep() {
        let threads = Threads::new(3).unwrap();
        let calls = AtomicUsize::new(0);
        for run in 1..20 {
            while !threads.shared.parked.iter().all(|parked| parked.load(SeqCst)) {
                std::thread::yield_now();
            }
            threads.run(|part, _| {
                if part > 0 {
                    std::thread::sleep(SPIN * 5);
                }
                calls.fetch_add(1, SeqCst);
            });
            assert_eq!(calls.load(SeqCst), 3 * run);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_after_all_parts_and_the_threads_go_on() {
        let threads = Threads::new(3).unwrap();
        for panicking in 0..3 {
            let calls = AtomicUsize::new(0);
            let result = catch_unwind(AssertUnwindSafe(|| {
                threads.run(|part, _| {
                    calls.fetch_add(1, SeqCst);
                    assert!(part != panicking, "part {part}");
                });
            }));
            let message = result.unwrap_err().downcast::<String>().unwrap();
            assert_eq!(*message, format!("part {panicking}"));
            assert_eq!(calls.load(SeqCst), 3);
        }
        threads.run(|_, _| ());
    }
}
