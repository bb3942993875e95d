//! Properties of the feed: a browser that adds up differences has the state; texts are for administrators.

use super::*;
use crate::snapshot::{Counters, NodeSample};
use omni_control_api::{Gpu, Gpus, Instance, Job, Model, Residency, State};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Map, Value};

/// State of a browser.
#[derive(Debug, Default, PartialEq)]
struct Browser {
    node: Value,
    cards: Map<String, Value>,
    models: Map<String, Value>,
    details: Map<String, Value>,
    jobs: Map<String, Value>,
    events: Vec<Value>,
}

impl Browser {
    fn apply(&mut self, event: &Bytes) {
        let text = std::str::from_utf8(event).unwrap();
        let (name, data) = text.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data = data.strip_suffix("\n\n").unwrap();
        assert!(!data.contains('\n'));
        if name == "whole" {
            *self = Self::default();
        }
        let message: Value = serde_json::from_str(data).unwrap();
        let rows = |list: &str| message[list].as_array().cloned().unwrap_or_default();
        if !message["node"].is_null() {
            self.node = message["node"].clone();
        }
        for gone in rows("gone_models") {
            self.models.remove(gone.as_str().unwrap());
            self.details.remove(gone.as_str().unwrap());
        }
        for gone in rows("gone_cards") {
            self.cards.remove(&gone.to_string());
        }
        for gone in rows("gone_jobs") {
            self.jobs.remove(gone.as_str().unwrap());
        }
        self.jobs.extend(rows("jobs").into_iter().map(|row| (row["id"].as_str().unwrap().to_owned(), row)));
        self.cards.extend(rows("cards").into_iter().map(|row| (row["index"].to_string(), row)));
        self.models.extend(rows("models").into_iter().map(|row| (row["name"].as_str().unwrap().to_owned(), row)));
        self.details.extend(rows("details").into_iter().map(|row| (row["name"].as_str().unwrap().to_owned(), row)));
        self.events.extend(rows("events"));
    }
}

fn model(name: usize, state: usize, restarts: u64, ended: u64) -> ModelSample {
    let mut model = Model::unseen(format!("m{name}"));
    model.state = State::ALL[state];
    model.restarts = restarts;
    model.message = (model.state == State::Failed).then(|| "secret of the model".to_owned());
    model.last_exit = (restarts > 0).then(|| "secret of the exit".to_owned());
    model.build_log = vec!["secret of the build".to_owned()];
    model.instances = vec![Instance {
        id: format!("{name:012x}"),
        version: "v".into(),
        state: model.state,
        pid: None,
        age_seconds: 5.0,
        in_flight: 0,
        old_protocol: None,
    }];
    let counters = Counters { ended, failed: ended / 2 };
    ModelSample { model, kind: None, counters, latency: None, memory: None }
}

/// A batch whose owner and faults are for administrators.
fn job(id: u64, completed: u64) -> Job {
    Job {
        id: format!("batch_{id}"),
        owner: "secret of the token".to_owned(),
        endpoint: "/v1/chat/completions".to_owned(),
        model: None,
        status: "in_progress".to_owned(),
        total: 10,
        completed,
        failed: 0,
        input_tokens: 0,
        output_tokens: 0,
        created_unix_ms: 1_000_000,
        expires_unix_ms: 2_000_000,
        ended_unix_ms: None,
        errors: vec!["secret of the file".to_owned()],
        waits: vec!["secret of the model".to_owned()],
    }
}

