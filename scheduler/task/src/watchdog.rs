//! Watchdog of the scheduler: a thread outside the runtime that sees whether the tasks that matter still take turns.
//!
//! A task that owns something (a model, the cards, the set of models, the connection to the launcher) is spawned with a
//! [`Heartbeat`], reports a turn at the head of its loop, and waits for the watchdog's question beside everything else.
//!
//! Invariants:
//! - a turn is real progress: a task that waits for a lock, for a full channel or in a system call takes none, and
//!   neither does any task of a runtime that runs nothing;
//! - a task that takes none is found within twice [`EVERY`]; then the log names it, and the process ends by SIGABRT.
//!   The service manager starts another scheduler, which takes the models over;
//! - the service manager's own watchdog (`WatchdogSec`) is fed only while every question is answered;
//! - the end waits for nothing, not even for the log.

use omni_policy::Moment;
use omni_policy::liveness::{Check, Liveness};
use sd_notify::NotifyState;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Time without a turn after which a task is asked for one, and then has as long again.
const EVERY: Duration = Duration::from_secs(15);
/// Interval of the checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time for the log to write the last message.
const LAST_MESSAGE: Duration = Duration::from_secs(1);
/// Number of tasks that the last message names.
const NAMED: usize = 8;

/// State shared by a task and the watchdog.
#[derive(Debug)]
struct Turns {
    name: String,
    /// A turn was taken since the last check.
    taken: AtomicBool,
    /// The task is being polled at this moment, on a thread of the runtime.
    polled: AtomicBool,
    asked: Notify,
}

/// Heartbeat of one task, which the watchdog checks until it is dropped.
#[derive(Debug)]
pub struct Heartbeat(Arc<Turns>);

impl Heartbeat {
    /// Reports a turn, at the head of the task's loop.
    pub fn turn(&self) {
        self.0.taken.store(true, Ordering::Relaxed);
    }

    /// Waits for the watchdog's question, whose answer is a turn.
    pub async fn asked(&self) {
        self.0.asked.notified().await;
    }

    /// Waits for something whose duration is bounded elsewhere, and answers the watchdog meanwhile.
    pub async fn during<T>(&self, wait: impl Future<Output = T>) -> T {
        let mut wait = pin!(wait);
        loop {
            self.turn();
            tokio::select! {
                done = &mut wait => return done,
                () = self.asked() => {}
            }
        }
    }

    /// Spawns a task that takes turns. It is watched until it has ended.
    pub fn spawn<F: Future<Output = ()> + Send + 'static>(self, task: impl FnOnce(Self) -> F) {
        let turns = Arc::clone(&self.0);
        let mut task = Box::pin(task(self));
        tokio::spawn(poll_fn(move |context| {
            turns.polled.store(true, Ordering::Relaxed);
            let polled = task.as_mut().poll(context);
            turns.polled.store(false, Ordering::Relaxed);
            polled
        }));
    }
}

#[derive(Debug)]
struct Watched {
    turns: Weak<Turns>,
    liveness: Liveness,
}

/// All tasks that are watched. Clones share them.
#[derive(Debug, Clone)]
pub struct Watchdog {
    watched: Arc<Mutex<Vec<Watched>>>,
    began: Instant,
}

impl Default for Watchdog {
    /// Without tasks, and without checks before [`Watchdog::start`].
    fn default() -> Self {
        Self { watched: Arc::default(), began: Instant::now() }
    }
}

impl Watchdog {
    /// Heartbeat for a task of this name.
    #[must_use]
    pub fn heartbeat(&self, name: impl Into<String>) -> Heartbeat {
        let (taken, polled) = (AtomicBool::new(false), AtomicBool::new(false));
        let turns = Arc::new(Turns { name: name.into(), taken, polled, asked: Notify::new() });
        let watched = Watched { turns: Arc::downgrade(&turns), liveness: Liveness::new(EVERY, self.began.elapsed()) };
        self.watched.lock().unwrap_or_else(PoisonError::into_inner).push(watched);
        Heartbeat(turns)
    }

    /// Starts the thread, and a task that shows that the runtime runs.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start(&self) -> io::Result<()> {
        self.heartbeat("the runtime").spawn(|heartbeat| async move { heartbeat.during(std::future::pending()).await });
        let watchdog = self.clone();
        let manager = sd_notify::watchdog_enabled();
        let round = manager.map_or(CHECK_INTERVAL, |within| CHECK_INTERVAL.min(within / 3));
        let run = move || {
            loop {
                thread::sleep(round);
                match watchdog.check(watchdog.began.elapsed()) {
                    Ok(all_answer) if all_answer && manager.is_some() => {
                        let _ = sd_notify::notify(&[NotifyState::Watchdog]); // a manager that is not fed ends the process
                    }
                    Ok(_) => {}
                    Err(stuck) => end(stuck),
                }
            }
        };
        thread::Builder::new().name("watchdog".into()).spawn(run).map(drop)
    }

    /// Checks all tasks: `Ok(true)` when none owes a turn; the last message when some are stuck.
    fn check(&self, now: Moment) -> Result<bool, String> {
        let mut all_answer = true;
        let mut silent = Vec::new();
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain_mut(|Watched { turns, liveness }| {
            let Some(turns) = turns.upgrade() else { return false };
            if turns.taken.swap(false, Ordering::Relaxed) {
                liveness.heard(now);
            }
            match liveness.check(now) {
                Check::Alive => all_answer &= !liveness.is_asked(),
                // A task that is asked now is not late before the next check: with many tasks every check asks one.
                Check::Probe => turns.asked.notify_one(),
                Check::Unresponsive => silent.push(turns),
            }
            true
        });
        if silent.is_empty() { Ok(all_answer) } else { Err(last_message(&silent)) }
    }
}

