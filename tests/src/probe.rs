//! A model that runs a test's own Python inside its sandbox. The text has `attempt(name, function)`, `call(name,
//! system_call, *arguments)` and `tell(name=value)` to report results, and the handler's `context`.

use crate::Node;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The model's `model.py`.
pub const MODEL: &str = include_str!("probe.py");

/// Runs `code` in the model, and returns what it found by name: a value, or the symbol of an error's number.
///
/// # Panics
/// When the code itself fails.
#[must_use]
pub fn probe(node: &Node, model: &str, code: &str) -> BTreeMap<String, Value> {
    let answer = node.http().run(model, &json!(code));
    assert_eq!(answer.status, 200, "{model}: {}\n{}", answer.text(), node.omnictl(["logs", model]).stdout);
    serde_json::from_value(answer.json()["result"].clone()).expect("an object")
}

/// Asserts what the code found, all of it.
///
/// # Panics
/// When anything differs.
pub fn assert_found(node: &Node, model: &str, code: &str, expected: &Value) {
    assert_eq!(json!(probe(node, model, code)), *expected, "{model} ran:\n{code}");
}
