//! The scheduler before this one, for as long as it finishes what it has begun.
//!
//! [`super::Predecessor`] makes it known, [`crate::node`] keeps it and asks. What always holds: while it has not ended, this
//! scheduler hands over to nobody. What that one asks again, and the connections that it lets go of, have nowhere else to go.

use omni_node_protocol::id::InstanceId;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;

/// For it to end, when somebody waits for that. Longer than it stays for a connection on which nothing is asked, as
/// `header-timeout` is by default; shorter than a service manager waits for a reload.
const ENDS_WITHIN: Duration = Duration::from_secs(45);

/// A scheduler that has handed over and has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Working {
    /// Its process.
    pub pid: u32,
    /// Instances that still work for it, and how many requests each has.
    pub busy: BTreeMap<InstanceId, u32>,
}

/// See the module.
#[derive(Debug)]
pub struct Before(watch::Sender<Option<Working>>);

impl Before {
    /// `None`: there is none.
    #[must_use]
    pub fn new(working: Option<Working>) -> Self {
        Self(watch::Sender::new(working))
    }

    /// So many requests of it an instance has still.
    pub fn has(&self, instance: &InstanceId, requests: u32) {
        self.0.send_modify(|working| {
            if let Some(working) = working {
                working.busy.insert(instance.clone(), requests);
                working.busy.retain(|_, requests| *requests > 0);
            }
        });
    }

    /// It has ended.
    pub fn ended(&self) {
        self.0.send_replace(None);
    }

    /// Waits for its end, within a bound.
    ///
    /// # Errors
    /// It has not ended: what it has still.
    pub async fn end(&self) -> Result<(), Working> {
        let mut watched = self.0.subscribe();
        let _ = tokio::time::timeout(ENDS_WITHIN, watched.wait_for(Option::is_none)).await; // what counts is how it is now
        let working = watched.borrow().clone();
        working.map_or(Ok(()), Err)
    }
}

impl Working {
    /// Why nobody can take over. `models`: whose instances work for it.
    #[must_use]
    pub fn refusal(&self, models: &[String]) -> String {
        let what = match models {
            [] => "what it has begun".to_owned(),
            models => format!("requests of {}", models.join(", ")),
        };
        format!(
            "the scheduler before this one (process {}) still finishes {what}: try again when it has ended",
            self.pid
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn instance(digit: &str) -> InstanceId {
        InstanceId::parse(&digit.repeat(12)).unwrap()
    }

    fn working(busy: &[(&str, u32)]) -> Working {
        Working { pid: 7, busy: busy.iter().map(|(digit, requests)| (instance(digit), *requests)).collect() }
    }

    #[tokio::test(start_paused = true)]
    async fn its_end_is_waited_for() {
        assert_eq!(Before::new(None).end().await, Ok(()));
        let before = Arc::new(Before::new(Some(working(&[("a", 1)]))));
        let waits = tokio::spawn({
            let before = Arc::clone(&before);
            async move { before.end().await }
        });
        tokio::time::sleep(ENDS_WITHIN / 2).await;
        before.has(&instance("a"), 0);
        tokio::task::yield_now().await;
        assert!(!waits.is_finished(), "it may have requests that no instance has");
        before.ended();
        assert_eq!(waits.await.unwrap(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn but_not_for_ever() {
        let before = Before::new(Some(working(&[("a", 2), ("b", 1)])));
        let begun = tokio::time::Instant::now();
        let (ended, ()) = tokio::join!(before.end(), async { before.has(&instance("b"), 0) });
        assert_eq!((begun.elapsed(), ended), (ENDS_WITHIN, Err(working(&[("a", 2)]))));
        before.ended();
        before.has(&instance("a"), 1);
        assert_eq!(before.end().await, Ok(()), "who has ended has nothing");
    }

    #[test]
    fn a_refusal_says_who_is_not_done_with_what() {
        let names = ["a", "b/c"].map(str::to_owned);
        let refusal = |models: &[String]| working(&[]).refusal(models);
        let who = "the scheduler before this one (process 7) still finishes";
        assert_eq!(refusal(&[]), format!("{who} what it has begun: try again when it has ended"));
        assert_eq!(refusal(&names), format!("{who} requests of a, b/c: try again when it has ended"));
    }
}
