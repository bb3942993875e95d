//! The memory that bodies may take in the whole node: requests while they are collected and wait, large answers from their
//! beginning until their clients have taken them, large heads over HTTP/2. Lent out by the HTTP side; `omnictl status` shows it.
//!
//! Invariants: no more is lent than the limit. No [`Share`], which is a model's or that of all heads, takes more than half
//! of what the others leave, of memory as of places for uploads: whatever the clients of one model hold, the next one has
//! room. Before a request is refused, clients that have had an answer for [`PATIENCE`] without taking it are given up, the
//! longest first: memory of slow readers is lent as long as there is no other use for it.

use crate::metrics::BodyMetrics;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

/// For a client to take an answer before somebody else may have its room.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// All of it.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    /// Bodies that are uploaded into models at a time: they take descriptors, and no memory of this process.
    uploads: u64,
    state: Mutex<State>,
    metrics: BodyMetrics,
}

/// What one model has of it, or the heads of all connections. Written under the lock of the budget's state.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    lent: AtomicU64,
    uploads: AtomicU64,
}

/// The place of a body that is uploaded into a model, for as long as this lives.
#[derive(Debug)]
pub struct Place(Arc<Share>);

#[derive(Debug, Default)]
struct State {
    lent: u64,
    uploads: u64,
    next: u64,
    /// Answers in the order in which they came.
    answers: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    share: Arc<Share>,
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
    share: Arc<Share>,
    bytes: u64,
}

/// Room for an answer, for as long as this lives.
#[derive(Debug)]
pub struct Untaken {
    share: Arc<Share>,
    number: u64,
    client: OnceLock<Arc<Debtor>>,
}

impl Budget {
    /// A node's. `limit` in bytes; so many `uploads` at a time.
    #[must_use]
    pub fn new(limit: u64, uploads: usize, metrics: BodyMetrics) -> Arc<Self> {
        metrics.budget.set(i64::try_from(limit).unwrap_or(i64::MAX));
        Arc::new(Self { limit, uploads: uploads as u64, state: Mutex::default(), metrics })
    }

    /// A share of it, which has nothing yet.
    #[must_use]
    pub fn share(self: &Arc<Self>) -> Arc<Share> {
        Arc::new(Share { budget: Arc::clone(self), lent: AtomicU64::new(0), uploads: AtomicU64::new(0) })
    }

    /// Bytes that are lent.
    #[must_use]
    pub fn lent(&self) -> u64 {
        self.state().lent
    }

