//! Hub between the recorder and those who watch: each tick is encoded once for each audience, however many watch, and
//! not at all when nobody does.

use bytes::Bytes;
use omni_page::{Audience, Feed, Snapshot, Span};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::broadcast;

/// Differences that a slow watcher may be behind before it gets the whole state again.
const BEHIND: usize = 8;

/// Feed and its watchers.
#[derive(Debug)]
pub(super) struct Hub(Mutex<State>);

#[derive(Debug)]
struct State {
    feed: Feed,
    channels: [Channel; Audience::ALL.len()],
    histories: [History; Span::ALL.len()],
}

/// Watchers of one audience.
#[derive(Debug)]
struct Channel {
    changes: broadcast::Sender<Bytes>,
    /// The whole state of the last tick, once a watcher has joined.
    whole: Option<Bytes>,
}

/// History of a span, as it was encoded last.
#[derive(Debug, Default)]
struct History {
    version: u64,
    bytes: Option<Bytes>,
}

impl Hub {
    pub(super) fn new() -> Self {
        let channel = |_| Channel { changes: broadcast::Sender::new(BEHIND), whole: None };
        let histories = Span::ALL.map(|_| History::default());
        Self(Mutex::new(State { feed: Feed::default(), channels: Audience::ALL.map(channel), histories }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether anybody watches.
    pub(super) fn is_watched(&self) -> bool {
        self.state().channels.iter().any(|channel| channel.changes.receiver_count() > 0)
    }

    /// Takes a snapshot and sends the difference to all watchers.
    pub(super) fn tick(&self, snapshot: &Snapshot) {
        let state = &mut *self.state();
        state.feed.tick(snapshot);
        for (channel, audience) in state.channels.iter_mut().zip(Audience::ALL) {
            channel.whole = None;
            if channel.changes.receiver_count() > 0
                && let Some(change) = state.feed.change(audience)
            {
                let _ = channel.changes.send(change); // all have left meanwhile
            }
        }
    }

    /// The whole state, and the differences that follow it.
    pub(super) fn join(&self, audience: Audience) -> (Bytes, broadcast::Receiver<Bytes>) {
        let State { feed, channels: [anyone, admin], .. } = &mut *self.state();
        let channel = match audience {
            Audience::Anyone => anyone,
            Audience::Admin => admin,
        };
        let whole = channel.whole.get_or_insert_with(|| feed.whole(audience));
        (whole.clone(), channel.changes.subscribe())
    }

    /// History of a span, encoded once for each of its steps; with the number of the step.
    pub(super) fn history(&self, span: Span) -> (Bytes, u64) {
        let State { feed, histories: [hour, day], .. } = &mut *self.state();
        let kept = match span {
            Span::Hour => hour,
            Span::Day => day,
        };
        let version = feed.history_version();
        let bytes = kept.bytes.take().filter(|_| kept.version == version).unwrap_or_else(|| feed.history(span));
        *kept = History { version, bytes: Some(bytes.clone()) };
        (bytes, version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_control_api::{Gpus, Model};
    use omni_page::{Counters, ModelSample, NodeSample};

    fn snapshot(second: u32, queued: u64) -> Snapshot {
        let model = Model { queued, ..Model::unseen("m".to_owned()) };
        Snapshot {
            at: f64::from(second),
            unix_ms: u64::from(second) * 1000,
            node: NodeSample::default(),
            gpus: Gpus { gpus: Vec::new(), host_committed_bytes: 0, host_budget_bytes: 0, message: None },
            models: vec![ModelSample { model, kind: None, counters: Counters::default(), latency: None, memory: None }],
            jobs: Vec::new(),
        }
    }

    #[test]
    fn all_watchers_share_one_encoding() {
        let hub = Hub::new();
        hub.tick(&snapshot(0, 0));
        assert!(!hub.is_watched());
        let mut watchers: Vec<_> = (0..20).map(|_| hub.join(Audience::Anyone)).collect();
        let first = watchers[0].0.as_ptr();
        assert!(watchers.iter().all(|(whole, _)| whole.as_ptr() == first), "one whole state for all");
        hub.tick(&snapshot(1, 5));
        let changes: Vec<Bytes> = watchers.iter_mut().map(|(_, changes)| changes.try_recv().unwrap()).collect();
        assert!(changes.iter().all(|change| change.as_ptr() == changes[0].as_ptr()), "one difference for all");
        drop(watchers);
        assert!(!hub.is_watched());
    }

    #[test]
    fn a_watcher_that_is_behind_joins_again() {
        let hub = Hub::new();
        let (_, mut changes) = hub.join(Audience::Admin);
        (0..2 * BEHIND as u32).for_each(|second| hub.tick(&snapshot(second, u64::from(second))));
        assert!(matches!(changes.try_recv(), Err(broadcast::error::TryRecvError::Lagged(_))));
        let (whole, mut changes) = hub.join(Audience::Admin);
        assert!(String::from_utf8_lossy(&whole).contains("\"queued\":15"));
        assert!(changes.try_recv().is_err(), "nothing that the whole state has already");
    }

    #[test]
    fn a_history_is_encoded_once_for_each_step() {
        let hub = Hub::new();
        hub.tick(&snapshot(0, 1));
        let (first, _) = hub.history(Span::Hour);
        hub.tick(&snapshot(1, 1));
        assert_eq!(hub.history(Span::Hour).0.as_ptr(), first.as_ptr());
        hub.tick(&snapshot(11, 1));
        assert_ne!(hub.history(Span::Hour).0, first);
    }
}