fn snapshot(second: usize, models: Vec<ModelSample>, resident: u64) -> Snapshot {
    let instance = GpuInstance {
        model: "m0".into(),
        instance: "000000000000".into(),
        limit_bytes: 1 << 30,
        allocated_bytes: 1 << 30,
        resident_bytes: resident,
        residency: Residency::Evicted,
        idle_seconds: Some(second as f64),
        evictions: resident,
        restores: 0,
    };
    let card = |index: u32| Gpu {
        index,
        uuid: String::new(),
        name: "card".into(),
        total_bytes: 2 << 30,
        used_bytes: 1,
        budget_bytes: 1 << 30,
        resident_bytes: resident,
        committed_bytes: 1,
        commit_limit_bytes: 1,
        instances: vec![instance.clone()],
    };
    let gpus = (0..u32::try_from(resident % 3).unwrap()).map(card).collect();
    Snapshot {
        at: second as f64 + 0.1,
        unix_ms: 1_000_000 + second as u64 * 1000,
        node: NodeSample { waiting: resident % 2, ..NodeSample::default() },
        gpus: Gpus { gpus, host_committed_bytes: 0, host_budget_bytes: 0, message: None },
        models,
        jobs: (0..resident % 4).map(|id| job(id, resident)).collect(),
    }
}

proptest! {
    #[test]
    fn differences_add_up_to_the_state(
        ticks in vec((vec((0_usize..6, 0_usize..6, 0_u64..3, 0_u64..100), 0..6), 0_u64..9), 1..40),
        joined in 0_usize..40,
    ) {
        let mut feed = Feed::default();
        let mut browsers = [Browser::default(), Browser::default()];
        for (second, (models, resident)) in ticks.into_iter().enumerate() {
            let by_name: BTreeMap<usize, ModelSample> =
                models.into_iter().map(|(name, state, restarts, ended)| (name, model(name, state, restarts, ended))).collect();
            feed.tick(&snapshot(second, by_name.into_values().collect(), resident));
            for (browser, audience) in browsers.iter_mut().zip(Audience::ALL) {
                if second == joined || second == 0 {
                    browser.apply(&feed.whole(audience));
                } else if let Some(change) = feed.change(audience) {
                    browser.apply(&change);
                }
                let mut expected = Browser::default();
                expected.apply(&feed.whole(audience));
                prop_assert_eq!(&*browser, &expected);
                let whole = feed.whole(Audience::Anyone);
                prop_assert!(!String::from_utf8_lossy(&whole).contains("secret"));
            }
        }
    }
}

#[test]
fn a_node_at_rest_sends_nothing_but_the_steps_of_its_history() {
    let mut feed = Feed::default();
    let mut sent = 0;
    for second in 0..61 {
        let mut models: Vec<_> = (0..3).map(|name| model(name, 2, 0, 7)).collect();
        // Ages grow with the clock, and jitter.
        models.iter_mut().for_each(|at| at.model.instances[0].age_seconds = second as f64 + 0.01 * (second % 7) as f64);
        feed.tick(&snapshot(second, models, 4));
        sent += usize::from(second > 1 && feed.change(Audience::Admin).is_some());
    }
    assert_eq!(sent, 6);
}

#[test]
fn an_administrator_gets_the_texts() {
    let mut feed = Feed::default();
    feed.tick(&snapshot(0, vec![model(0, 5, 0, 0)], 0));
    feed.tick(&snapshot(1, vec![model(0, 5, 1, 0)], 0));
    let change = |audience| String::from_utf8(feed.change(audience).unwrap().to_vec()).unwrap();
    assert!(change(Audience::Admin).contains("secret of the exit"));
    let anyone = change(Audience::Anyone);
    assert!(anyone.contains("\"died\"") && !anyone.contains("secret"), "{anyone}");
}

#[test]
fn requests_of_a_model_become_rates_and_history() {
    let mut feed = Feed::default();
    for second in 0..=20 {
        feed.tick(&snapshot(second, vec![model(0, 2, 0, 40 * second as u64)], 0));
    }
    let whole: Value = serde_json::from_slice(&feed.whole(Audience::Anyone)["event: whole\ndata: ".len()..]).unwrap();
    assert_eq!((&whole["models"][0]["rate"], &whole["models"][0]["failing"]), (&40.0.into(), &20.0.into()));
    let history: Value = serde_json::from_slice(&feed.history(Span::Hour)).unwrap();
    // The requests of the first tick came before it.
    assert_eq!(history["lanes"][0]["values"][2], serde_json::json!([360, 1, 400, 1]));
}
