//! Events of models, found by comparing two snapshots: failures, stops, roll-outs. Pure.
//!
//! The last [`MOST`] are kept. A text is for administrators: it may quote a model's own words.

use crate::text::ending;
use omni_control_api::{Model, Role, State};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Events that are kept.
const MOST: usize = 256;

/// Kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// The model cannot serve.
    Failed,
    /// An instance has died.
    Died,
    /// The node has stopped an instance that did well.
    Stopped,
    /// The model is ready.
    Ready,
    /// Another version takes the traffic.
    RolledOut,
    /// A new version has failed before it took the traffic.
    CandidateFailed,
    /// The content of the directory is refused.
    Refused,
    /// The model is new.
    Added,
    /// The model is gone.
    Removed,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Event {
    pub(crate) number: u64,
    unix_ms: u64,
    model: String,
    kind: Kind,
    /// Version that the event is about, or the reason of a stop: words of the node.
    about: Option<String>,
    /// Reason in full.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

impl Event {
    /// The event as anyone may see it.
    pub(crate) fn without_text(&self) -> Self {
        Self { text: None, ..self.clone() }
    }
}

/// State of a model as of the last snapshot, as far as events need it.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    state: State,
    restarts: u64,
    version: Option<String>,
    refused: Option<String>,
    stopped_ms: Option<u64>,
    failed_candidates: BTreeSet<String>,
}

/// The last events.
#[derive(Debug, Default)]
pub(crate) struct EventLog {
    seen: BTreeMap<String, Seen>,
    events: VecDeque<Event>,
    next: u64,
    /// A first snapshot was compared: a model that was there from the beginning is not new.
    begun: bool,
}

impl EventLog {
    /// Compares the models with those of the last snapshot.
    pub(crate) fn observe<'a>(&mut self, unix_ms: u64, models: impl Iterator<Item = &'a Model>) {
        let mut now = BTreeMap::new();
        for model in models {
            let seen = Seen::new(model);
            let last = self.seen.remove(&model.name);
            if last.as_ref() != Some(&seen) {
                for (kind, about, text) in found(last.as_ref(), &seen, model) {
                    if kind != Kind::Added || self.begun {
                        self.push(unix_ms, model.name.clone(), kind, about, text.as_deref());
                    }
                }
            }
            now.insert(model.name.clone(), seen);
        }
        for name in std::mem::replace(&mut self.seen, now).into_keys() {
            self.push(unix_ms, name, Kind::Removed, None, None);
        }
        self.begun = true;
    }

    fn push(&mut self, unix_ms: u64, model: String, kind: Kind, about: Option<String>, text: Option<&str>) {
        if self.events.len() == MOST {
            self.events.pop_front();
        }
        let text = text.map(ending);
        self.events.push_back(Event { number: self.next, unix_ms, model, kind, about, text });
        self.next += 1;
    }

    /// Number of the next event.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Events from a number on, the oldest first.
    pub(crate) fn since(&self, number: u64) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(move |event| event.number >= number)
    }
}

impl Seen {
    fn new(model: &Model) -> Self {
        let failed = model.generations.iter().filter(|at| at.role == Role::Candidate && at.state == State::Failed);
        Self {
            state: model.state,
            restarts: model.restarts,
            version: model.version.clone(),
            refused: model.directory.refused.clone(),
            stopped_ms: model.last_stop.as_ref().map(|stop| stop.unix_ms),
            failed_candidates: failed.map(|generation| generation.version.clone()).collect(),
        }
    }
}

