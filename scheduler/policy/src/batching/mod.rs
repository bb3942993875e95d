//! Sizes and moments of adaptive batches: how many waiting requests an idle instance gets at once, and whether it waits for more.
//!
//! ```text
//!            ┌──────────── next batch is sent ◀───────────┐
//!            ▼                                            │
//!          busy ──end of the batch──▶ idle, window open ──┤
//!                                         │ window ends   │
//!                                         └──▶ idle ──────┘
//! ```
//!
//! A batch leaves as soon as the instance is idle and a request waits, with one exception. Clients that send one request after the
//! other return a moment after their batch has ended; taking the first of them alone would split them into two groups that take
//! turns for good, at half the throughput. So it is learnt what share of a batch's clients returns within a [`window`], and when the
//! last of them does ([`returns`]). After the end of a batch the next one waits for as many, at most until the end of the window,
//! and only while the delay of the whole batch costs less than the batches that the wait saves:
//! `(waiting + expected joiners) × expected time until the last return < expected joiners × fixed cost of a batch`. A request that
//! finds the instance idle outside of a window never waits.
//!
//! Invariants: a batch is within its bounds unless it is a single request; no request waits for others beyond the window, or so long
//! that its deadline cannot be kept.

mod pace;
mod returns;

pub use returns::window;

use crate::{Moment, nanos};
use pace::Pace;
use returns::{Arrivals, Returns};

/// Bounds of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchBounds {
    /// Most requests, at least 1.
    pub requests: u32,
    /// Most cost of all requests together, in the model's units.
    pub cost: u64,
}

/// Request that waits for a batch, in the order of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Cost in the model's units.
    pub cost: u64,
    /// Moment at which its client stops waiting.
    pub deadline: Moment,
}

/// Decision for an idle instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchDecision {
    /// No request waits.
    Idle,
    /// The first requests of the queue, so many, form a batch now.
    Send(usize),
    /// More requests are expected until this moment. Another arrival calls for a new decision.
    Wait(Moment),
}

/// Batches of one instance.
#[derive(Debug, Clone, Default)]
pub struct Batcher {
    pace: Pace,
    running: Option<Running>,
    /// Arrivals since the last batch, which are counted until the end of the comparison.
    arrivals: Option<Arrivals>,
    returns: Returns,
}

/// Batch that the instance works on.
#[derive(Debug, Clone, Copy)]
struct Running {
    from: Moment,
    requests: usize,
}

impl Batcher {
    /// End of the last batch after which arrivals are counted at this moment.
    #[must_use]
    pub fn counts_since(&self, now: Moment) -> Option<Moment> {
        self.arrivals.filter(|arrivals| now < arrivals.end()).map(|arrivals| arrivals.from)
    }

    /// Number of arrivals that count as returns after the last batch.
    #[cfg(test)]
    pub(crate) fn returned(&self) -> usize {
        self.arrivals.map_or(0, |arrivals| arrivals.returned)
    }

    /// Notes an arrival at the queue.
    pub fn on_arrival(&mut self, now: Moment) {
        self.learn(now);
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.add(now);
        }
    }

    /// Notes that a batch was sent.
    pub fn on_sent(&mut self, requests: usize, now: Moment) {
        self.running = Some(Running { from: now, requests });
    }

    /// Notes that the instance has ended its batch.
    pub fn on_end(&mut self, now: Moment) {
        self.learn(Moment::MAX);
        if let Some(Running { from, requests }) = self.running.take() {
            self.pace.add(requests, now.saturating_sub(from));
            self.arrivals = Some(Arrivals::new(requests, now));
        }
    }

    /// Decides on the next batch of an instance that is idle. `queue`: the requests that wait.
    pub fn decide(
        &mut self,
        queue: impl Iterator<Item = Candidate>,
        bounds: BatchBounds,
        now: Moment,
    ) -> BatchDecision {
        self.learn(now);
        let batch = Batch::first(queue, bounds);
        if batch.requests == 0 {
            return BatchDecision::Idle;
        }
        let window = self.arrivals.filter(|arrivals| !batch.full && now < arrivals.window_end());
        match window.and_then(|arrivals| self.wait(&arrivals, &batch, now)) {
            None => BatchDecision::Send(batch.requests),
            Some(until) => BatchDecision::Wait(until),
        }
    }

    /// End of the wait for clients that are expected to return, if it pays.
    fn wait(&self, arrivals: &Arrivals, batch: &Batch, now: Moment) -> Option<Moment> {
        let joiners = self.returns.expected(arrivals);
        let requests = batch.requests + joiners;
        let latest = batch.deadline.saturating_sub(self.pace.time(requests));
        let until = self.returns.last(arrivals, now).min(latest);
        let rest = until.saturating_sub(now);
        let wait_costs = nanos(rest) as f64 * requests as f64;
        let wait_saves = nanos(self.pace.fixed()) as f64 * joiners as f64;
        (joiners > 0 && !rest.is_zero() && wait_costs < wait_saves).then_some(until)
    }

    /// Learns from the arrivals after a batch once they are complete.
    fn learn(&mut self, now: Moment) {
        if let Some(arrivals) = self.arrivals.take_if(|arrivals| now >= arrivals.end()) {
            self.returns.add(&arrivals);
        }
    }
}

/// The first requests of the queue that fit into one batch.
#[derive(Debug)]
struct Batch {
    requests: usize,
    /// No further request would fit.
    full: bool,
    /// Earliest deadline.
    deadline: Moment,
}

impl Batch {
    fn first(queue: impl Iterator<Item = Candidate>, bounds: BatchBounds) -> Self {
        let mut batch = Self { requests: 0, full: false, deadline: Moment::MAX };
        let mut cost = 0_u64;
        for candidate in queue {
            cost = cost.saturating_add(candidate.cost);
            // A request that is too large for any batch is one of its own.
            if batch.requests > 0 && cost > bounds.cost {
                batch.full = true;
                break;
            }
            batch.requests += 1;
            batch.deadline = batch.deadline.min(candidate.deadline);
            if batch.requests >= bounds.requests as usize || cost >= bounds.cost {
                batch.full = true;
                break;
            }
        }
        batch
    }
}

#[cfg(test)]
mod tests;
