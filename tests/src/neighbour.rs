//! A model that does its work beside one that does not, and must not notice it.

use crate::{Answer, Node, NodeBuilder};
use serde_json::{Value, json};

const NAME: &str = "neighbour";
const ECHO: &str = "def handle_request(request, context):\n    return request.body.json\n";

/// A node with a neighbour.
#[must_use]
pub fn with_neighbour() -> NodeBuilder {
    Node::builder().model(NAME, &[("model.py", ECHO)])
}

/// The neighbour answers, and was never restarted.
///
/// # Panics
/// When that is not so; `after` says after what.
pub fn is_well(node: &Node, after: &str) {
    let answer = post(node, NAME, &json!(after));
    assert_eq!((answer.status, &answer.json()["result"]), (200, &json!(after)), "after {after}\n{}", node.log());
    assert_eq!(node.model(NAME).restarts, 0, "after {after}");
}

/// Sends a request to a model.
#[must_use]
pub fn post(node: &Node, model: &str, body: &Value) -> Answer {
    node.http().post(&format!("/ai/run/{model}"), body)
}
