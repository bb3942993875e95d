//! The memory that bodies may take in the whole node: requests while they are collected and wait, large answers from their
//! beginning until their clients have taken them, large heads over HTTP/2. Lent out by the HTTP side; `omnictl status` shows it.
//!
//! What always holds: no more is lent than the limit. Before somebody is refused, clients that have had an answer for
//! [`PATIENCE`] without taking it are given up, the longest first: who reads slowly uses memory that nobody else wants.

use crate::metrics::BodyMetrics;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// For a client to take an answer before somebody else may have its room.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// All of it.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    state: Mutex<State>,
    /// For bodies that are uploaded into models: what they take is descriptors.
    uploads: Arc<Semaphore>,
    metrics: BodyMetrics,
}

#[derive(Debug, Default)]
struct State {
    lent: u64,
    next: u64,
    /// Answers in the order in which they came.
    answers: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    bytes: u64,
    since: Instant,
    /// `None` until its connection has it.
    client: Option<Arc<Debtor>>,
}

/// A client's connection, as far as answers lie in memory for it.
#[derive(Debug, Default)]
pub struct Debtor {
    answers: AtomicUsize,
    given_up: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// Room for a request's body, for as long as this lives.
#[derive(Debug)]
pub struct Held {
    budget: Arc<Budget>,
    bytes: u64,
}

/// Room for an answer, for as long as this lives.
#[derive(Debug)]
pub struct Untaken {
    budget: Arc<Budget>,
    number: u64,
    client: OnceLock<Arc<Debtor>>,
}

impl Budget {
    /// A node's. `limit` in bytes; so many `uploads` at a time.
    #[must_use]
    pub fn new(limit: u64, uploads: usize, metrics: BodyMetrics) -> Arc<Self> {
        metrics.budget.set(i64::try_from(limit).unwrap_or(i64::MAX));
        Arc::new(Self { limit, state: Mutex::default(), uploads: Arc::new(Semaphore::new(uploads)), metrics })
    }

    /// Bytes that are lent.
    #[must_use]
    pub fn lent(&self) -> u64 {
        self.state().lent
    }

    /// Whether this much could be lent now. If not, it counts as refused.
    #[must_use]
    pub fn has(&self, bytes: u64, now: Instant) -> bool {
        let has = self.state().victims(bytes, self.limit, now).is_some();
        if !has {
            self.metrics.refused.inc();
        }
        has
    }

    /// The place of a body that is uploaded into a model; `None` when all are taken.
    #[must_use]
    pub fn upload(&self) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.uploads).try_acquire_owned().ok();
        if place.is_none() {
            self.metrics.refused.inc();
        }
        place
    }

    /// Room for a request's body, none of it yet.
    #[must_use]
    pub fn request(self: &Arc<Self>) -> Held {
        Held { budget: Arc::clone(self), bytes: 0 }
    }

    /// Room for an answer whose beginning came from a model; `None` when there is not so much.
    #[must_use]
    pub fn begun(self: &Arc<Self>, bytes: u64, now: Instant) -> Option<Held> {
        let mut held = self.request();
        held.grow(bytes.min(self.limit), now).then_some(held) // a single one that is larger has all of it
    }

    /// Room for an answer; `None` when there is not so much.
    #[must_use]
    pub fn answer(self: &Arc<Self>, bytes: u64, now: Instant) -> Option<Untaken> {
        self.begun(bytes, now).map(|held| held.untaken(now))
    }

    /// So much more is lent; `None` when there is not so much.
    fn lend(&self, bytes: u64, now: Instant) -> Option<MutexGuard<'_, State>> {
        let mut state = self.state();
        let Some(victims) = state.victims(bytes, self.limit, now) else {
            self.metrics.refused.inc();
            return None;
        };
        let victims: Vec<Entry> = victims.iter().filter_map(|number| state.answers.remove(number)).collect();
        let freed: u64 = victims.iter().map(|victim| victim.bytes).sum();
        self.set(&mut state, |lent| lent - freed + bytes);
        self.metrics.given_up.inc_by(victims.len() as u64);
        // Not beside an end that clears it: who has taken all of it after all is not cut.
        victims.iter().filter_map(|victim| victim.client.as_ref()).for_each(|client| client.give_up());
        Some(state)
    }

    fn set(&self, state: &mut State, change: impl FnOnce(u64) -> u64) {
        state.lent = change(state.lent);
        self.metrics.held.set(i64::try_from(state.lent).unwrap_or(i64::MAX));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whose room is needed for so many bytes more; `None` when even that would not do.
    fn victims(&self, bytes: u64, limit: u64, now: Instant) -> Option<Vec<u64>> {
        let mut missing = self.lent.saturating_add(bytes).saturating_sub(limit);
        let mut victims = Vec::new();
        for (number, entry) in &self.answers {
            if missing == 0 || now.saturating_duration_since(entry.since) < PATIENCE {
                break; // those that came later have waited less
            }
            if entry.client.is_some() {
                missing = missing.saturating_sub(entry.bytes);
                victims.push(*number);
            }
        }
        (missing == 0).then_some(victims)
    }
}

impl Held {
    /// What it has.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// More of it. Returns whether there was so much.
    #[must_use]
    pub fn grow(&mut self, bytes: u64, now: Instant) -> bool {
        let lent = self.budget.lend(bytes, now).is_some();
        if lent {
            self.bytes += bytes;
        }
        lent
    }

