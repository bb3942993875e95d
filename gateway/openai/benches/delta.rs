//! Cost of a text's next part in each form, and of reading a request.
//!
//! `cargo bench -p omni-openai --bench delta`.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed run")]

use bytes::BytesMut;
use criterion::{Criterion, Throughput};
use omni_generation::{Delta, ResponseEncoder};
use omni_openai::{
    AnswerHead, ChatEncoder, CompletionEncoder, ResponsesEncoder, chat_request, completion_request, responses_request,
};
use std::hint::black_box;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let head = || AnswerHead {
        id: "0196f3a2b4c57d8e9fa0b1c2d3e4f506".into(),
        created: 1_700_000_000,
        model: "@cf/meta/llama-3.1-8b-instruct".into(),
    };
    let chat =
        chat_request(br#"{"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": true}"#).unwrap();
    let completion = completion_request(br#"{"model": "m", "prompt": "hi", "stream": true}"#).unwrap();
    let (_, echo) = responses_request(br#"{"model": "m", "input": "hi", "stream": true}"#).unwrap();
    let content = [Delta::Content(" token".into())];
    let reasoning = [Delta::Reasoning(" token".into())];

    let mut group = criterion.benchmark_group("delta");
    group.throughput(Throughput::Elements(1));
    let mut bench = |name: &str, mut encoder: Box<dyn ResponseEncoder>, delta: &[Delta]| {
        let mut out = BytesMut::with_capacity(64 * 1024);
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                encoder.deltas(0, black_box(delta), &[], &mut out);
                out.clear();
            });
        });
    };
    bench("chat, text", Box::new(ChatEncoder::new(head(), &chat)), &content);
    bench("chat, reasoning", Box::new(ChatEncoder::new(head(), &chat)), &reasoning);
    bench("completions, text", Box::new(CompletionEncoder::new(head(), &completion)), &content);
    bench("responses, text", Box::new(ResponsesEncoder::new(head(), echo)), &content);
    group.finish();

    let message = r#"{"role": "user", "content": "the quick brown fox jumps over the lazy dog"}"#;
    let tool = r#"{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}"#;
    let body = format!(
        r#"{{"model": "m", "messages": [{}], "tools": [{tool}], "temperature": 0.5, "stream": true}}"#,
        vec![message; 20].join(", ")
    );
    let mut group = criterion.benchmark_group("request");
    group.throughput(Throughput::Bytes(body.len() as u64));
    group.bench_function("chat, 20 messages, a tool", |bencher| {
        bencher.iter(|| chat_request(black_box(body.as_bytes())).unwrap());
    });
    group.finish();
    criterion.final_summary();
}
