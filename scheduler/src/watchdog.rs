//! The scheduler's own watchdog: a thread outside the runtime that sees whether the tasks that matter still take turns.
//!
//! [`serve`](crate::serve) starts it; who owns something (a model, the cards, the set of models, the connection to the
//! launcher) spawns its task with a [`Pulse`], says at the head of its loop that it took a turn, and waits for the
//! watchdog's question beside everything else. What always holds:
//! - a turn is real progress: a task that waits for a lock, for a full channel or in a system call takes none, and
//!   neither does any task of a runtime that runs nothing;
//! - a task that takes none is found within twice [`EVERY`]; then the log says which, and the process ends by SIGABRT.
//!   The service manager starts another scheduler, which takes the models over;
//! - the service manager's own watchdog (`WatchdogSec`) is fed only while every question is answered;
//! - the end waits for nothing, not even for the log.

use crate::policy::Moment;
use crate::policy::liveness::{Check, Liveness};
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

/// A task that took no turn for so long is asked for one, and has as long again.
const EVERY: Duration = Duration::from_secs(15);
/// Between two looks.
const ROUND: Duration = Duration::from_secs(1);
/// For the log to take the last words.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Tasks that the last words name.
const NAMED: usize = 8;

/// What a task and the watchdog know of each other.
#[derive(Debug)]
struct Beat {
    name: String,
    /// It took a turn since it was asked.
    turned: AtomicBool,
    /// It is at work at this moment, on a thread of the runtime.
    works: AtomicBool,
    asked: Notify,
}

/// A task's end.
#[derive(Debug)]
pub struct Pulse(Arc<Beat>);

impl Pulse {
    /// The task took a turn: said at the head of its loop.
    pub fn turn(&self) {
        self.0.turned.store(true, Ordering::Relaxed);
    }

    /// Waits for the watchdog's question, whose answer is a turn.
    pub async fn asked(&self) {
        self.0.asked.notified().await;
    }

    /// Waits for something that others bound; the watchdog is answered meanwhile.
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

    /// Runs a task that will take turns. It is watched until it has ended.
    pub fn spawn<F: Future<Output = ()> + Send + 'static>(self, task: impl FnOnce(Self) -> F) {
        let beat = Arc::clone(&self.0);
        let mut task = Box::pin(task(self));
        tokio::spawn(poll_fn(move |context| {
            beat.works.store(true, Ordering::Relaxed);
            let polled = task.as_mut().poll(context);
            beat.works.store(false, Ordering::Relaxed);
            polled
        }));
    }
}

#[derive(Debug)]
struct Watched {
    beat: Weak<Beat>,
    liveness: Liveness,
}

/// Knows all tasks that are watched. Clones are the same.
#[derive(Debug, Clone)]
pub struct Watchdog {
    watched: Arc<Mutex<Vec<Watched>>>,
    began: Instant,
}

impl Default for Watchdog {
    /// One that nobody looks at before [`Watchdog::start`].
    fn default() -> Self {
        Self { watched: Arc::default(), began: Instant::now() }
    }
}

impl Watchdog {
    /// A pulse for a task of this name.
    #[must_use]
    pub fn pulse(&self, name: impl Into<String>) -> Pulse {
        let (turned, works) = (AtomicBool::new(false), AtomicBool::new(false));
        let beat = Arc::new(Beat { name: name.into(), turned, works, asked: Notify::new() });
        let watched = Watched { beat: Arc::downgrade(&beat), liveness: Liveness::new(EVERY, self.began.elapsed()) };
        self.watched.lock().unwrap_or_else(PoisonError::into_inner).push(watched);
        Pulse(beat)
    }

    /// Starts the thread, and a task that shows that the runtime runs.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start(&self) -> io::Result<()> {
        self.pulse("the runtime").spawn(|pulse| async move { pulse.during(std::future::pending()).await });
        let watchdog = self.clone();
        let manager = sd_notify::watchdog_enabled();
        let round = manager.map_or(ROUND, |within| ROUND.min(within / 3));
        let run = move || {
            loop {
                thread::sleep(round);
                match watchdog.check(watchdog.began.elapsed()) {
                    Ok(all_answer) if all_answer && manager.is_some() => {
                        let _ = sd_notify::notify(&[NotifyState::Watchdog]); // it will say so if it matters
                    }
                    Ok(_) => {}
                    Err(stuck) => end(stuck),
                }
            }
        };
        thread::Builder::new().name("watchdog".into()).spawn(run).map(drop)
    }

    /// One look at all tasks: whether nobody owes a turn, or who is stuck.
    fn check(&self, now: Moment) -> Result<bool, String> {
        let mut all_answer = true;
        let mut silent = Vec::new();
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain_mut(|Watched { beat, liveness }| {
            let Some(beat) = beat.upgrade() else { return false };
            if beat.turned.swap(false, Ordering::Relaxed) {
                liveness.heard(now);
            }
            match liveness.check(now) {
                Check::Alive => all_answer &= !liveness.is_asked(),
                // Who is asked now has until the next look: with many tasks somebody is asked in every one.
                Check::Probe => beat.asked.notify_one(),
                Check::Unresponsive => silent.push(beat),
            }
            true
        });
        if silent.is_empty() { Ok(all_answer) } else { Err(words(&silent)) }
    }
}

