//! Clients that hang up, more requests than there is room for, and an engine that fails.

use crate::client::read;
use crate::completion;
use crate::fixture::{Given, Server};
use serde_json::json;
use std::time::Duration;
use tokio::io::AsyncReadExt;

/// Tokens of an answer that takes a minute.
const LONG: u64 = 60_000;

fn slow() -> Given {
    Given { step: Duration::from_millis(1), ..Given::default() }
}

/// Waits until a metric has a value.
async fn wait_for(server: &Server, metric: &str, value: u64) {
    for _ in 0..2000 {
        if server.metric(metric).await == value {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{metric} is not {value}");
}

#[tokio::test]
async fn an_answer_is_cancelled_when_its_client_hangs_up() {
    let server = Server::start(slow()).await;
    for stream in [true, false] {
        let before = server.metric("omni_engine_answer_tokens_total").await;
        let request = completion(json!({"max_tokens": LONG, "ignore_eos": true, "stream": stream, "n": 2}));
        let mut client = server.open("/v1/completions", Some(&request)).await;
        if stream {
            let mut bytes = [0; 64];
            assert!(client.read(&mut bytes).await.unwrap() > 0);
        }
        wait_for(&server, "omni_engine_running_sequences", 2).await;
        drop(client);
        wait_for(&server, "omni_engine_running_sequences", 0).await;
        let made = server.metric("omni_engine_answer_tokens_total").await - before;
        assert!(made < LONG, "{made} tokens");
        assert_eq!(server.metric("omni_engine_kv_blocks_used").await, 0);
        let steps = server.metric("omni_engine_steps_total").await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(server.metric("omni_engine_steps_total").await, steps, "nothing is computed any more");
    }
}

#[tokio::test]
async fn one_request_too_many_is_told_to_come_back() {
    let server = Server::start(Given { sequences: 1, queue: 1, ..slow() }).await;
    let request = completion(json!({"max_tokens": LONG, "ignore_eos": true, "stream": true}));
    let running = server.open("/v1/completions", Some(&request)).await;
    wait_for(&server, "omni_engine_running_sequences", 1).await;
    let waiting = server.open("/v1/completions", Some(&request)).await;
    wait_for(&server, "omni_engine_waiting_sequences", 1).await;
    let refused = server.post("/v1/completions", &request).await;
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(refused.head.contains("retry-after: 1"), "{}", refused.head);
    assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
    drop(running);
    wait_for(&server, "omni_engine_waiting_sequences", 0).await;
    drop(waiting);
    wait_for(&server, "omni_engine_running_sequences", 0).await;
}

#[tokio::test]
async fn prompts_that_wait_have_a_bound_of_their_memory() {
    let server = Server::start(Given { sequences: 1, queue: 100, queued_bytes: 40_000, ..slow() }).await;
    let request = |letter: &str, length: usize| {
        let prompt = letter.repeat(length);
        completion(json!({"prompt": prompt, "max_tokens": LONG, "ignore_eos": true, "stream": true}))
    };
    let running = server.open("/v1/completions", Some(&request("a", 10))).await;
    wait_for(&server, "omni_engine_running_sequences", 1).await;
    wait_for(&server, "omni_engine_queued_bytes", 0).await;
    // 6 bytes for each token, and some for the request.
    let waiting = server.open("/v1/completions", Some(&request("b", 5000))).await;
    wait_for(&server, "omni_engine_waiting_sequences", 1).await;
    let held = server.metric("omni_engine_queued_bytes").await;
    assert!((30_000..40_000).contains(&held), "{held}");
    let refused = server.post("/v1/completions", &request("c", 5000)).await;
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(refused.head.contains("retry-after: 1"), "{}", refused.head);
    let short = server.open("/v1/completions", Some(&request("d", 10))).await;
    wait_for(&server, "omni_engine_waiting_sequences", 2).await;
    drop((waiting, short));
    wait_for(&server, "omni_engine_waiting_sequences", 0).await;
    assert_eq!(server.metric("omni_engine_queued_bytes").await, 0);
    drop(running);
    wait_for(&server, "omni_engine_running_sequences", 0).await;
}

#[tokio::test]
async fn behaviour_33_health_fails_while_a_step_hangs() {
    let (step, hung) = (Duration::from_secs(2), Duration::from_millis(100));
    let server = Server::start(Given { step, hung, ..Given::default() }).await;
    assert_eq!(server.get("/health").await.status, 200, "without requests no step is due");
    let request = completion(json!({"max_tokens": 1, "ignore_eos": true}));
    let hanging = server.open("/v1/completions", Some(&request)).await;
    let failed = loop {
        let health = server.get("/health").await;
        if health.status != 200 {
            break health;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(failed.status, 503, "{failed:?}");
    assert!(failed.head.contains("retry-after"), "{}", failed.head);
    assert_eq!(server.get("/v1/models").await.status, 200, "other routes answer");
    assert_eq!(read(hanging).await.status, 200, "the step has ended");
    assert_eq!(server.get("/health").await.status, 200);
}

#[tokio::test]
async fn bodies_beyond_the_memory_for_them_are_told_to_come_back() {
    const LENGTH: usize = 30 << 20;
    let server = Server::start(Given::default()).await;
    let held = [server.begin(LENGTH, LENGTH - 1).await, server.begin(LENGTH, LENGTH - 1).await];
    wait_for(&server, "omni_engine_bodies_held_bytes", 2 * LENGTH as u64).await;
    let refused = read(server.begin(LENGTH, 0).await).await;
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.head.contains("retry-after: 1"), "{}", refused.head);
    let large = read(server.begin(33 << 20, 0).await).await;
    assert_eq!(large.status, 413, "{large:?}");
    drop(held);
    wait_for(&server, "omni_engine_bodies_held_bytes", 0).await;
    assert_eq!(server.post("/v1/completions", &completion(json!({}))).await.status, 200);
}

#[tokio::test]
async fn a_failed_step_ends_a_stream_with_an_error_and_without_its_end() {
    let server = Server::start(Given { good_steps: 200, ..slow() }).await;
    let request = completion(json!({"max_tokens": 1000, "ignore_eos": true, "stream": true}));
    let stream = read(server.open("/v1/completions", Some(&request)).await).await;
    let (events, is_done) = stream.events();
    assert!(!is_done);
    assert_eq!(events.last().unwrap()["error"]["type"], "server_error", "{events:?}");
    let whole = server.post("/v1/completions", &completion(json!({}))).await;
    assert_eq!(whole.status, 500, "{whole:?}");
    assert!(whole.head.contains("x-should-retry: false"), "{}", whole.head);
}

#[tokio::test]
async fn a_client_that_reads_slowly_holds_nobody_up() {
    let server = Server::start(Given::default()).await;
    let request = completion(json!({"max_tokens": 3000, "ignore_eos": true, "stream": true, "logprobs": 5}));
    let unread = server.open("/v1/completions", Some(&request)).await;
    wait_for(&server, "omni_engine_answer_tokens_total", 3000).await;
    let other = server.post("/v1/completions", &completion(json!({"max_tokens": 3, "ignore_eos": true}))).await;
    assert_eq!(other.status, 200);
    let (events, is_done) = read(unread).await.events();
    assert!(is_done && events.len() > 1);
}
