//! Unfinished work of the predecessor, from its hand-over to its end.
//!
//! Invariant: while the predecessor has not ended, this scheduler does not hand over. Requests that it forwards, and connections that it
//! hands over, have no other destination.

use omni_node_protocol::id::InstanceId;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;

/// Time for the predecessor to end, when that is waited for. Longer than it stays for an idle connection, which is the default
/// `header-timeout`; shorter than a service manager waits for a reload.
const ENDS_WITHIN: Duration = Duration::from_secs(45);

/// Work of a predecessor that has handed over and has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnfinishedWork {
    /// Process of the predecessor.
    pub pid: u32,
    /// Number of requests that it still has in flight on each instance.
    pub busy: BTreeMap<InstanceId, u32>,
}

/// Watch on the predecessor's work; `None` without a predecessor.
#[derive(Debug)]
pub struct PredecessorWatch(watch::Sender<Option<UnfinishedWork>>);

impl PredecessorWatch {
    /// A watch on this work; `None`: there is no predecessor.
    #[must_use]
    pub fn new(work: Option<UnfinishedWork>) -> Self {
        Self(watch::Sender::new(work))
    }

    /// Sets the number of requests that the predecessor still has in flight on an instance.
    pub fn set_in_flight(&self, instance: &InstanceId, requests: u32) {
        self.0.send_modify(|work| {
            if let Some(work) = work {
                work.busy.insert(instance.clone(), requests);
                work.busy.retain(|_, requests| *requests > 0);
            }
        });
    }

    /// Notes the predecessor's end.
    pub fn on_end(&self) {
        self.0.send_replace(None);
    }

    /// Waits for the predecessor's end, within a bound.
    ///
    /// # Errors
    /// It has not ended: its unfinished work.
    pub async fn wait_for_end(&self) -> Result<(), UnfinishedWork> {
        let mut watched = self.0.subscribe();
        let _ = tokio::time::timeout(ENDS_WITHIN, watched.wait_for(Option::is_none)).await; // the current value counts
        let work = watched.borrow().clone();
        work.map_or(Ok(()), Err)
    }
}

impl UnfinishedWork {
    /// Reason that a takeover is refused for. `models`: those with requests of the predecessor.
    #[must_use]
    pub fn refusal(&self, models: &[String]) -> String {
        let what = match models {
            [] => "what it has begun".to_owned(),
            models => format!("requests of {}", models.join(", ")),
        };
        format!("the previous scheduler (process {}) still finishes {what}: try again when it has ended", self.pid)
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
        UnfinishedWork { pid: 7, busy: busy.iter().map(|(digit, requests)| (instance(digit), *requests)).collect() }
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_the_predecessor_is_awaited() {
        assert_eq!(PredecessorWatch::new(None).wait_for_end().await, Ok(()));
        let before = Arc::new(PredecessorWatch::new(Some(work(&[("a", 1)]))));
        let waits = tokio::spawn({
            let before = Arc::clone(&before);
            async move { before.wait_for_end().await }
        });
        tokio::time::sleep(ENDS_WITHIN / 2).await;
        before.set_in_flight(&instance("a"), 0);
        tokio::task::yield_now().await;
        assert!(!waits.is_finished(), "it may have requests that no instance has");
        before.on_end();
        assert_eq!(waits.await.unwrap(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_is_bounded() {
        let before = PredecessorWatch::new(Some(work(&[("a", 2), ("b", 1)])));
        let begun = tokio::time::Instant::now();
        let (ended, ()) = tokio::join!(before.wait_for_end(), async { before.set_in_flight(&instance("b"), 0) });
        assert_eq!((begun.elapsed(), ended), (ENDS_WITHIN, Err(work(&[("a", 2)]))));
        before.on_end();
        before.set_in_flight(&instance("a"), 1);
        assert_eq!(before.wait_for_end().await, Ok(()), "an ended predecessor has no work");
    }

    #[test]
    fn a_refusal_names_process_and_models() {
        let names = ["a", "b/c"].map(str::to_owned);
        let refusal = |models: &[String]| work(&[]).refusal(models);
        let who = "the previous scheduler (process 7) still finishes";
        assert_eq!(refusal(&[]), format!("{who} what it has begun: try again when it has ended"));
        assert_eq!(refusal(&names), format!("{who} requests of a, b/c: try again when it has ended"));
    }
}
