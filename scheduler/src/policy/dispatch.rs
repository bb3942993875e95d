//! Which request goes to the model when: one queue and one instance.
//!
//! The model's task owns a [`Dispatch`] and carries out what it says. What always holds:
//! - requests are sent in the order in which they came;
//! - at most `concurrency` requests run at once;
//! - `waiting` and `sent` together never exceed `concurrency + queue`;
//! - after a death only requests that may have begun fail; the others wait again, in front and in order.
//!
//! A serial handler takes requests in the order of its connection, so one that lies in its socket has not begun before
//! the one ahead of it is answered. Fast handlers are therefore sent a few requests ahead, as many as fit into
//! [`AHEAD_TIME`] of their usual work: this hides the round trip, and costs nothing when the instance dies.

use super::Moment;
use omni_ipc::engine::HandlerMode;
use std::collections::VecDeque;
use std::time::Duration;

/// Work that may lie ahead in the socket of a serial handler.
pub const AHEAD_TIME: Duration = Duration::from_millis(1);
/// The most requests that may lie ahead.
pub const AHEAD_LIMIT: u32 = 32;
/// Requests that are timed before any is sent ahead.
const SAMPLES_BEFORE_AHEAD: u32 = 8;

/// A request, unique for the life of the scheduler.
pub type RequestId = u64;

/// What became of a new request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It waits for its turn; ask [`Dispatch::next`].
    Waits,
    /// The queue is full: refuse it.
    Full,
}

/// What a cancelled request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It had not been sent: it is forgotten.
    Unqueued,
    /// The model has it: tell the model; its last frame is still to come.
    TellModel,
    /// It is finished already.
    Unknown,
}

/// Requests of an instance that is gone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lost {
    /// They may have begun: they fail.
    pub failed: Vec<RequestId>,
    /// Cancelled ones among the rest; nobody waits for them.
    pub dropped: Vec<RequestId>,
}

#[derive(Debug, Clone, Copy)]
struct Sent {
    id: RequestId,
    /// When it could begin: sent, or the one before it finished.
    from: Moment,
    cancelled: bool,
}

/// The queue of a model and the requests its instance has.
#[derive(Debug)]
pub struct Dispatch {
    waiting: VecDeque<RequestId>,
    sent: VecDeque<Sent>,
    /// How the instance works.
    mode: HandlerMode,
    /// Whether the instance takes further requests.
    open: bool,
    concurrency: u32,
    queue: u32,
    pace: Pace,
}

impl Dispatch {
    /// An empty queue. `concurrency` is at least 1.
    #[must_use]
    pub fn new(concurrency: u32, queue: u32) -> Self {
        Self {
            waiting: VecDeque::new(),
            sent: VecDeque::new(),
            mode: HandlerMode::Serial,
            open: false,
            concurrency,
            queue,
            pace: Pace::default(),
        }
    }

    /// New bounds, from a changed manifest. Nothing that waits is thrown out.
    pub fn set_bounds(&mut self, concurrency: u32, queue: u32) {
        self.concurrency = concurrency;
        self.queue = queue;
    }

    /// An instance takes requests from now on.
    pub fn open(&mut self, mode: HandlerMode) {
        self.mode = mode;
        self.open = true;
        self.pace = Pace::default();
    }

    /// The instance takes no further requests; those it has go on.
    pub fn close(&mut self) {
        self.open = false;
    }

    /// A request came.
    pub fn submit(&mut self, id: RequestId) -> Admission {
        if self.waiting.len() + self.sent.len() >= self.concurrency as usize + self.queue as usize {
            return Admission::Full;
        }
        self.waiting.push_back(id);
        Admission::Waits
    }

    /// The next request to send now, if there is one and the instance has room.
    pub fn next(&mut self, now: Moment) -> Option<RequestId> {
        if !self.open || self.sent.len() >= self.window() {
            return None;
        }
        let id = self.waiting.pop_front()?;
        self.sent.push_back(Sent { id, from: now, cancelled: false });
        Some(id)
    }

    /// The last frame of a request came. Returns whether the request was one of those sent.
    pub fn finished(&mut self, id: RequestId, now: Moment) -> bool {
        let Some(at) = self.sent.iter().position(|sent| sent.id == id) else { return false };
        if let Some(done) = self.sent.remove(at)
            && at == 0
        {
            self.pace.add(now.saturating_sub(done.from));
            if let Some(head) = self.sent.front_mut() {
                head.from = head.from.max(now);
            }
        }
        true
    }

    /// Nobody waits for this request any more.
    pub fn cancel(&mut self, id: RequestId) -> Cancelled {
        if let Some(sent) = self.sent.iter_mut().find(|sent| sent.id == id) {
            sent.cancelled = true;
            return Cancelled::TellModel;
        }
        match self.waiting.iter().position(|waiting| *waiting == id) {
            Some(at) => {
                self.waiting.remove(at);
                Cancelled::Unqueued
            }
            None => Cancelled::Unknown,
        }
    }

    /// Whether a cancelled request runs, so that its handler may be ignoring the cancellation.
    #[must_use]
    pub fn cancelled_and_begun(&self) -> bool {
        self.begun().any(|sent| sent.cancelled)
    }

    /// The instance is gone: requests that may have begun are lost, the others wait again in front.
    pub fn lost(&mut self) -> Lost {
        let begun = self.begun().count();
        let mut lost = Lost::default();
        for (place, sent) in std::mem::take(&mut self.sent).into_iter().enumerate().rev() {
            if place < begun {
                lost.failed.insert(0, sent.id);
            } else if sent.cancelled {
                lost.dropped.push(sent.id);
            } else {
                self.waiting.push_front(sent.id);
            }
        }
        self.open = false;
        lost
    }

    /// Takes everything that waits, to refuse it.
    pub fn give_up(&mut self) -> Vec<RequestId> {
        self.waiting.drain(..).collect()
    }

    /// All requests that the instance has.
    #[must_use]
    pub fn sent_ids(&self) -> Vec<RequestId> {
        self.sent.iter().map(|sent| sent.id).collect()
    }

    /// Requests that run or lie in the instance's socket.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.sent.len()
    }

    /// Requests that wait here.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Time the handler usually takes, once it is known.
    #[must_use]
    pub fn usual_time(&self) -> Option<Duration> {
        self.pace.usual()
    }

    fn begun(&self) -> impl Iterator<Item = &Sent> {
        let begun = match self.mode {
            HandlerMode::Serial => 1,
            HandlerMode::Concurrent => self.sent.len(),
        };
        self.sent.iter().take(begun)
    }

    fn window(&self) -> usize {
        match self.mode {
            HandlerMode::Serial => 1 + self.pace.ahead() as usize,
            HandlerMode::Concurrent => self.concurrency as usize,
        }
    }
}

/// How long a handler takes: an exponential average over about eight requests.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    average: Duration,
    samples: u32,
}

impl Pace {
    fn add(&mut self, took: Duration) {
        self.average = if self.samples == 0 { took } else { (self.average * 7 + took) / 8 };
        self.samples = self.samples.saturating_add(1);
    }

    fn usual(&self) -> Option<Duration> {
        (self.samples > 0).then_some(self.average)
    }

    fn ahead(&self) -> u32 {
        if self.samples < SAMPLES_BEFORE_AHEAD {
            return 0;
        }
        let fit = AHEAD_TIME.as_nanos() / self.average.as_nanos().max(1);
        u32::try_from(fit).unwrap_or(AHEAD_LIMIT).min(AHEAD_LIMIT)
    }
}

#[cfg(test)]
#[path = "dispatch_tests.rs"]
mod tests;
