//! Route to one instance: the requests it has, how many more it may get, and its pace.
//!
//! The members of a batch begin and are cancelled together: the handler is interrupted once its last member is.
//!
//! ```text
//!   (new) ──enable──▶ enabled ──disable──▶ disabled ──instance gone──▶ (removed)
//! ```

use super::queue::Waiting;
use super::{AHEAD_LIMIT, AHEAD_TIME, HandlerMode, RequestId, StuckHandlers};
use crate::batching::Batcher;
use crate::{InstanceNumber, Moment, nanos};
use std::collections::VecDeque;
use std::time::Duration;

/// Number of requests that are timed before any is sent ahead.
const SAMPLES_BEFORE_AHEAD: u32 = 8;

/// Request that the instance has.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) request: Waiting,
    /// Earliest begin in nanoseconds: when it was sent, or when the one before it finished.
    from: u64,
    /// Time of its cancellation in nanoseconds.
    cancelled: Option<u64>,
    /// The handler ignores the cancellation; its slot is lost.
    written_off: bool,
}

impl Sent {
    pub(super) fn id(&self) -> RequestId {
        self.request.id
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.is_some()
    }

    pub(super) fn cancel(&mut self, now: Moment) {
        self.cancelled.get_or_insert(nanos(now));
    }
}

/// Instance that takes requests, or has some that are not finished.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) instance: InstanceNumber,
    /// Hash of its name, the same in each scheduler.
    pub(super) name: u64,
    /// The instance takes further requests.
    pub(super) enabled: bool,
    pub(super) sent: VecDeque<Sent>,
    /// Number of requests of another scheduler that it has.
    pub(super) external_requests: u32,
    /// Number of requests in `sent` that are written off.
    written_off: usize,
    mode: HandlerMode,
    concurrency: u32,
    pace: Pace,
    /// Sizes of batches, in the mode that has them.
    pub(super) batcher: Batcher,
}

impl Route {
    pub(super) fn new(instance: InstanceNumber, name: u64) -> Self {
        Self {
            instance,
            name,
            enabled: false,
            sent: VecDeque::new(),
            external_requests: 0,
            written_off: 0,
            mode: HandlerMode::Serial,
            concurrency: 1,
            pace: Pace::default(),
            batcher: Batcher::default(),
        }
    }

    pub(super) fn enable(&mut self, mode: HandlerMode, concurrency: u32) {
        self.enabled = true;
        self.mode = mode;
        self.concurrency = concurrency;
        self.pace = Pace::default();
        self.batcher = Batcher::default();
    }

    /// Mode of its handler.
    pub(super) fn mode(&self) -> HandlerMode {
        self.mode
    }

    pub(super) fn has_room(&self) -> bool {
        let window = match self.mode {
            HandlerMode::Serial if self.written_off > 0 => 0,
            HandlerMode::Serial => 1 + self.pace.ahead() as usize,
            HandlerMode::Concurrent => self.concurrency as usize,
            HandlerMode::Batches(_) => 1,
        };
        self.enabled && self.has() < window
    }

    /// Returns whether its load relative to its concurrency is lower.
    pub(super) fn is_less_loaded_than(&self, other: &Self) -> bool {
        self.has() as u64 * other.at_once() < other.has() as u64 * self.at_once()
    }

    /// Number of requests it has, from any scheduler.
    fn has(&self) -> usize {
        self.sent.len() + self.external_requests as usize
    }

    fn at_once(&self) -> u64 {
        match self.mode {
            HandlerMode::Serial => 1,
            HandlerMode::Concurrent => self.concurrency.into(),
            HandlerMode::Batches(bounds) => bounds.requests.into(),
        }
    }

    pub(super) fn send(&mut self, request: Waiting, now: Moment) {
        self.sent.push_back(Sent { request, from: nanos(now), cancelled: None, written_off: false });
    }

    /// Sends requests that are handled together; the route has no other.
    pub(super) fn send_batch(&mut self, requests: &[Waiting], now: Moment) {
        for request in requests {
            self.send(*request, now);
        }
        self.batcher.on_sent(requests.len(), now);
    }

