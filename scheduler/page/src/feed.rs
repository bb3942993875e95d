//! Feed of the page: one tick a second, whose difference to the last one is encoded as a server-sent event. Pure.
//!
//! Invariant: the whole state, and after it the differences of all later ticks, give the state of the last tick.

use crate::events::{Event, EventLog};
use crate::history::{History, LaneKey, Point, Span, Step};
use crate::jobs::JobRow;
use crate::rows::{CardRow, DetailRow, Meters, ModelRow, NodeRow, Rows};
use crate::snapshot::{ModelSample, Snapshot};
use bytes::Bytes;
use omni_control_api::GpuInstance;
use serde::Serialize;
use std::collections::BTreeMap;

/// Bytes of the unit in which amounts of memory are kept.
const KIB: u64 = 1024;

/// Reader of the feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Audience {
    /// Anyone who reaches the listener: facts, without a text of a model.
    Anyone,
    /// Holder of a token of role admin: texts as well.
    Admin,
}

impl Audience {
    /// All audiences.
    pub const ALL: [Self; 2] = [Self::Anyone, Self::Admin];
}

/// Feed of one node.
#[derive(Debug, Default)]
pub struct Feed {
    rows: Rows,
    difference: Difference,
    meters: Meters,
    events: EventLog,
    history: History,
    /// Moves of the memory of instances, as of the last tick.
    moves: BTreeMap<String, (u64, u64)>,
    at: f64,
    unix_ms: u64,
}

/// Rows that differ from those of the tick before.
#[derive(Debug, Default)]
struct Difference {
    node: bool,
    cards: Vec<u32>,
    models: Vec<String>,
    details: Vec<String>,
    jobs: Vec<String>,
    gone_cards: Vec<u32>,
    gone_models: Vec<String>,
    gone_jobs: Vec<String>,
    /// Number of the first new event.
    events: u64,
    step: bool,
}

/// State or difference, as it is sent.
#[derive(Debug, Serialize)]
struct Message<'a> {
    now_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a NodeRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cards: Vec<&'a CardRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    models: Vec<&'a ModelRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    details: Vec<&'a DetailRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    jobs: Vec<JobRow>,
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    gone_cards: &'a [u32],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    gone_models: &'a [String],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    gone_jobs: &'a [String],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    events: Vec<Event>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<Step<'a>>,
}

impl Feed {
    /// Takes a snapshot, which becomes the state.
    pub fn tick(&mut self, snapshot: &Snapshot) {
        (self.at, self.unix_ms) = (snapshot.at, snapshot.unix_ms);
        let rows = Rows::new(snapshot, &self.rows, &mut self.meters);
        let events = self.events.next();
        self.events.observe(snapshot.unix_ms, snapshot.models.iter().map(|sample| &sample.model));
        let points = self.points(snapshot);
        let step = self.history.record(snapshot.at, points);
        let last = std::mem::replace(&mut self.rows, rows);
        self.difference = Difference { events, step, ..Difference::new(&last, &self.rows) };
    }

    /// Difference of the last tick to the one before, as an event; `None` when there is none.
    #[must_use]
    pub fn change(&self, audience: Audience) -> Option<Bytes> {
        let Difference { node, cards, models, details, jobs, gone_cards, gone_models, gone_jobs, events, step } =
            &self.difference;
        let details: &[String] = if audience == Audience::Admin { details } else { &[] };
        let message = Message {
            now_ms: self.unix_ms,
            node: node.then_some(&self.rows.node),
            cards: cards.iter().filter_map(|index| self.rows.cards.get(index)).collect(),
            models: models.iter().filter_map(|name| self.rows.models.get(name)).collect(),
            details: details.iter().filter_map(|name| self.rows.details.get(name)).collect(),
            jobs: jobs.iter().filter_map(|id| Some(seen_by(audience, self.rows.jobs.get(id)?))).collect(),
            gone_cards,
            gone_models,
            gone_jobs,
            events: self.events(*events, audience),
            step: step.then(|| self.history.last_step(self.at, self.unix_ms)),
        };
        let is_empty = message.node.is_none()
            && message.cards.is_empty()
            && message.models.is_empty()
            && message.details.is_empty()
            && message.jobs.is_empty()
            && gone_cards.is_empty()
            && gone_models.is_empty()
            && gone_jobs.is_empty()
            && message.events.is_empty()
            && message.step.is_none();
        (!is_empty).then(|| event("change", &message))
    }