    fn change(&self, state: &mut State, share: &Share, change: impl Fn(u64) -> u64) {
        state.lent = change(state.lent);
        share.lent.store(change(share.lent.load(Ordering::Relaxed)), Ordering::Relaxed);
        self.metrics.held.set(i64::try_from(state.lent).unwrap_or(i64::MAX));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The most that a share may have beside the `others`.
fn half_of_rest(limit: u64, others: u64) -> u64 {
    let rest = limit.saturating_sub(others);
    rest - rest / 2
}

impl State {
    /// Answers whose room is needed for so many bytes more of a share; `None` when even that would not do.
    fn victims(&self, share: &Share, bytes: u64, limit: u64, now: Instant) -> Option<Vec<u64>> {
        let mut own = share.lent.load(Ordering::Relaxed);
        let mut others = self.lent - own;
        let fits = |own: u64, others| own.saturating_add(bytes) <= half_of_rest(limit, others);
        let mut victims = Vec::new();
        for (number, entry) in &self.answers {
            if fits(own, others) || now.saturating_duration_since(entry.since) < PATIENCE {
                break; // those that came later have waited less
            }
            if entry.client.is_some() {
                let lent = if std::ptr::eq(&*entry.share, share) { &mut own } else { &mut others };
                *lent -= entry.bytes;
                victims.push(*number);
            }
        }
        fits(own, others).then_some(victims)
    }
}

impl Share {
    /// Whether this much could be lent now. If not, it counts as refused.
    #[must_use]
    pub fn has(&self, bytes: u64, now: Instant) -> bool {
        let has = self.budget.state().victims(self, bytes, self.budget.limit, now).is_some();
        if !has {
            self.budget.metrics.refused.inc();
        }
        has
    }

    /// The place of a body that is uploaded into a model; `None` when all of this share are taken.
    #[must_use]
    pub fn upload(self: &Arc<Self>) -> Option<Place> {
        let mut state = self.budget.state();
        let own = self.uploads.load(Ordering::Relaxed);
        if own >= half_of_rest(self.budget.uploads, state.uploads - own) {
            self.budget.metrics.refused.inc();
            return None;
        }
        state.uploads += 1;
        self.uploads.store(own + 1, Ordering::Relaxed);
        Some(Place(Arc::clone(self)))
    }

    /// Room for a request's body, none of it yet.
    #[must_use]
    pub fn request(self: &Arc<Self>) -> Held {
        Held { share: Arc::clone(self), bytes: 0 }
    }

    /// Room for an answer whose beginning came from a model; `None` when there is not so much.
    #[must_use]
    pub fn begun(self: &Arc<Self>, bytes: u64, now: Instant) -> Option<Held> {
        let mut held = self.request();
        let most = half_of_rest(self.budget.limit, 0);
        held.grow(bytes.min(most), now).then_some(held) // a single one that is larger has all of the share
    }

    /// Room for an answer; `None` when there is not so much.
    #[must_use]
    pub fn answer(self: &Arc<Self>, bytes: u64, now: Instant) -> Option<Untaken> {
        self.begun(bytes, now).map(|held| held.untaken(now))
    }

    /// Lends so much more; says whether there was so much.
    fn lend(&self, bytes: u64, now: Instant) -> bool {
        let budget = &self.budget;
        let mut state = budget.state();
        let Some(victims) = state.victims(self, bytes, budget.limit, now) else {
            budget.metrics.refused.inc();
            return false;
        };
        let victims: Vec<Entry> = victims.iter().filter_map(|number| state.answers.remove(number)).collect();
        for victim in &victims {
            budget.change(&mut state, &victim.share, |lent| lent - victim.bytes);
        }
        budget.change(&mut state, self, |lent| lent + bytes);
        budget.metrics.given_up.inc_by(victims.len() as u64);
        // Under the lock, not beside an end that clears it: a client that has taken all of it after all is not cut.
        victims.iter().filter_map(|victim| victim.client.as_ref()).for_each(|client| client.give_up());
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.0.budget.state();
        state.uploads -= 1;
        self.0.uploads.fetch_sub(1, Ordering::Relaxed);
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
        let lent = self.share.lend(bytes, now);
        if lent {
            self.bytes += bytes;
        }
        lent
    }

    /// The same room, for an answer that is whole from now on: its client has to take it.
    #[must_use]
    pub fn untaken(mut self, now: Instant) -> Untaken {
        let share = Arc::clone(&self.share);
        let bytes = std::mem::take(&mut self.bytes);
        let mut state = share.budget.state();
        let number = state.next;
        state.next += 1;
        state.answers.insert(number, Entry { share: Arc::clone(&share), bytes, since: now, client: None });
        drop(state);
        Untaken { share, number, client: OnceLock::new() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let budget = &self.share.budget;
            budget.change(&mut budget.state(), &self.share, |lent| lent - self.bytes);
        }
    }
}

impl Untaken {
    /// Who is to take it. The first one counts.
    pub fn owed_by(&self, client: &Arc<Debtor>) {
        if self.client.set(Arc::clone(client)).is_ok() {
            client.answers.fetch_add(1, Ordering::Relaxed);
            if let Some(entry) = self.share.budget.state().answers.get_mut(&self.number) {
                entry.client = Some(Arc::clone(client));
            }
        }
    }
}

impl Drop for Untaken {
    fn drop(&mut self) {
        let mut state = self.share.budget.state();
        // One that was given up is not lent any more.
        if let Some(entry) = state.answers.remove(&self.number) {
            self.share.budget.change(&mut state, &self.share, |lent| lent - entry.bytes);
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
#[path = "budget_tests.rs"]
mod tests;
