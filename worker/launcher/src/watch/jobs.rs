//! Work on authors' directories, each job in a thread of its own: one model's large files, or a file system that does
//! not answer, keep no other model waiting.
//!
//! Few are begun at a time. A long job counts no more, up to a bound of its own: only then do the next ones wait for
//! it. A job without progress is silent: it is reported by name, and given up when the mounts change, for its thread
//! cannot be ended.

use super::scan::Scan;
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use omni_snapshot::{Fresh, Progress, SILENT, SnapshotError};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Jobs that are begun at a time.
const AT_A_TIME: usize = 4;
/// After this long one counts no more.
const LONG: Duration = Duration::from_secs(2);
/// Threads, those of long jobs and of silent ones included.
pub(super) const MOST: usize = 64;
/// Results that wait; a thread with one more waits itself.
const RESULTS: usize = 256;

/// Subject of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Key {
    /// A look at the unit at this path.
    Look(PathBuf),
    /// A copy of this model.
    Take(String),
}

/// Result of a job.
pub(super) enum Outcome {
    Looked(Scan),
    Taken(Result<Option<Fresh>, SnapshotError>),
}

/// A job that has ended.
pub(super) struct Ended {
    pub(super) key: Key,
    pub(super) outcome: Outcome,
    /// Requested again meanwhile.
    pub(super) again: bool,
    /// Given up before.
    pub(super) given_up: bool,
}

/// How one job gets on.
#[derive(Debug)]
pub(super) struct Pace {
    begun: Instant,
    /// Milliseconds from its beginning to its last step.
    last: AtomicU64,
    changed: AtomicBool,
    unwanted: AtomicBool,
}

impl Pace {
    fn new(begun: Instant) -> Self {
        Self { begun, last: AtomicU64::new(0), changed: AtomicBool::new(false), unwanted: AtomicBool::new(false) }
    }

    fn is_silent(&self, now: Instant) -> bool {
        let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
        now.saturating_duration_since(self.begun + last) >= SILENT
    }
}

impl Progress for Pace {
    fn step(&self) -> Result<(), SnapshotError> {
        let passed = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(passed, Ordering::Relaxed);
        if self.unwanted.load(Ordering::Relaxed) {
            return Err(SnapshotError::Unwanted);
        }
        if self.changed.swap(false, Ordering::Relaxed) {
            return Err(SnapshotError::Changing { path: PathBuf::from(".") });
        }
        Ok(())
    }
}

type Work = Box<dyn FnOnce(&Pace) -> Outcome + Send>;

struct Running {
    key: Key,
    pace: Arc<Pace>,
    again: bool,
    /// Reported as a long one.
    long: bool,
    silent: bool,
    given_up: bool,
}

struct Waiting {
    key: Key,
    work: Work,
    since: Instant,
    /// Reported as waiting for silent ones.
    told: bool,
}

/// Running and waiting jobs on authors' directories.
pub(super) struct Jobs {
    sender: SyncSender<(u64, Outcome)>,
    results: Receiver<(u64, Outcome)>,
    bell: Arc<EventFd>,
    next: u64,
    running: BTreeMap<u64, Running>,
    waiting: VecDeque<Waiting>,
    lost: Vec<Key>,
}

impl Jobs {
    pub(super) fn new() -> Result<Self, Errno> {
        let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let (sender, results) = sync_channel(RESULTS);
        let (running, waiting) = (BTreeMap::new(), VecDeque::new());
        Ok(Self { sender, results, bell, next: 0, running, waiting, lost: Vec::new() })
    }

    /// Event descriptor of the loop, for its other sources.
    pub(super) fn bell(&self) -> Arc<EventFd> {
        Arc::clone(&self.bell)
    }

    /// Has a job done. One of the same that is being done begins anew where it can, and is to be asked for again.
    pub(super) fn ask(&mut self, key: Key, work: impl FnOnce(&Pace) -> Outcome + Send + 'static, now: Instant) {
        if let Some(running) = self.running.values_mut().find(|running| running.key == key && !running.given_up) {
            running.again = true;
            running.pace.changed.store(matches!(key, Key::Take(_)), Ordering::Relaxed);
        } else if !self.waiting.iter().any(|waiting| waiting.key == key) {
            self.waiting.push_back(Waiting { key, work: Box::new(work), since: now, told: false });
            self.begin(now);
        }
    }

