//! Budget of the memory that bodies take in the whole process: requests while they are collected and queued, large responses from
//! their first frame until their clients have read them, large heads over HTTP/2.
//!
//! Invariants:
//! - No more is reserved than the limit.
//! - No [`BudgetShare`] (one for each model, and one for all heads) takes more than half of what the others leave, of memory as of
//!   uploads: whatever the clients of one model hold, the next model has room.
//! - Before a request is refused, clients that have had a response for [`READ_GRACE`] without reading it are evicted, the longest
//!   first. Slow readers keep their memory as long as there is no other use for it.

use crate::metrics::BodyMetrics;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

/// Time for a client to read a response before its memory may go to another request.
pub const READ_GRACE: Duration = Duration::from_secs(1);

/// The whole budget.
#[derive(Debug)]
pub struct BodyBudget {
    limit: u64,
    /// Most bodies that are uploaded at a time: they take descriptors, and no memory of this process.
    upload_limit: u64,
    state: Mutex<State>,
    metrics: BodyMetrics,
}

/// Reservations of one model, or of the heads of all connections. Written under the lock of the budget's state.
#[derive(Debug)]
pub struct BudgetShare {
    budget: Arc<BodyBudget>,
    reserved: AtomicU64,
    uploads: AtomicU64,
}

/// Permit for the upload of one body, until it is dropped.
#[derive(Debug)]
pub struct UploadPermit(Arc<BudgetShare>);

#[derive(Debug, Default)]
struct State {
    reserved: u64,
    uploads: u64,
    next_number: u64,
    /// Responses that wait for their clients, in the order in which they came.
    responses: BTreeMap<u64, UnreadResponse>,
}

/// A response in memory.
#[derive(Debug)]
struct UnreadResponse {
    share: Arc<BudgetShare>,
    bytes: u64,
    since: Instant,
    /// `None` until it is assigned to a connection.
    reader: Option<Arc<SlowReader>>,
}

/// A client's connection, as the reader of responses that are in memory for it.
#[derive(Debug, Default)]
pub struct SlowReader {
    unread: AtomicUsize,
    evicted: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// Memory for a body that is being received, until it is dropped.
#[derive(Debug)]
pub struct BodyPermit {
    share: Arc<BudgetShare>,
    bytes: u64,
}

/// Memory for a whole response that its client has to read, until it is dropped.
#[derive(Debug)]
pub struct ResponsePermit {
    share: Arc<BudgetShare>,
    number: u64,
    reader: OnceLock<Arc<SlowReader>>,
}

impl BodyBudget {
    /// A budget of `limit` bytes, and of so many `uploads` at a time.
    #[must_use]
    pub fn new(limit: u64, uploads: usize, metrics: BodyMetrics) -> Arc<Self> {
        metrics.limit.set(i64::try_from(limit).unwrap_or(i64::MAX));
        Arc::new(Self { limit, upload_limit: uploads as u64, state: Mutex::default(), metrics })
    }

    /// A new share, with no reservations.
    #[must_use]
    pub fn share(self: &Arc<Self>) -> Arc<BudgetShare> {
        Arc::new(BudgetShare { budget: Arc::clone(self), reserved: AtomicU64::new(0), uploads: AtomicU64::new(0) })
    }

    /// Bytes that are reserved.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        self.state().reserved
    }