    /// The whole state as an event.
    #[must_use]
    pub fn whole(&self, audience: Audience) -> Bytes {
        let details = if audience == Audience::Admin { self.rows.details.values().collect() } else { Vec::new() };
        let message = Message {
            now_ms: self.unix_ms,
            node: Some(&self.rows.node),
            cards: self.rows.cards.values().collect(),
            models: self.rows.models.values().collect(),
            details,
            jobs: self.rows.jobs.values().map(|job| seen_by(audience, job)).collect(),
            gone_cards: &[],
            gone_models: &[],
            gone_jobs: &[],
            events: self.events(0, audience),
            step: None,
        };
        event("whole", &message)
    }

    /// History of a span as JSON.
    #[must_use]
    pub fn history(&self, span: Span) -> Bytes {
        serde_json::to_vec(&self.history.encoded(span, self.at, self.unix_ms)).unwrap_or_default().into()
    }

    /// Number that changes whenever the history does.
    #[must_use]
    pub fn history_version(&self) -> u64 {
        self.history.version()
    }

    fn events(&self, from: u64, audience: Audience) -> Vec<Event> {
        let events = self.events.since(from);
        match audience {
            Audience::Admin => events.cloned().collect(),
            Audience::Anyone => events.map(Event::without_text).collect(),
        }
    }

    /// Values of this moment for the history.
    fn points(&mut self, snapshot: &Snapshot) -> Vec<(LaneKey, Point)> {
        let mut lanes: BTreeMap<LaneKey, Point> = BTreeMap::new();
        let mut moves = BTreeMap::new();
        for (card, instance) in
            snapshot.gpus.gpus.iter().flat_map(|card| card.instances.iter().map(move |at| (card, at)))
        {
            let (evictions, restores) = self.new_moves(instance);
            moves.insert(instance.instance.clone(), (instance.evictions, instance.restores));
            let key = LaneKey { card: Some(card.index), model: instance.model.clone() };
            let on_host = instance.allocated_bytes.saturating_sub(instance.resident_bytes);
            let more = [instance.resident_bytes / KIB, on_host / KIB, evictions, restores];
            let sum = lanes.entry(key).or_default();
            sum.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(more));
        }
        self.moves = moves;
        let of_model = |ModelSample { model, memory, .. }: &ModelSample| {
            let requests = self.meters.increments(&model.name);
            let memory = memory.map_or(0, |memory| memory.used / KIB);
            let key = LaneKey { card: None, model: model.name.clone() };
            (key, [memory, model.in_flight + model.queued, requests.ended, requests.failed])
        };
        lanes.into_iter().chain(snapshot.models.iter().map(of_model)).collect()
    }

    /// Moves of an instance's memory since the last tick.
    fn new_moves(&self, instance: &GpuInstance) -> (u64, u64) {
        let (evictions, restores) = self.moves.get(&instance.instance).copied().unwrap_or_default();
        (instance.evictions.saturating_sub(evictions), instance.restores.saturating_sub(restores))
    }
}

impl Difference {
    fn new(last: &Rows, now: &Rows) -> Self {
        Self {
            node: last.node != now.node,
            cards: changed(&last.cards, &now.cards),
            models: changed(&last.models, &now.models),
            details: changed(&last.details, &now.details),
            jobs: changed(&last.jobs, &now.jobs),
            gone_cards: gone(&last.cards, &now.cards),
            gone_models: gone(&last.models, &now.models),
            gone_jobs: gone(&last.jobs, &now.jobs),
            events: 0,
            step: false,
        }
    }
}

/// A batch as the audience may see it.
fn seen_by(audience: Audience, job: &JobRow) -> JobRow {
    match audience {
        Audience::Admin => job.clone(),
        Audience::Anyone => job.for_anyone(),
    }
}

fn changed<K: Ord + Clone, V: PartialEq>(last: &BTreeMap<K, V>, now: &BTreeMap<K, V>) -> Vec<K> {
    now.iter().filter(|(key, row)| last.get(key) != Some(row)).map(|(key, _)| key.clone()).collect()
}

fn gone<K: Ord + Clone, V>(last: &BTreeMap<K, V>, now: &BTreeMap<K, V>) -> Vec<K> {
    last.keys().filter(|key| !now.contains_key(key)).cloned().collect()
}

/// A server-sent event. JSON has no line break, so that it is one line.
fn event(name: &str, message: &impl Serialize) -> Bytes {
    let mut text = format!("event: {name}\ndata: ").into_bytes();
    text.extend(serde_json::to_vec(message).unwrap_or_default());
    text.extend_from_slice(b"\n\n");
    text.into()
}

#[cfg(test)]
mod tests;
