//! Unfinished work of the predecessor, from its hand-over to its end.
//!
//! Invariant: while the predecessor has not ended, this scheduler does not hand over. Requests that it forwards, and connections that it
//! hands over, have no other destination.

use crate::model::HandedOver;
use omni_node_protocol::id::InstanceId;
use std::time::Duration;
use tokio::sync::watch;

/// Longest wait for the predecessor's end. Longer than the predecessor stays for an idle connection, which is the default
/// `header-timeout`; shorter than a service manager waits for a reload.
const END_TIMEOUT: Duration = Duration::from_secs(45);

/// Work of a predecessor that has handed over and has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnfinishedWork {
    /// Process of the predecessor.
    pub pid: u32,
    /// Instances, as the predecessor has handed them over.
    pub handed: HandedOver,
}

/// Watch on the predecessor's work; `None` without a predecessor.
#[derive(Debug)]
pub(super) struct PredecessorWatch(watch::Sender<Option<UnfinishedWork>>);

impl PredecessorWatch {
    /// Watches this work; `None`: there is no predecessor.
    #[must_use]
    pub(super) fn new(work: Option<UnfinishedWork>) -> Self {
        Self(watch::Sender::new(work))
    }

    /// Sets the number of requests that the predecessor still has in flight on an instance.
    pub(super) fn set_in_flight(&self, instance: &InstanceId, requests: u32) {
        self.0.send_modify(|work| {
            if let Some(work) = work {
                work.handed.busy.insert(instance.clone(), requests);
                work.handed.busy.retain(|_, requests| *requests > 0);
            }
        });
    }

    /// Notes the predecessor's end.
    pub(super) fn on_end(&self) {
        self.0.send_replace(None);
    }

    /// Waits for the predecessor's end, within a bound.
    ///
    /// # Errors
    /// The predecessor has not ended: its unfinished work.
    pub(super) async fn wait_for_end(&self) -> Result<(), UnfinishedWork> {
        let mut watched = self.0.subscribe();
        let _ = tokio::time::timeout(END_TIMEOUT, watched.wait_for(Option::is_none)).await; // the current value counts
        let work = watched.borrow().clone();
        work.map_or(Ok(()), Err)
    }
}

impl UnfinishedWork {
    /// Reason for the refusal of a takeover. `models`: those with requests of the predecessor.
    #[must_use]
    pub fn refusal(&self, models: &[String]) -> String {
        let what = match models {
            [] => "its work".to_owned(),
            models => format!("requests of {}", models.join(", ")),
        };
        format!("the previous scheduler (process {}) is still finishing {what}: try again when it has ended", self.pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn instance(digit: &str) -> InstanceId {
        InstanceId::parse(&digit.repeat(12)).unwrap()
    }

    fn work(busy: &[(&str, u32)]) -> UnfinishedWork {
        let busy = busy.iter().map(|(digit, requests)| (instance(digit), *requests)).collect();
        UnfinishedWork { pid: 7, handed: HandedOver { busy, ..HandedOver::default() } }
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_the_predecessor_is_awaited() {
        assert_eq!(PredecessorWatch::new(None).wait_for_end().await, Ok(()));
        let predecessor = Arc::new(PredecessorWatch::new(Some(work(&[("a", 1)]))));
        let waiting = tokio::spawn({
            let predecessor = Arc::clone(&predecessor);
            async move { predecessor.wait_for_end().await }
        });
        tokio::time::sleep(END_TIMEOUT / 2).await;
        predecessor.set_in_flight(&instance("a"), 0);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "the predecessor may have requests that no instance has");
        predecessor.on_end();
        assert_eq!(waiting.await.unwrap(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_is_bounded() {
        let predecessor = PredecessorWatch::new(Some(work(&[("a", 2), ("b", 1)])));
        let begun = tokio::time::Instant::now();
        let (ended, ()) =
            tokio::join!(predecessor.wait_for_end(), async { predecessor.set_in_flight(&instance("b"), 0) });
        assert_eq!((begun.elapsed(), ended), (END_TIMEOUT, Err(work(&[("a", 2)]))));
        predecessor.on_end();
        predecessor.set_in_flight(&instance("a"), 1);
        assert_eq!(predecessor.wait_for_end().await, Ok(()), "an ended predecessor has no work");
    }

    #[test]
    fn a_refusal_names_process_and_models() {
        let names = ["a", "b/c"].map(str::to_owned);
        let refusal = |models: &[String]| work(&[]).refusal(models);
        let who = "the previous scheduler (process 7) is still finishing";
        assert_eq!(refusal(&[]), format!("{who} its work: try again when it has ended"));
        assert_eq!(refusal(&names), format!("{who} requests of a, b/c: try again when it has ended"));
    }
}
