//! Stacks of a model's threads. Instances write them to their logs on request; the response has these lines.

use super::refusal::Refusal;
use hyper::StatusCode;
use omni_supervisor::model::output::{is_stack, output};
use omni_supervisor::model::{Message, Model};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Time for the first line.
const FIRST_LINE: Duration = Duration::from_secs(2);
/// Time between two lines.
const NEXT_LINE: Duration = Duration::from_millis(200);
/// Time for all lines, also of a model that keeps writing.
const ALL_LINES: Duration = Duration::from_secs(5);

/// Collects the stacks of all instances, as lines of their logs.
pub(super) async fn stacks(model: &Model) -> Result<Vec<u8>, Refusal> {
    let refusal = |detail: String| Refusal { status: StatusCode::CONFLICT, kind: "no-stack", detail };
    let mut newest = model.logs.subscribe();
    newest.mark_unchanged();
    let (_, mut next) = model.logs.last(0);
    let (sender, asked) = oneshot::channel(); // number of instances
    let was_sent = model.send(Message::Stacks(sender)).await;
    if !was_sent || asked.await.unwrap_or_default() == 0 {
        let name = &model.name;
        return Err(refusal(format!(
            "no instance of `{name}` can report its stacks: none runs, or it is of an earlier release"
        )));
    }
    let (begun, mut lines) = (Instant::now(), Vec::new());
    while begun.elapsed() < ALL_LINES {
        let limit = if lines.is_empty() { FIRST_LINE } else { NEXT_LINE };
        if !matches!(tokio::time::timeout(limit, newest.changed()).await, Ok(Ok(()))) {
            break;
        }
        let (entries, further) = model.logs.since(next);
        next = further;
        for entry in entries.iter().filter(|entry| entry.stream == "stderr" && is_stack(output(&entry.text).text)) {
            lines.extend(serde_json::to_vec(entry).unwrap_or_default());
            lines.push(b'\n');
        }
    }
    if lines.is_empty() {
        return Err(refusal(format!("`{}` has not reported its stacks: see its log", model.name)));
    }
    Ok(lines)
}
