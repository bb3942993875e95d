//! Sizes and moments of adaptive batches: how many waiting requests an idle instance gets at once, and whether it waits for more.
//!
//! ```text
//!            ┌──────────── next batch is sent ◀───────────┐
//!            ▼                                            │
//!          busy ──end of the batch──▶ idle, window open ──┤
//!                                         │ 1 ms          │
//!                                         └──▶ idle ──────┘
//! ```
//!
//! A batch leaves as soon as the instance is idle and a request waits, with one exception. Clients that send one request after the
//! other return a moment after their batch has ended; taking the first of them alone would split them into two groups that take
//! turns for good, at half the throughput. So the share of a batch's clients that return within [`WINDOW`] is learnt, and after the end
//! of a batch the next one waits for as many, at most for the rest of the window, and only while the wait of those who are there
//! already costs less than the batches that it saves: `waiting × rest of the window < fixed cost of a batch × expected joiners`. A
//! request that finds the instance idle outside of a window never waits.
//!
//! Invariants: a batch is within its bounds unless it is a single request; no request waits for others beyond [`WINDOW`], or so long
//! that its deadline cannot be kept.

mod pace;

use crate::{Moment, nanos};
use pace::Pace;
use std::time::Duration;

/// Time after the end of a batch in which its clients are expected to return. Measured: clients on the same machine return after
/// 0.1 to 0.6 ms; a longer window costs other requests more than it gains.
pub const WINDOW: Duration = Duration::from_millis(1);
/// Weight of the newest batch in the learnt share: 1 in so many.
const SHARE_SAMPLES: f64 = 4.0;

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
    window: Option<Window>,
    /// Share of the clients of a batch that return within the window, 0 to 1.
    returning: f64,
}

/// Batch that the instance works on.
#[derive(Debug, Clone, Copy)]
struct Running {
    from: Moment,
    requests: usize,
}

/// Time after the end of a batch in which its clients are expected.
#[derive(Debug, Clone, Copy)]
struct Window {
    from: Moment,
    /// Requests of the batch that has ended.
    batch: usize,
    /// Requests that have arrived since.
    arrived: usize,
}

impl Window {
    fn end(&self) -> Moment {
        self.from + WINDOW
    }
}

impl Batcher {
    /// Returns whether clients of the last batch are expected to return.
    #[must_use]
    pub fn is_window_open(&self, now: Moment) -> bool {
        self.window.is_some_and(|window| now < window.end())
    }

    /// Notes an arrival at the queue.
    pub fn on_arrival(&mut self, now: Moment) {
        self.close_window(now);
        if let Some(window) = &mut self.window {
            window.arrived += 1;
        }
    }

    /// Notes that a batch was sent.
    pub fn on_sent(&mut self, requests: usize, now: Moment) {
        self.running = Some(Running { from: now, requests });
    }

    /// Notes that the instance has ended its batch.
    pub fn on_end(&mut self, now: Moment) {
        self.close_window(Moment::MAX);
        if let Some(Running { from, requests }) = self.running.take() {
            self.pace.add(requests, now.saturating_sub(from));
            self.window = Some(Window { from: now, batch: requests, arrived: 0 });
        }
    }

    /// Decides on the next batch of an instance that is idle. `queue`: the requests that wait.
    pub fn decide(
        &mut self,
        queue: impl Iterator<Item = Candidate>,
        bounds: BatchBounds,
        now: Moment,
    ) -> BatchDecision {
        self.close_window(now);
        let batch = Batch::first(queue, bounds);
        if batch.requests == 0 {
            return BatchDecision::Idle;
        }
        match self.window.filter(|_| !batch.full) {
            None => BatchDecision::Send(batch.requests),
            Some(window) => match self.wait(&window, &batch, now) {
                None => BatchDecision::Send(batch.requests),
                Some(until) => BatchDecision::Wait(until),
            },
        }
    }

    /// End of the wait for clients that are expected to return, if it pays.
    fn wait(&self, window: &Window, batch: &Batch, now: Moment) -> Option<Moment> {
        let expected = (window.batch as f64 * self.returning).round() as usize;
        let joiners = expected.saturating_sub(window.arrived);
        let latest = batch.deadline.saturating_sub(self.pace.time(batch.requests + joiners));
        let until = window.end().min(latest);
        let rest = until.saturating_sub(now);
        let wait_costs = nanos(rest) as f64 * batch.requests as f64;
        let wait_saves = nanos(self.pace.fixed()) as f64 * joiners as f64;
        (joiners > 0 && !rest.is_zero() && wait_costs < wait_saves).then_some(until)
    }

    /// Learns from a window that is over.
    fn close_window(&mut self, now: Moment) {
        if let Some(window) = self.window.filter(|window| now >= window.end()) {
            self.window = None;
            let share = window.arrived.min(window.batch) as f64 / window.batch.max(1) as f64;
            self.returning += (share - self.returning) / SHARE_SAMPLES;
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
