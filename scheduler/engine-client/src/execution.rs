//! Execution of a request: where it was sent, and what its handler reported. Shared with whoever writes the record of its
//! usage, which every end of the request needs: an answer, a failure, a client that goes away.

use crate::waits::{StartTimes, Swap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Execution of one request.
#[derive(Debug, Clone, Default)]
pub struct Execution(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    sent: Option<SentTo>,
    reported: Vec<(String, u64)>,
}

/// Instance, as answers and records name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceName {
    /// Id of the instance.
    pub id: String,
    /// Short version of the model that it runs.
    pub version: String,
}

/// Instance that got a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentTo {
    /// When it was sent.
    pub at: Instant,
    /// The instance.
    pub instance: Arc<InstanceName>,
    /// The instance's last wait for GPU memory before that, if there was one.
    pub swap: Option<Swap>,
    /// The start of the instance.
    pub start: StartTimes,
}

impl Execution {
    /// Notes that the request was sent; the last time counts.
    pub(crate) fn on_sent(&self, to: SentTo) {
        self.state().sent = Some(to);
    }

    /// Notes the units that the handler has reported.
    pub(crate) fn on_reported(&self, units: &[(String, u64)]) {
        self.state().reported = units.to_vec();
    }

    /// Takes the instance that got the request last, and the units that the handler has reported.
    #[must_use]
    pub fn take(&self) -> (Option<SentTo>, Vec<(String, u64)>) {
        let State { sent, reported } = std::mem::take(&mut *self.state());
        (sent, reported)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