    /// The same room, for an answer that is whole from now on: its client has to take it.
    #[must_use]
    pub fn untaken(mut self, now: Instant) -> Untaken {
        let budget = Arc::clone(&self.budget);
        let bytes = std::mem::take(&mut self.bytes);
        let mut state = budget.state();
        let number = state.next;
        state.next += 1;
        state.answers.insert(number, Entry { bytes, since: now, client: None });
        drop(state);
        Untaken { budget, number, client: OnceLock::new() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.set(&mut self.budget.state(), |lent| lent - self.bytes);
        }
    }
}

impl Untaken {
    /// Who is to take it. The first one counts.
    pub fn owed_by(&self, client: &Arc<Debtor>) {
        if self.client.set(Arc::clone(client)).is_ok() {
            client.answers.fetch_add(1, Ordering::Relaxed);
            if let Some(entry) = self.budget.state().answers.get_mut(&self.number) {
                entry.client = Some(Arc::clone(client));
            }
        }
    }
}

impl Drop for Untaken {
    fn drop(&mut self) {
        let mut state = self.budget.state();
        // One that was given up is not lent any more.
        if let Some(entry) = state.answers.remove(&self.number) {
            self.budget.set(&mut state, |lent| lent - entry.bytes);
        }
        if let Some(client) = self.client.get()
            && client.answers.fetch_sub(1, Ordering::Relaxed) == 1
        {
            client.given_up.store(false, Ordering::Relaxed);
        }
    }
}

impl Debtor {
    /// Whether an answer lies in memory for it.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.answers.load(Ordering::Relaxed) > 0
    }

    /// Whether it was given up; if not, who asked last is woken when it is.
    #[must_use]
    pub fn is_given_up(&self, context: &Context<'_>) -> bool {
        let mut waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
        self.given_up.load(Ordering::Relaxed) // set before the lock is taken to wake
    }

    fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(limit: u64) -> Arc<Budget> {
        Budget::new(limit, 1, BodyMetrics::default())
    }

    fn is_given_up(client: &Debtor) -> bool {
        client.is_given_up(&Context::from_waker(Waker::noop()))
    }

    #[test]
    fn requests_are_refused_what_is_not_there() {
        let (budget, now) = (budget(10), Instant::now());
        let mut held = budget.request();
        assert!(held.grow(6, now));
        assert!(!held.grow(5, now) && budget.has(4, now) && !budget.has(5, now));
        assert!(held.grow(4, now));
        assert_eq!((held.bytes(), budget.lent()), (10, 10));
        assert!(budget.answer(1, now).is_none());
        drop(held);
        assert_eq!(budget.lent(), 0);
        assert!(!budget.request().grow(u64::MAX, now));
    }

    #[test]
    fn who_takes_an_answer_slowly_gives_way_and_the_longest_first() {
        let (budget, now) = (budget(10), Instant::now());
        let clients: Vec<_> = (0..3).map(|_| Arc::new(Debtor::default())).collect();
        let lent: Vec<_> = (0..3)
            .map(|n| {
                let answer = budget.answer(3, now + Duration::from_millis(n)).unwrap();
                answer.owed_by(&clients[n as usize]);
                answer
            })
            .collect();
        assert!(budget.answer(3, now + PATIENCE - Duration::from_millis(1)).is_none(), "they may be quick yet");
        let given_up = || clients.iter().map(|client| is_given_up(client)).collect::<Vec<_>>();
        assert!(budget.answer(8, now + PATIENCE + Duration::from_millis(1)).is_none(), "the third is younger");
        assert_eq!(given_up(), [false; 3], "nobody is given up in vain");
        let fourth = budget.answer(3, now + PATIENCE).unwrap();
        assert_eq!((given_up(), budget.lent()), (vec![true, false, false], 9));
        let mut body = budget.request();
        assert!(body.grow(4, now + 2 * PATIENCE), "a request's body has the same right");
        assert_eq!((given_up(), budget.lent()), (vec![true, true, false], 10));
        assert!(clients.iter().all(|client| client.owes()), "their memory goes with their connections");
        drop(lent);
        assert!(
            !clients.iter().any(|client| client.owes() || is_given_up(client)),
            "a next answer has a time of its own"
        );
        assert_eq!(budget.lent(), 7, "what was given up is not given back twice");
        let BodyMetrics { held, refused, given_up, .. } = &budget.metrics;
        assert_eq!((held.get(), refused.get(), given_up.get()), (7, 2, 2));
        drop((fourth, body));
        assert_eq!(budget.lent(), 0);
    }

    #[test]
    fn an_answer_that_no_connection_has_yet_stays() {
        let (budget, now) = (budget(10), Instant::now());
        let answer = budget.answer(10, now).unwrap();
        assert!(budget.answer(1, now + 2 * PATIENCE).is_none());
        let client = Arc::new(Debtor::default());
        answer.owed_by(&client);
        answer.owed_by(&Arc::default());
        let larger_than_all = budget.answer(11, now + 2 * PATIENCE);
        assert!(is_given_up(&client) && budget.lent() == 10);
        drop(larger_than_all);
        assert_eq!(budget.lent(), 0);
    }
}