/// Who is stuck, those in the middle of a step first: the others may only be waiting for them.
fn words(silent: &[Arc<Beat>]) -> String {
    let of = |works: bool| {
        let those = silent.iter().filter(move |beat| beat.works.load(Ordering::Relaxed) == works);
        those.map(|beat| beat.name.as_str()).collect::<Vec<_>>()
    };
    let listed = |names: &[&str]| {
        let more = if names.len() > NAMED { ", …" } else { "" };
        format!("{}{more}", names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", "))
    };
    let (at_work, waiting) = (of(true), of(false));
    let at_work =
        if at_work.is_empty() { String::new() } else { format!("; in the middle of a step: {}", listed(&at_work)) };
    let waiting = if waiting.is_empty() { String::new() } else { format!("; waiting: {}", listed(&waiting)) };
    format!("stuck: no turn within {EVERY:?} of being asked for one{at_work}{waiting}")
}

/// Says why, if the log takes it, and ends the process. Another scheduler takes the models over.
fn end(stuck: String) -> ! {
    let (said, heard) = mpsc::sync_channel(1);
    let speaker = thread::Builder::new().name("last-words".into()).spawn(move || {
        tracing::error!("{stuck}; this scheduler ends, and the next one takes the models over");
        let _ = said.send(());
    });
    if speaker.is_ok() {
        let _ = heard.recv_timeout(LAST_WORDS); // a log that is stuck is a reason to end, too
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

    /// A task that waits for the watchdog alone, and says each turn.
    fn idle(watchdog: &Watchdog, name: &str, turns: SyncSender<()>) {
        watchdog.pulse(name).spawn(|pulse| async move {
            loop {
                pulse.turn();
                let _ = turns.send(());
                pulse.asked().await;
            }
        });
    }

    fn await_turn(turns: &Receiver<()>) {
        turns.recv_timeout(Duration::from_secs(60)).expect("a turn");
    }

    #[test]
    fn a_task_that_answers_lives_for_ever() {
        let (watchdog, runtime) = (Watchdog::default(), runtime());
        let (said, turns) = sync_channel(64);
        runtime.block_on(async { idle(&watchdog, "idle", said) });
        await_turn(&turns);
        let mut now = Duration::from_secs(1000);
        assert_eq!(watchdog.check(now), Ok(true), "it took its first turn");
        for _ in 0..10 {
            now += EVERY;
            assert_eq!(watchdog.check(now), Ok(true), "it was asked just now");
            await_turn(&turns);
            now += ROUND;
            assert_eq!(watchdog.check(now), Ok(true));
        }
        drop(runtime);
        assert_eq!(watchdog.check(now + EVERY * 3), Ok(true), "who has ended is not asked");
    }

    #[test]
    fn a_task_that_hangs_is_named_and_so_is_who_cannot_run_for_it() {
        let (watchdog, runtime) = (Watchdog::default(), runtime());
        let (said, turns) = sync_channel(64);
        let (let_go, hold) = sync_channel::<()>(1);
        runtime.block_on(async { idle(&watchdog, "idle", said) });
        await_turn(&turns);
        let (begun, has_begun) = sync_channel(64);
        runtime.block_on(async {
            watchdog.pulse("hung").spawn(|pulse| async move {
                pulse.turn();
                let _ = begun.send(());
                let _ = hold.recv(); // on the only thread of the runtime
            });
        });
        await_turn(&has_begun);
        let now = Duration::from_secs(1000);
        assert_eq!(watchdog.check(now), Ok(true));
        assert_eq!(watchdog.check(now + EVERY), Ok(true), "they are asked");
        assert_eq!(watchdog.check(now + EVERY + ROUND), Ok(false), "they owe an answer");
        let stuck = watchdog.check(now + EVERY * 2).unwrap_err();
        assert!(stuck.ends_with("; in the middle of a step: hung; waiting: idle"), "{stuck}");
        drop(let_go);
    }

    /// No thread is held up: the task waits for something that does not come.
    #[test]
    fn a_task_that_waits_for_what_never_comes_is_found() {
        let (watchdog, runtime) = (Watchdog::default(), runtime());
        runtime.block_on(async { watchdog.pulse("waits").spawn(|_pulse| std::future::pending()) });
        let now = Duration::from_secs(1000);
        assert_eq!(watchdog.check(now), Ok(true), "it is asked");
        assert_eq!(watchdog.check(now + ROUND), Ok(false), "it owes an answer");
        let stuck = watchdog.check(now + EVERY).unwrap_err();
        assert!(stuck.ends_with("being asked for one; waiting: waits"), "{stuck}");
    }

    #[test]
    fn the_last_words_are_bounded() {
        let watchdog = Watchdog::default();
        let pulses: Vec<_> = (0..20).map(|number| watchdog.pulse(number.to_string())).collect();
        watchdog.check(Duration::from_secs(1000)).unwrap();
        let stuck = watchdog.check(Duration::from_secs(1000) + EVERY).unwrap_err();
        assert!(stuck.ends_with("; waiting: 0, 1, 2, 3, 4, 5, 6, 7, …"), "{stuck}");
        drop(pulses);
    }
}
