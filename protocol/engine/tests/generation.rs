//! Bodies and events of requests that the node reads, held still by snapshots.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod json_lines;

use json_lines::lines;
use omni_engine_protocol::generation::{
    Alternative, FinishEvent, FinishReason, GenerationEvent, GenerationInput, ResponseFormatInput, SamplingInput,
    TokenEvent, ToolCallEvent, ToolChoiceInput, UsageReport,
};
use omni_engine_protocol::task::{
    EmbeddingsInput, Image, ImageInput, ImagesAnswer, RerankAnswer, RerankInput, Segment, SpeechInput, TokenCount,
    Transcription, TranscriptionParameters,
};
use serde_json::value::RawValue;

fn raw(json: &str) -> Box<RawValue> {
    serde_json::from_str(json).unwrap()
}

#[test]
fn events() {
    let usage = UsageReport { prompt_tokens: 3, completion_tokens: 4, cached_tokens: 1, reasoning_tokens: 2 };
    let token = TokenEvent {
        text: "ä".into(),
        bytes: None,
        id: Some(7),
        logprob: Some(-0.5),
        top: vec![Alternative { text: "a".into(), logprob: -0.25 }],
    };
    let half = TokenEvent { text: "\u{fffd}".into(), bytes: Some(vec![0xf0, 0x9f]), ..TokenEvent::default() };
    let call = ToolCallEvent { id: Some("c1".into()), name: "f".into(), arguments: r#"{"a": 1}"#.into() };
    let finish = |reason, usage| GenerationEvent::Finish(FinishEvent { reason, usage });
    insta::assert_snapshot!(
        "events",
        lines(&[
            GenerationEvent::Prompt(TokenEvent { text: "<s>".into(), id: Some(1), ..TokenEvent::default() }),
            GenerationEvent::Prompt(token.clone()),
            GenerationEvent::Token(token),
            GenerationEvent::Token(half),
            GenerationEvent::Token(TokenEvent { text: "moo".into(), ..TokenEvent::default() }),
            GenerationEvent::Reasoning { text: "because".into() },
            GenerationEvent::ToolCall(call),
            GenerationEvent::ToolCall(ToolCallEvent { id: None, name: "g".into(), arguments: "{}".into() }),
            finish(Some(FinishReason::Stop), Some(usage)),
            finish(Some(FinishReason::Length), None),
            finish(Some(FinishReason::ToolCalls), None),
            finish(Some(FinishReason::ContentFilter), None),
            finish(None, Some(UsageReport::default())),
        ])
    );
}

#[test]
fn bodies_of_text_generation() {
    let tool = raw(r#"{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}"#);
    let messages = raw(r#"[{"role":"user","content":"hi"}]"#);
    let schema = raw(r#"{"type":"object","properties":{"z":{},"a":{}}}"#);
    let sampling = SamplingInput {
        max_tokens: Some(16),
        min_tokens: Some(1),
        temperature: Some(0.7),
        top_p: Some(0.9),
        top_k: Some(40),
        min_p: Some(0.05),
        frequency_penalty: Some(0.5),
        presence_penalty: Some(-0.5),
        repetition_penalty: Some(1.1),
        seed: Some(-1),
        logit_bias: &[(5, -100.0)],
        ignore_eos: true,
    };
    let stop = ["\n\n".to_owned()];
    let bodies = [
        GenerationInput { prompt: Some("moo"), ..GenerationInput::default() },
        GenerationInput {
            prompt: Some("<s>hi</s>"),
            literals: &[(3, 5)],
            sampling,
            stop: &stop,
            response_format: Some(ResponseFormatInput::JsonSchema { schema: &schema }),
            logprobs: Some(5),
            stream: true,
            ..GenerationInput::default()
        },
        GenerationInput {
            prompt_tokens: Some(&[1, 2]),
            echo: true,
            response_format: Some(ResponseFormatInput::JsonObject),
            tool_choice: ToolChoiceInput::None,
            ..GenerationInput::default()
        },
        GenerationInput {
            messages: Some(&messages),
            tools: vec![&tool],
            tool_choice: ToolChoiceInput::Named("f"),
            ..GenerationInput::default()
        },
        GenerationInput {
            messages: Some(&messages),
            tools: vec![&tool],
            tool_choice: ToolChoiceInput::Required,
            ..GenerationInput::default()
        },
    ];
    let lines: Vec<String> = bodies.iter().map(|body| serde_json::to_string(body).unwrap()).collect();
    insta::assert_snapshot!("bodies_of_text_generation", lines.join("\n"));
}

#[test]
fn other_bodies_and_answers() {
    let embeddings = EmbeddingsInput { texts: Some(vec!["a".into()]), tokens: None, dimensions: Some(64) };
    let tokens = EmbeddingsInput { texts: None, tokens: Some(vec![vec![1, 2]]), dimensions: None };
    let rerank = RerankInput { query: "q".into(), documents: vec!["a".into(), "b".into()], top_n: Some(1) };
    let speech = SpeechInput {
        text: "moo".into(),
        voice: Some("cow".into()),
        format: Some("wav".into()),
        ..SpeechInput::default()
    };
    let parameters =
        TranscriptionParameters { language: Some("de".into()), translate: true, ..TranscriptionParameters::default() };
    let image = ImageInput { prompt: "a cow".into(), n: 1, width: Some(512), ..ImageInput::default() };
    let transcription = Transcription {
        text: "moo".into(),
        language: Some("de".into()),
        duration: Some(1.5),
        segments: vec![Segment { start: 0.0, end: 1.5, text: "moo".into() }],
    };
    let images = ImagesAnswer { images: vec![Image { media_type: "image/png".into(), data: "iVBORw==".into() }] };
    let all = [
        lines(&[embeddings, tokens]),
        lines(&[rerank]),
        lines(&[RerankAnswer { scores: vec![0.25, -1.0], usage: Some(UsageReport::default()) }]),
        lines(&[speech]),
        lines(&[image]),
        lines(&[parameters, TranscriptionParameters::default()]),
        lines(&[transcription, Transcription { text: "moo".into(), ..Transcription::default() }]),
        lines(&[images]),
        lines(&[TokenCount { tokens: 12 }]),
    ];
    insta::assert_snapshot!("other_bodies_and_answers", all.concat());
}
