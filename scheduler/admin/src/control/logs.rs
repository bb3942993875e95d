//! Log of a model: the last lines and, on request, those that follow.

use super::parameter;
use hyper::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use omni_inference::AnswerBody;
use omni_supervisor::model::Model;
use omni_supervisor::node::Node;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Lines of a log that are sent by default.
const LINES: usize = 100;
/// Lines that are queued for a slow reader of a log.
const QUEUE: usize = 64;

/// Responds with the last lines of a log and, with `follow=true`, every further line until the reader hangs up, or the model is gone or
/// handed over.
pub(super) fn logs(node: &Arc<Node>, model: &Arc<Model>, query: &str) -> Response<AnswerBody> {
    let lines = parameter(query, "lines").and_then(|text| text.parse().ok()).unwrap_or(LINES);
    let mut follow = parameter(query, "follow") == Some("true");
    let ring = Arc::clone(&model.logs);
    let (node, mut state) = (Arc::clone(node), model.subscribe());
    let (sender, receiver) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        let mut newest = ring.subscribe();
        newest.mark_unchanged();
        let (mut entries, mut next) = ring.last(lines);
        loop {
            for entry in entries {
                let mut line = serde_json::to_vec(&entry).unwrap_or_default();
                line.push(b'\n');
                if sender.send(line.into()).await.is_err() {
                    return;
                }
            }
            if !follow {
                return;
            }
            tokio::select! {
                changed = newest.changed() => follow = changed.is_ok(),
                () = async { while state.changed().await.is_ok() {} } => follow = false,
                () = node.taken_over() => follow = false,
                () = sender.closed() => return,
            }
            (entries, next) = ring.since(next);
        }
    });
    let mut response = Response::new(AnswerBody::Lines(receiver));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    response
}
