//! Choices of a request that end one by one.

use crate::client::read;
use crate::completion;
use crate::fixture::{Given, Server};
use serde_json::{Value, json};
use std::time::Duration;

/// Values of some metrics at one moment.
async fn metrics<const N: usize>(server: &Server, names: [&str; N]) -> [u64; N] {
    let text = server.get("/metrics").await.body;
    names.map(|name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name}: {text}")).parse::<f64>().unwrap() as u64
    })
}

#[tokio::test]
async fn a_choice_with_its_stop_string_gives_its_blocks_back_while_the_others_go_on() {
    const NAMES: [&str; 3] = ["omni_engine_running_sequences", "omni_engine_kv_blocks_used", "omni_engine_steps_total"];
    let server = Server::start(Given { step: Duration::from_millis(1), ..Given::default() }).await;
    // A character ends each choice somewhere, on average after some hundred tokens.
    let request = completion(json!({"max_tokens": 60_000, "ignore_eos": true, "n": 4, "stop": ["e"], "temperature": 1,
        "seed": 5, "stream": true}));
    let stream = server.open("/v1/completions", Some(&request)).await;
    let (mut seen, mut most) = (Vec::new(), [0; 5]);
    loop {
        let [running, used, steps] = metrics(&server, NAMES).await;
        if seen.last() != Some(&running) {
            seen.push(running);
        }
        // A block of each choice is its own from the prompt on.
        assert!(used <= running * ((steps + 2) / 16 + 2), "{used} blocks for {running} choices after {steps} steps");
        most[running as usize] = most[running as usize].max(used);
        if running == 0 && steps > 0 {
            break;
        }
    }
    assert!(seen.contains(&4) && seen.iter().any(|running| (1..4).contains(running)), "{seen:?}");
    let (events, is_done) = read(stream).await.events();
    assert!(is_done);
    let reasons = events.iter().filter_map(|event| event["choices"][0]["finish_reason"].as_str());
    assert_eq!(reasons.collect::<Vec<_>>(), ["stop"; 4]);
    assert_eq!(server.metric("omni_engine_kv_blocks_used").await, 0);
}

#[tokio::test]
async fn choices_that_stop_early_change_neither_the_others_nor_the_usage() {
    let server = Server::start(Given::default()).await;
    let parameters = |more: Value| {
        let base = json!({"prompt": "x".repeat(64), "max_tokens": 300, "ignore_eos": true, "n": 3, "temperature": 1, "seed": 9});
        crate::merged(completion(base), more)
    };
    let whole = server.post("/v1/completions", &parameters(json!({}))).await.json();
    let stopped = server.post("/v1/completions", &parameters(json!({"stop": ["e"]}))).await.json();
    let text = |answer: &Value, choice: usize| answer["choices"][choice]["text"].as_str().unwrap().to_owned();
    let mut tokens = 0;
    for choice in 0..3 {
        let (whole, stopped) = (text(&whole, choice), text(&stopped, choice));
        assert_eq!(whole.split('e').next(), Some(stopped.as_str()), "{choice}");
        tokens += if whole.contains('e') { 0 } else { 300 };
    }
    let usage = &stopped["usage"];
    assert!(usage["completion_tokens"].as_u64().is_some_and(|counted| counted > tokens && counted < 900), "{usage}");
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 48, "known with the first token: {usage}");
}