    /// Drops jobs that are not needed any more.
    pub(super) fn drop(&mut self, fits: impl Fn(&Key) -> bool) {
        self.waiting.retain(|waiting| !fits(&waiting.key));
        for running in self.running.values_mut().filter(|running| fits(&running.key)) {
            (running.given_up, running.again) = (true, false);
            running.pace.unwanted.store(true, Ordering::Relaxed);
        }
    }

    /// Tests that there is such a job that has not been given up.
    pub(super) fn has(&self, key: &Key) -> bool {
        self.keys().any(|other| other == key)
    }

    /// All that have not been given up.
    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        let running = self.running.values().filter(|running| !running.given_up).map(|running| &running.key);
        running.chain(self.waiting.iter().map(|waiting| &waiting.key))
    }

    /// Gives up the silent ones: what they wait for may not be there any more.
    pub(super) fn give_up_silent(&mut self) {
        for running in self.running.values_mut().filter(|running| running.silent) {
            (running.given_up, running.again) = (true, false);
            running.pace.unwanted.store(true, Ordering::Relaxed);
        }
    }

    /// Tests that every job left is silent, or waits for silent ones.
    pub(super) fn is_settled(&self) -> bool {
        self.running.values().all(|running| running.silent || running.given_up)
            && self.waiting.iter().all(|waiting| waiting.told)
    }

    /// Tests that no job needs attention as time passes.
    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Begins what may be begun; those that have become silent, and those that wait for them, each with whether it waits.
    pub(super) fn turn(&mut self, now: Instant) -> Vec<(Key, bool)> {
        self.begin(now);
        let mut told = Vec::new();
        for running in self.running.values_mut().filter(|running| !(running.silent || running.given_up)) {
            if running.pace.is_silent(now) {
                running.silent = true;
                told.push((running.key.clone(), false));
            }
        }
        if self.running.len() >= MOST {
            let late = |waiting: &&mut Waiting| !waiting.told && now.saturating_duration_since(waiting.since) >= SILENT;
            for waiting in self.waiting.iter_mut().filter(late) {
                waiting.told = true;
                told.push((waiting.key.clone(), true));
            }
        }
        told
    }

    /// Models whose copies have come to take long, each once.
    pub(super) fn long_copies(&mut self, now: Instant) -> Vec<String> {
        let mut told = Vec::new();
        for running in self.running.values_mut().filter(|running| !(running.long || running.given_up)) {
            if let Key::Take(name) = &running.key
                && now.saturating_duration_since(running.pace.begun) >= LONG
            {
                running.long = true;
                told.push(name.clone());
            }
        }
        told
    }

    fn begin(&mut self, now: Instant) {
        while may_begin(self.running.values().map(|running| running.pace.begun), now) {
            let Some(Waiting { key, work, .. }) = self.waiting.pop_front() else { return };
            let (id, pace) = (self.next, Arc::new(Pace::new(now)));
            self.next += 1;
            let running =
                Running { key, pace: Arc::clone(&pace), again: false, long: false, silent: false, given_up: false };
            self.running.insert(id, running);
            let (sender, bell) = (self.sender.clone(), Arc::clone(&self.bell));
            let run = move || {
                let _ = sender.send((id, work(&pace))); // a watcher that is gone needs it no more
                let _ = bell.write(1);
            };
            if let Err(error) = thread::Builder::new().name("look".into()).spawn(run) {
                // The work is lost with the thread: it ends as a dropped job, and is requested again.
                tracing::warn!(%error, "no thread to look at a directory in: it is looked at later");
                if let Some(Running { key, .. }) = self.running.remove(&id) {
                    self.lost.push(key);
                }
                return;
            }
        }
    }

    /// Jobs that could not be begun, to be requested again after a pause.
    pub(super) fn lost(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.lost)
    }

    /// Jobs that have ended.
    pub(super) fn ended(&mut self, now: Instant) -> Vec<Ended> {
        let _ = self.bell.read(); // EAGAIN: nobody rang
        let ended: Vec<_> = self.results.try_iter().collect();
        let ended = ended.into_iter().filter_map(|(id, outcome)| {
            let Running { key, again, given_up, .. } = self.running.remove(&id)?;
            Some(Ended { key, outcome, again, given_up })
        });
        let ended = ended.collect();
        self.begin(now);
        ended
    }
}

