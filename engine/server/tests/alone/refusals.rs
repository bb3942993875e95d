//! Requests that are refused before the first byte of their answer, each with words that help.

use crate::fixture::{Given, Server};
use crate::{chat, completion};
use serde_json::{Value, json};

async fn refusal(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let answer = server.post(path, body).await;
    assert!(answer.head.contains("application/json"), "{answer:?}");
    (answer.status, answer.json()["error"].clone())
}

#[tokio::test]
async fn bad_requests_say_what_is_wrong() {
    let server = Server::start(Given { context: 100, ..Given::default() }).await;
    let long = "x".repeat(90);
    let (chats, completions) = ("/v1/chat/completions", "/v1/completions");
    let image = json!([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]);
    let schema = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "nothing"}}});
    for (path, body, parameter, code, words) in [
        (
            completions,
            completion(json!({"prompt": long, "max_tokens": 20})),
            "max_tokens",
            "context_length_exceeded",
            "the prompt has 90 tokens and the answer may have 20: 110 in all, and there is room for 100",
        ),
        (
            completions,
            completion(json!({"prompt": "y".repeat(120)})),
            "prompt",
            "context_length_exceeded",
            "120 tokens",
        ),
        (
            chats,
            chat(json!({"messages": [{"role": "user", "content": long}]})),
            "prompt",
            "context_length_exceeded",
            "there is room for 100",
        ),
        (
            completions,
            completion(json!({"prompt": [1, 258]})),
            "prompt",
            "invalid_value",
            "token id 258 is not in the vocabulary of this model, which has 258 tokens",
        ),
        (completions, completion(json!({"prompt": ""})), "prompt", "invalid_value", "`prompt` has no tokens"),
        (completions, completion(json!({"logit_bias": {"999": 1}})), "logit_bias", "invalid_value", "999"),
        (completions, completion(json!({"n": 5})), "n", "invalid_value", "between 1 and 4"),
        (completions, completion(json!({"suffix": "x"})), "suffix", "unsupported_parameter", "not supported"),
        (completions, completion(json!({"max_token": 1})), "max_token", "unknown_parameter", "max_token"),
        (
            chats,
            chat(json!({"messages": [{"role": "user", "content": image}]})),
            "messages",
            "unsupported_parameter",
            "takes no images",
        ),
        (chats, chat(json!({"response_format": schema})), "response_format", "invalid_schema", "schema"),
        (
            chats,
            chat(json!({"tools": [{"type": "function", "function": {"name": "f"}}]})),
            "tools",
            "unsupported_parameter",
            "does not call functions",
        ),
        ("/v1/embeddings", json!({"model": "bytes", "input": "a"}), "model", "unsupported_parameter", "no embeddings"),
    ] {
        for stream in [false, true] {
            let mut body = body.clone();
            if stream && path != "/v1/embeddings" {
                body["stream"] = true.into();
            }
            let (status, error) = refusal(&server, path, &body).await;
            assert_eq!(status, 400, "{error}");
            assert_eq!((error["param"].as_str(), error["code"].as_str()), (Some(parameter), Some(code)), "{error}");
            assert!(error["message"].as_str().unwrap().contains(words), "{error}");
        }
    }
    let (status, error) = refusal(&server, chats, &chat(json!({"model": "gpt"}))).await;
    assert_eq!((status, error["code"].as_str()), (404, Some("model_not_found")));
    assert_eq!(server.post("/v1/rerank", &json!({})).await.status, 404);
    assert_eq!(server.get("/v1/chat/completions").await.status, 405);
    assert_eq!(server.get("/elsewhere").await.status, 404);
}

#[tokio::test]
async fn a_model_without_a_template_takes_no_conversations() {
    let server = Server::start(Given { template: None, ..Given::default() }).await;
    let (status, error) = refusal(&server, "/v1/chat/completions", &chat(json!({}))).await;
    assert_eq!(status, 400);
    assert!(error["message"].as_str().unwrap().contains("no chat template"), "{error}");
    assert_eq!(server.post("/v1/completions", &completion(json!({}))).await.status, 200);
}