    /// Removes a request whose last frame has arrived. Returns whether it was here.
    pub(super) fn finish(&mut self, id: RequestId, now: Moment) -> bool {
        let Some(at) = self.sent.iter().position(|sent| sent.id() == id) else { return false };
        let Some(finished) = self.sent.remove(at) else { return false };
        self.written_off -= usize::from(finished.written_off);
        match self.mode {
            HandlerMode::Serial | HandlerMode::Concurrent if at > 0 => {}
            HandlerMode::Serial | HandlerMode::Concurrent => {
                self.pace.add(nanos(now).saturating_sub(finished.from));
                if let Some(next) = self.sent.front_mut() {
                    next.from = next.from.max(nanos(now));
                }
            }
            HandlerMode::Batches(_) if self.sent.is_empty() => {
                self.pace.add(nanos(now).saturating_sub(finished.from));
                self.batcher.on_end(now);
            }
            HandlerMode::Batches(_) => {}
        }
        true
    }

    /// Number of requests at the front that may have begun.
    pub(super) fn begun(&self) -> usize {
        match self.mode {
            HandlerMode::Serial => self.sent.len().min(1),
            HandlerMode::Concurrent | HandlerMode::Batches(_) => self.sent.len(),
        }
    }

    /// Start of a request's run after its cancellation, in nanoseconds, if its handler can be ignoring that.
    fn overrun_from(&self, sent: &Sent) -> Option<u64> {
        match self.mode {
            // The cancellation may have come while it waited behind another request.
            HandlerMode::Serial => Some(sent.cancelled?.max(sent.from)),
            HandlerMode::Concurrent => sent.cancelled,
            HandlerMode::Batches(_) => self.sent.iter().try_fold(0, |last, other| Some(other.cancelled?.max(last))),
        }
    }

    /// Earliest start of a run after a cancellation, among requests that may have begun and are not written off.
    pub(super) fn cancelled_since(&self) -> Option<Moment> {
        let begun = self.sent.iter().take(self.begun()).filter(|sent| !sent.written_off);
        begun.filter_map(|sent| self.overrun_from(sent)).min().map(Duration::from_nanos)
    }

    /// Writes off and returns the requests whose handlers have been running cancelled since `since` or longer.
    pub(super) fn write_off(&mut self, since: Moment) -> Vec<RequestId> {
        let since = nanos(since);
        let is_late = |sent: &Sent| !sent.written_off && self.overrun_from(sent).is_some_and(|at| at <= since);
        let late = self.sent.iter().take(self.begun()).filter(|sent| is_late(sent)).map(Sent::id);
        let late: Vec<_> = late.collect();
        for sent in self.sent.iter_mut().filter(|sent| late.contains(&sent.id())) {
            sent.written_off = true;
        }
        self.written_off += late.len();
        late
    }

    /// Number of requests that count as load and against the bound of accepted requests.
    pub(super) fn counted(&self) -> usize {
        self.sent.len() - self.written_off
    }

    /// State left by its stuck handlers; `None` while there are none.
    pub(super) fn stuck_handlers(&self) -> Option<StuckHandlers> {
        let at_once = match self.mode {
            HandlerMode::Serial | HandlerMode::Batches(_) => 1,
            HandlerMode::Concurrent => self.concurrency as usize,
        };
        (self.written_off > 0).then(|| StuckHandlers {
            other_requests: self.external_requests > 0 || self.begun() > self.written_off,
            free_slots: self.written_off < at_once,
        })
    }

    pub(super) fn average_time(&self) -> Option<Duration> {
        self.pace.usual()
    }
}

/// Notes the arrival of a request for batches at the instance whose batch ended last: its clients are the likeliest to return.
pub(super) fn note_arrival(routes: &mut [Route], now: Moment) {
    let counting = routes.iter_mut().filter_map(|route| Some((route.batcher.counts_since(now)?, route)));
    if let Some((_, route)) = counting.max_by_key(|(since, _)| *since) {
        route.batcher.on_arrival(now);
    }
}

/// Time a handler takes, in nanoseconds: exponential average over about eight requests.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    average: u64,
    samples: u32,
}

impl Pace {
    fn add(&mut self, took: u64) {
        self.average = if self.samples == 0 { took } else { self.average - self.average / 8 + took / 8 };
        self.samples = self.samples.saturating_add(1);
    }

    fn usual(&self) -> Option<Duration> {
        (self.samples > 0).then_some(Duration::from_nanos(self.average))
    }

    fn ahead(&self) -> u32 {
        if self.samples < SAMPLES_BEFORE_AHEAD {
            return 0;
        }
        let fit = nanos(AHEAD_TIME) / self.average.max(1);
        u32::try_from(fit).unwrap_or(AHEAD_LIMIT).min(AHEAD_LIMIT)
    }
}