impl AsFd for Jobs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// Tests that another job may run beside those that began at these moments.
fn may_begin(running: impl ExactSizeIterator<Item = Instant>, now: Instant) -> bool {
    running.len() < MOST && running.filter(|begun| now.saturating_duration_since(*begun) < LONG).count() < AT_A_TIME
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    fn none(_: &Pace) -> Outcome {
        Outcome::Taken(Ok(None))
    }

    fn take(name: &str) -> Key {
        Key::Take(name.to_owned())
    }

    /// Waits for so many ends; their keys, each with whether it is to be asked for again.
    fn wait(jobs: &mut Jobs, count: usize) -> Vec<(Key, bool)> {
        let mut ended = Vec::new();
        while ended.len() < count {
            ended.extend(jobs.ended(Instant::now()).into_iter().map(|ended| (ended.key, ended.again)));
            thread::yield_now();
        }
        ended
    }

    #[test]
    fn long_jobs_block_no_others_up_to_a_bound() {
        let start = Instant::now();
        let (young, old) = (start + LONG, start);
        let now = start + LONG + Duration::from_millis(1);
        for (long, others, expected) in
            [(0, 0, true), (0, AT_A_TIME - 1, true), (0, AT_A_TIME, false), (MOST - 1, 0, true), (MOST, 0, false)]
        {
            let running: Vec<_> = std::iter::repeat_n(old, long).chain(std::iter::repeat_n(young, others)).collect();
            assert_eq!(may_begin(running.into_iter(), now), expected, "{long} and {others}");
        }
    }

    #[test]
    fn a_model_that_changes_while_it_is_taken_is_begun_anew_and_asked_for_again() {
        let mut jobs = Jobs::new().unwrap();
        let now = Instant::now();
        let (go, gate) = sync_channel::<()>(1);
        let copy = move |pace: &Pace| {
            let _ = gate.recv();
            assert!(matches!(pace.step(), Err(SnapshotError::Changing { .. })), "it hears of the change");
            pace.step().unwrap();
            none(pace)
        };
        jobs.ask(take("m"), copy, now);
        jobs.ask(take("m"), |_| unreachable!("it is being taken already"), now);
        jobs.ask(take("other"), none, now);
        assert_eq!(wait(&mut jobs, 1), [(take("other"), false)]);
        go.send(()).unwrap();
        assert_eq!(wait(&mut jobs, 1), [(take("m"), true)]);
        assert!(jobs.is_idle());
    }

    #[test]
    fn silent_jobs_and_those_that_wait_for_them_are_reported_once() {
        let mut jobs = Jobs::new().unwrap();
        let mut now = Instant::now();
        let gates: Vec<_> = (0..MOST)
            .map(|number| {
                let (go, gate) = sync_channel::<()>(1);
                let hang = move |pace: &Pace| {
                    let _ = gate.recv();
                    none(pace)
                };
                jobs.ask(take(&number.to_string()), hang, now);
                go
            })
            .collect();
        jobs.ask(take("late"), none, now);
        let mut named = Vec::new();
        for _ in 0..MOST {
            now += SILENT;
            named.extend(jobs.turn(now));
        }
        let (waiting, silent): (Vec<_>, Vec<_>) = named.into_iter().partition(|(_, waits)| *waits);
        assert_eq!((silent.len(), waiting), (MOST, vec![(take("late"), true)]));
        assert!(jobs.is_settled() && !jobs.is_idle());
        assert!(jobs.has(&take("0")));
        jobs.give_up_silent();
        assert!(!jobs.has(&take("0")), "the same may be asked for anew");
        drop(gates);
        assert_eq!(wait(&mut jobs, MOST + 1).len(), MOST + 1);
    }

    #[test]
    fn an_unneeded_job_is_cancelled() {
        let mut jobs = Jobs::new().unwrap();
        let now = Instant::now();
        let until_unwanted = |pace: &Pace| {
            while pace.step().is_ok() {
                thread::yield_now();
            }
            Outcome::Taken(Err(SnapshotError::Unwanted))
        };
        jobs.ask(take("m"), until_unwanted, now);
        jobs.drop(|key| *key == take("m"));
        assert!(!jobs.has(&take("m")));
        assert_eq!(wait(&mut jobs, 1).len(), 1);
    }
}
