//! Models of noise, which `clients/llama/gguf.py` makes on the spot.

use crate::{Node, NodeBuilder};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Folders of weights: `small`, a small model, and `slow`, one whose tokens take milliseconds.
#[must_use]
pub fn weights() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/llama/gguf.py");
    for (name, size) in [("small", ["64", "2"]), ("slow", ["512", "8"])] {
        let folder = dir.path().join(name);
        fs::create_dir(&folder).unwrap();
        let made = Command::new("python3").arg(&script).arg(folder.join("noise.gguf")).args(size).status().unwrap();
        assert!(made.success());
    }
    dir
}

/// Node whose models may have these weights.
#[must_use]
pub fn builder(weights: &TempDir) -> NodeBuilder {
    Node::builder().config(&format!("[weights]\nfolders = [{:?}]\n", weights.path()))
}

/// Short conversation with the model `noise`, and more parameters.
#[must_use]
pub fn chat(more: &Value) -> Value {
    let mut body = json!({ "model": "noise", "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 5 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Asserts that a client is told when `end` ends the process of the model `noise` in the middle of a stream, and that the next
/// request finds another instance. `more`: parameters of the streamed request.
pub fn assert_started_again(node: &Node, more: &Value, end: impl FnOnce()) {
    let mut body = chat(&json!({ "max_tokens": 4000, "stream": true }));
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let mut stream = node.http().open("POST", "/v1/chat/completions", &[], body.to_string().as_bytes());
    assert!(stream.chunk().unwrap().is_some());
    let first = node.instance("noise").unwrap().id;
    end();
    let last = stream.events();
    assert!(
        last.iter().any(|event| event.contains("\"error\"")) && !last.iter().any(|event| event == "[DONE]"),
        "{last:?}"
    );
    let answer = node.http().post("/v1/chat/completions", &chat(&json!({})));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_ne!(node.instance("noise").unwrap().id, first);
}