/// Names the stuck tasks, those in the middle of a step first: the others may only be waiting for them.
fn last_message(silent: &[Arc<Turns>]) -> String {
    let names = |polled: bool| {
        let tasks = silent.iter().filter(move |turns| turns.polled.load(Ordering::Relaxed) == polled);
        tasks.map(|turns| turns.name.as_str()).collect::<Vec<_>>()
    };
    let listed = |names: &[&str]| {
        let more = if names.len() > NAMED { ", …" } else { "" };
        format!("{}{more}", names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", "))
    };
    let (at_work, waiting) = (names(true), names(false));
    let at_work =
        if at_work.is_empty() { String::new() } else { format!("; in the middle of a step: {}", listed(&at_work)) };
    let waiting = if waiting.is_empty() { String::new() } else { format!("; waiting: {}", listed(&waiting)) };
    format!("stuck: no turn within {EVERY:?} of being asked for one{at_work}{waiting}")
}

/// Logs the reason, if the log takes it, and ends the process. Another scheduler takes the models over.
fn end(stuck: String) -> ! {
    let (written, wait) = mpsc::sync_channel(1);
    let writer = thread::Builder::new().name("last-message".into()).spawn(move || {
        tracing::error!("{stuck}; this scheduler ends, and the next one takes the models over");
        let _ = written.send(());
    });
    if writer.is_ok() {
        let _ = wait.recv_timeout(LAST_MESSAGE); // a log that is stuck is a reason to end, too
    }
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
    use tokio::runtime::{Builder, Runtime};

    fn runtime() -> Runtime {
        Builder::new_multi_thread().worker_threads(1).build().unwrap()
    }

    /// Task that waits for the watchdog alone, and reports each turn.
    fn idle(watchdog: &Watchdog, name: &str, turns: SyncSender<()>) {
        watchdog.heartbeat(name).spawn(|heartbeat| async move {
            loop {
                heartbeat.turn();
                let _ = turns.send(());
                heartbeat.asked().await;
            }
        });
    }

    fn await_turn(turns: &Receiver<()>) {
        turns.recv_timeout(Duration::from_secs(60)).expect("a turn");
    }

    #[test]
    fn a_task_that_answers_is_never_reported() {
        let (watchdog, runtime) = (Watchdog::default(), runtime());
        let (sender, turns) = sync_channel(64);
        runtime.block_on(async { idle(&watchdog, "idle", sender) });
        await_turn(&turns);
        let mut now = Duration::from_secs(1000);
        assert_eq!(watchdog.check(now), Ok(true), "it took its first turn");
        for _ in 0..10 {
            now += EVERY;
            assert_eq!(watchdog.check(now), Ok(true), "it was asked just now");
            await_turn(&turns);
            now += CHECK_INTERVAL;
            assert_eq!(watchdog.check(now), Ok(true));
        }
        drop(runtime);
        assert_eq!(watchdog.check(now + EVERY * 3), Ok(true), "a task that has ended is not asked");
    }

    #[test]
    fn a_hung_task_and_a_task_that_it_blocks_are_named() {
        let (watchdog, runtime) = (Watchdog::default(), runtime());
        let (sender, turns) = sync_channel(64);
        let (let_go, hold) = sync_channel::<()>(1);
        runtime.block_on(async { idle(&watchdog, "idle", sender) });
        await_turn(&turns);
        let (begun, has_begun) = sync_channel(64);
        runtime.block_on(async {
            watchdog.heartbeat("hung").spawn(|heartbeat| async move {
                heartbeat.turn();
                let _ = begun.send(());
                let _ = hold.recv(); // on the only thread of the runtime
            });
        });
        await_turn(&has_begun);
        let now = Duration::from_secs(1000);
        assert_eq!(watchdog.check(now), Ok(true));
        assert_eq!(watchdog.check(now + EVERY), Ok(true), "they are asked");
        assert_eq!(watchdog.check(now + EVERY + CHECK_INTERVAL), Ok(false), "they owe an answer");
        let stuck = watchdog.check(now + EVERY * 2).unwrap_err();
        assert!(stuck.ends_with("; in the middle of a step: hung; waiting: idle"), "{stuck}");
        drop(let_go);
    }

    /// No thread is blocked: the task waits for something that does not come.
    #[test]
    fn a_task_that_waits_for_ever_is_found() {
        let (watchdog, runtime) = (Watchdog::default(), runtime());
        runtime.block_on(async { watchdog.heartbeat("waits").spawn(|_pulse| std::future::pending()) });
        let now = Duration::from_secs(1000);
        assert_eq!(watchdog.check(now), Ok(true), "it is asked");
        assert_eq!(watchdog.check(now + CHECK_INTERVAL), Ok(false), "it owes an answer");
        let stuck = watchdog.check(now + EVERY).unwrap_err();
        assert!(stuck.ends_with("being asked for one; waiting: waits"), "{stuck}");
    }

    #[test]
    fn the_last_message_is_bounded() {
        let watchdog = Watchdog::default();
        let pulses: Vec<_> = (0..20).map(|number| watchdog.heartbeat(number.to_string())).collect();
        watchdog.check(Duration::from_secs(1000)).unwrap();
        let stuck = watchdog.check(Duration::from_secs(1000) + EVERY).unwrap_err();
        assert!(stuck.ends_with("; waiting: 0, 1, 2, 3, 4, 5, 6, 7, …"), "{stuck}");
        drop(pulses);
    }
}