/// Events between two snapshots of one model.
fn found(last: Option<&Seen>, now: &Seen, model: &Model) -> Vec<(Kind, Option<String>, Option<String>)> {
    let mut events = Vec::new();
    let Some(last) = last else {
        events.push((Kind::Added, None, None));
        if now.state == State::Failed {
            events.push((Kind::Failed, None, model.message.clone()));
        }
        if now.refused.is_some() {
            events.push((Kind::Refused, None, now.refused.clone()));
        }
        return events;
    };
    if now.restarts > last.restarts {
        events.push((Kind::Died, None, model.last_exit.clone()));
    }
    if now.stopped_ms != last.stopped_ms
        && let Some(stop) = &model.last_stop
    {
        events.push((Kind::Stopped, Some(stop.reason.as_str().to_owned()), Some(stop.message.clone())));
    }
    if now.state != last.state {
        match now.state {
            State::Failed => events.push((Kind::Failed, None, model.message.clone())),
            State::Ready => events.push((Kind::Ready, None, None)),
            State::Preparing | State::Starting | State::Draining | State::Stopped => {}
        }
    }
    if now.version != last.version && last.version.is_some() && now.version.is_some() {
        events.push((Kind::RolledOut, now.version.clone(), None));
    }
    for version in now.failed_candidates.difference(&last.failed_candidates) {
        let message = model.generation(version).and_then(|generation| generation.message.clone());
        events.push((Kind::CandidateFailed, Some(version.clone()), message));
    }
    if now.refused != last.refused && now.refused.is_some() {
        events.push((Kind::Refused, None, now.refused.clone()));
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_control_api::{Generation, Stop, StopReason};

    fn kinds(log: &EventLog, from: u64) -> Vec<(Kind, Option<&str>)> {
        log.since(from).map(|event| (event.kind, event.text.as_deref())).collect()
    }

    #[test]
    fn each_change_is_one_event() {
        let mut log = EventLog::default();
        let mut model = Model::unseen("m".to_owned());
        log.observe(1, [&model].into_iter());
        assert_eq!(kinds(&log, 0), [], "models of the beginning are not new");
        let failed = Model { state: State::Failed, message: Some("x".to_owned()), ..Model::unseen("n".to_owned()) };
        log.observe(1, [&model, &failed].into_iter());
        assert_eq!(kinds(&log, 0), [(Kind::Added, None), (Kind::Failed, Some("x"))]);
        log.observe(1, [&model].into_iter());
        let mut step = |change: &dyn Fn(&mut Model), expected: &[(Kind, Option<&str>)]| {
            let from = log.next();
            change(&mut model);
            log.observe(2, [&model].into_iter());
            log.observe(3, [&model].into_iter());
            assert_eq!(kinds(&log, from), expected);
        };
        step(&|model| model.state = State::Starting, &[]);
        step(&|model| (model.state, model.version) = (State::Ready, Some("1".into())), &[(Kind::Ready, None)]);
        let died = |model: &mut Model| (model.restarts, model.last_exit) = (1, Some("killed".into()));
        step(&died, &[(Kind::Died, Some("killed"))]);
        let failed = |model: &mut Model| (model.state, model.message) = (State::Failed, Some("no room".into()));
        step(&failed, &[(Kind::Failed, Some("no room"))]);
        let stop = Stop { reason: StopReason::Displaced, message: "for other".into(), unix_ms: 9 };
        step(&|model| model.last_stop = Some(stop.clone()), &[(Kind::Stopped, Some("for other"))]);
        let candidate = Generation {
            version: "2".into(),
            role: Role::Candidate,
            state: State::Failed,
            message: Some("SyntaxError".into()),
            retry_in_seconds: None,
            preparation: None,
            prepared: None,
        };
        step(&|model| model.generations.push(candidate.clone()), &[(Kind::CandidateFailed, Some("SyntaxError"))]);
        step(&|model| model.version = Some("2".into()), &[(Kind::RolledOut, None)]);
        step(&|model| model.directory.refused = Some("typo".into()), &[(Kind::Refused, Some("typo"))]);
        let from = log.next();
        log.observe(4, std::iter::empty());
        assert_eq!(kinds(&log, from), [(Kind::Removed, None)]);
    }

    #[test]
    fn the_oldest_events_go() {
        let mut log = EventLog::default();
        let mut model = Model::unseen("m".to_owned());
        for restarts in 0..=2 * MOST as u64 {
            (model.restarts, model.last_exit) = (restarts, Some("x".repeat(100_000)));
            log.observe(restarts, [&model].into_iter());
        }
        assert_eq!((log.since(0).count(), log.next()), (MOST, 2 * MOST as u64));
        assert!(log.since(0).all(|event| event.text.as_ref().is_some_and(|text| text.len() <= 2048)));
    }
}
