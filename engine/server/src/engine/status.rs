//! Numbers of the engine, for health and metrics.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Numbers of the engine at a moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct Status {
    /// Numbers of the batcher.
    pub batcher: omni_batcher::Status,
    /// Steps since the start.
    pub steps: u64,
    /// Tokens that were computed, those of prompts and rejected drafts included.
    pub computed_tokens: u64,
    /// Tokens of answers.
    pub answer_tokens: u64,
    /// Drafted tokens.
    pub drafted_tokens: u64,
    /// Accepted ones of these.
    pub accepted_tokens: u64,
    /// Time in steps.
    pub step_time: Duration,
    /// Sequences of the last step.
    pub batch: usize,
    /// The backend has given its memory back.
    pub is_asleep: bool,
    /// Time since the step that runs has begun, or since the one that is due; `None` without requests.
    pub stalled: Option<Duration>,
    /// The same where it is longer than a step may take; `None`: the engine is well.
    pub hung: Option<Duration>,
    /// Blocks of the draft model that sequences use.
    pub draft_blocks: usize,
    /// Bytes of requests that wait.
    pub queued_bytes: usize,
}

/// Numbers that the thread writes and others read.
pub(super) struct Shared {
    written: Mutex<Written>,
    /// Held while the events of a step are sent.
    sending: Mutex<()>,
    /// Age of a step from which the engine counts as hung.
    hung: Duration,
}

#[derive(Default)]
struct Written {
    status: Status,
    since: Option<Instant>,
}

impl Shared {
    pub(super) fn new(hung: Duration) -> Self {
        Self { written: Mutex::default(), sending: Mutex::default(), hung }
    }

    /// Sends the events of a step.
    pub(super) fn send(&self, send: impl FnOnce()) {
        let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        send();
    }

    /// Waits until the events of the step are sent, if they are on their way.
    pub(super) fn wait_until_sent(&self) {
        drop(self.sending.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Notes that a step begins.
    pub(super) fn begin(&self, now: Instant) {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).since = Some(now);
    }

    /// Notes the end of a step, or of all work.
    pub(super) fn write(&self, status: Status, is_idle: bool, now: Instant) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        *written = Written { status, since: (!is_idle).then_some(now) };
    }

    pub(super) fn status(&self) -> Status {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let stalled = written.since.map(|since| since.elapsed());
        Status { stalled, hung: stalled.filter(|stalled| *stalled > self.hung), ..written.status }
    }
}
