//! Requests of a connection: their credit, and their cancellation.

use omni_engine_protocol::frame::{CancelReason, INITIAL_CREDIT};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Semaphore, oneshot};

/// Most cancellations that are kept for requests that have not come yet.
const EARLY: usize = 4096;

/// Requests of a connection.
#[derive(Default)]
pub(super) struct Registry(Mutex<Requests>);

#[derive(Default)]
struct Requests {
    live: HashMap<u64, Live>,
    /// Requests that were cancelled before they came, the oldest first.
    early: VecDeque<(u64, u16)>,
}

struct Live {
    credit: Arc<Semaphore>,
    cancel: oneshot::Sender<u16>,
}

/// Signals to a request's task.
pub(super) struct Signals {
    /// Bytes of chunks that may be sent.
    pub(super) credit: Arc<Semaphore>,
    /// Status of its cancellation.
    pub(super) cancelled: oneshot::Receiver<u16>,
}

impl Registry {
    /// Adds a request. `None`: as many live as may.
    pub(super) fn add(&self, id: u64, most: usize) -> Option<Signals> {
        let mut requests = self.requests();
        if requests.live.len() >= most {
            return None;
        }
        let credit = Arc::new(Semaphore::new(INITIAL_CREDIT));
        let (cancel, cancelled) = oneshot::channel();
        let early = requests.early.iter().position(|(early, _)| *early == id);
        match early.and_then(|at| requests.early.remove(at)) {
            Some((_, status)) => {
                let _ = cancel.send(status);
            }
            None => {
                requests.live.insert(id, Live { credit: Arc::clone(&credit), cancel });
            }
        }
        Some(Signals { credit, cancelled })
    }

    /// Notes credit for a request.
    pub(super) fn credit(&self, id: u64, bytes: u32) {
        if let Some(live) = self.requests().live.get(&id) {
            let room = Semaphore::MAX_PERMITS.saturating_sub(live.credit.available_permits());
            live.credit.add_permits(usize::try_from(bytes).unwrap_or(0).min(room));
        }
    }

    /// Cancels a request, which may not have come yet.
    pub(super) fn cancel(&self, id: u64, reason: u16) {
        let status = status(reason);
        let mut requests = self.requests();
        match requests.live.remove(&id) {
            Some(live) => {
                let _ = live.cancel.send(status);
            }
            None => {
                if requests.early.len() >= EARLY {
                    requests.early.pop_front();
                }
                requests.early.push_back((id, status));
            }
        }
    }

    /// Cancels all requests: the connection has ended.
    pub(super) fn cancel_all(&self) {
        for (_, live) in self.requests().live.drain() {
            let _ = live.cancel.send(status(CancelReason::ClientGone as u16));
        }
    }

    /// Forgets a request that has ended.
    pub(super) fn remove(&self, id: u64) {
        self.requests().live.remove(&id);
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Status of a request that was cancelled for this reason.
fn status(reason: u16) -> u16 {
    match reason {
        reason if reason == CancelReason::Deadline as u16 => 504,
        reason if reason == CancelReason::Shutdown as u16 => 503,
        _ => 499,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancellation_may_come_before_its_request() {
        let registry = Registry::default();
        registry.cancel(7, CancelReason::Deadline as u16);
        let mut signals = registry.add(7, 1).unwrap();
        assert_eq!(signals.cancelled.try_recv(), Ok(504));
        let mut other = registry.add(8, 1).unwrap();
        assert!(other.cancelled.try_recv().is_err());
        assert!(registry.add(9, 1).is_none(), "one lives");
        registry.cancel(8, CancelReason::ClientGone as u16);
        assert_eq!(other.cancelled.try_recv(), Ok(499));
        assert!(registry.add(9, 1).is_some());
    }

    #[test]
    fn early_cancellations_are_bounded() {
        let registry = Registry::default();
        (0..2 * EARLY as u64).for_each(|id| registry.cancel(id, 1));
        assert_eq!(registry.requests().early.len(), EARLY);
        assert!(registry.add(0, 1).unwrap().cancelled.try_recv().is_err(), "the oldest are forgotten");
    }

    #[test]
    fn credit_is_added_to_what_a_stream_begins_with() {
        let registry = Registry::default();
        let signals = registry.add(1, 1).unwrap();
        registry.credit(1, 10);
        registry.credit(2, 10);
        assert_eq!(signals.credit.available_permits(), INITIAL_CREDIT + 10);
    }
}