    fn change(&self, state: &mut State, share: &BudgetShare, change: impl Fn(u64) -> u64) {
        state.reserved = change(state.reserved);
        share.reserved.store(change(share.reserved.load(Ordering::Relaxed)), Ordering::Relaxed);
        self.metrics.reserved.set(i64::try_from(state.reserved).unwrap_or(i64::MAX));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The most that a share may reserve beside what the `others` have.
fn half_of_rest(limit: u64, others: u64) -> u64 {
    let rest = limit.saturating_sub(others);
    rest - rest / 2
}

impl State {
    /// Responses to evict so that a share gets so many bytes more; `None` when even that would not be enough.
    fn victims(&self, share: &BudgetShare, bytes: u64, limit: u64, now: Instant) -> Option<Vec<u64>> {
        let mut own = share.reserved.load(Ordering::Relaxed);
        let mut others = self.reserved - own;
        let fits = |own: u64, others| own.saturating_add(bytes) <= half_of_rest(limit, others);
        let mut victims = Vec::new();
        for (number, response) in &self.responses {
            if fits(own, others) || now.saturating_duration_since(response.since) < READ_GRACE {
                break; // later responses have waited less
            }
            if response.reader.is_some() {
                let reserved = if std::ptr::eq(&*response.share, share) { &mut own } else { &mut others };
                *reserved -= response.bytes;
                victims.push(*number);
            }
        }
        fits(own, others).then_some(victims)
    }
}

impl BudgetShare {
    /// Returns true if this many bytes could be reserved now, and counts a refusal otherwise.
    #[must_use]
    pub fn has_room(&self, bytes: u64, now: Instant) -> bool {
        let has_room = self.budget.state().victims(self, bytes, self.budget.limit, now).is_some();
        if !has_room {
            self.budget.metrics.refused.inc();
        }
        has_room
    }

    /// Permit for one upload; `None` when this share has as many as it may.
    #[must_use]
    pub fn upload(self: &Arc<Self>) -> Option<UploadPermit> {
        let mut state = self.budget.state();
        let own = self.uploads.load(Ordering::Relaxed);
        if own >= half_of_rest(self.budget.upload_limit, state.uploads - own) {
            self.budget.metrics.refused.inc();
            return None;
        }
        state.uploads += 1;
        self.uploads.store(own + 1, Ordering::Relaxed);
        Some(UploadPermit(Arc::clone(self)))
    }

    /// Permit for a body, of zero bytes at first.
    #[must_use]
    pub fn body(self: &Arc<Self>) -> BodyPermit {
        BodyPermit { share: Arc::clone(self), bytes: 0 }
    }

    /// Permit for a response whose first frame has arrived; `None` when there is no room for so many bytes.
    #[must_use]
    pub fn incoming_response(self: &Arc<Self>, bytes: u64, now: Instant) -> Option<BodyPermit> {
        let mut permit = self.body();
        let most = half_of_rest(self.budget.limit, 0);
        permit.grow(bytes.min(most), now).then_some(permit) // a single response that is larger gets the whole share
    }

    /// Permit for a whole response; `None` when there is no room for so many bytes.
    #[must_use]
    pub fn response(self: &Arc<Self>, bytes: u64, now: Instant) -> Option<ResponsePermit> {
        self.incoming_response(bytes, now).map(|permit| permit.into_response(now))
    }

    /// Reserves so many bytes more, and evicts slow readers for them where that is needed. Returns whether there was room.
    fn reserve(&self, bytes: u64, now: Instant) -> bool {
        self.reserve_in(&mut self.budget.state(), bytes, now)
    }

    fn reserve_in(&self, state: &mut State, bytes: u64, now: Instant) -> bool {
        let budget = &self.budget;
        let Some(victims) = state.victims(self, bytes, budget.limit, now) else {
            budget.metrics.refused.inc();
            return false;
        };
        let victims: Vec<UnreadResponse> = victims.iter().filter_map(|number| state.responses.remove(number)).collect();
        for victim in &victims {
            budget.change(state, &victim.share, |reserved| reserved - victim.bytes);
        }
        budget.change(state, self, |reserved| reserved + bytes);
        budget.metrics.evicted.inc_by(victims.len() as u64);
        // Under the lock, not concurrently with the drop of a permit, which clears it: a client that has read all of it after all is
        // not cut off.
        victims.iter().filter_map(|victim| victim.reader.as_ref()).for_each(|reader| reader.evict());
        true
    }
}

impl Drop for UploadPermit {
    fn drop(&mut self) {
        let mut state = self.0.budget.state();
        state.uploads -= 1;
        self.0.uploads.fetch_sub(1, Ordering::Relaxed);
    }
}

impl BodyPermit {
    /// Bytes that are reserved.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reserves so many bytes more. Returns whether there was room.
    #[must_use]
    pub fn grow(&mut self, bytes: u64, now: Instant) -> bool {
        let has_room = self.share.reserve(bytes, now);
        if has_room {
            self.bytes += bytes;
        }
        has_room
    }

    /// Takes so many of the bytes into a permit of their own.
    #[must_use]
    pub fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { share: Arc::clone(&self.share), bytes }
    }

    /// Moves the memory to another share of the same budget. Returns whether that has room.
    #[must_use]
    pub fn move_to(&mut self, share: &Arc<BudgetShare>, now: Instant) -> bool {
        if Arc::ptr_eq(&self.share, share) {
            return true;
        }
        let (budget, bytes) = (&share.budget, self.bytes);
        let mut state = budget.state();
        budget.change(&mut state, &self.share, |reserved| reserved - bytes);
        if !share.reserve_in(&mut state, bytes, now) {
            budget.change(&mut state, &self.share, |reserved| reserved + bytes);
            return false;
        }
        drop(state);
        self.share = Arc::clone(share);
        true
    }

    /// Passes the memory on to a whole response: from now on its client has to read it.
    #[must_use]
    pub fn into_response(mut self, now: Instant) -> ResponsePermit {
        let share = Arc::clone(&self.share);
        let bytes = std::mem::take(&mut self.bytes);
        let mut state = share.budget.state();
        let number = state.next_number;
        state.next_number += 1;
        let response = UnreadResponse { share: Arc::clone(&share), bytes, since: now, reader: None };
        state.responses.insert(number, response);
        drop(state);
        ResponsePermit { share, number, reader: OnceLock::new() }
    }
}

impl Drop for BodyPermit {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let budget = &self.share.budget;
            budget.change(&mut budget.state(), &self.share, |reserved| reserved - self.bytes);
        }
    }
}

impl ResponsePermit {
    /// Assigns the response to the connection that has to read it. Only the first call counts.
    pub fn assign(&self, reader: &Arc<SlowReader>) {
        if self.reader.set(Arc::clone(reader)).is_ok() {
            reader.unread.fetch_add(1, Ordering::Relaxed);
            if let Some(response) = self.share.budget.state().responses.get_mut(&self.number) {
                response.reader = Some(Arc::clone(reader));
            }
        }
    }
}

impl Drop for ResponsePermit {
    fn drop(&mut self) {
        let mut state = self.share.budget.state();
        // The memory of an evicted response is no longer reserved.
        if let Some(response) = state.responses.remove(&self.number) {
            self.share.budget.change(&mut state, &self.share, |reserved| reserved - response.bytes);
        }
        if let Some(reader) = self.reader.get()
            && reader.unread.fetch_sub(1, Ordering::Relaxed) == 1
        {
            reader.evicted.store(false, Ordering::Relaxed);
        }
    }
}

impl SlowReader {
    /// Returns true while a response to this client is in memory.
    #[must_use]
    pub fn has_unread(&self) -> bool {
        self.unread.load(Ordering::Relaxed) > 0
    }

    /// Returns true if this client was evicted. Otherwise the task of the latest call is woken by the eviction.
    #[must_use]
    pub fn is_evicted(&self, context: &Context<'_>) -> bool {
        let mut waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
        self.evicted.load(Ordering::Relaxed) // set before the lock is taken to wake
    }

    fn evict(&self) {
        self.evicted.store(true, Ordering::Relaxed);
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests;
