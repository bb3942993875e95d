//! Stacks of a model's threads: its instances write them to their logs on request, and the response has these lines.

use super::Refusal;
use crate::model::output::{is_stack, output};
use crate::model::{Message, Model};
use hyper::StatusCode;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Time for the first line.
const FIRST: Duration = Duration::from_secs(2);
/// Time between two lines.
const NEXT: Duration = Duration::from_millis(200);
/// Time for all lines, also of a model that keeps writing.
const ALL: Duration = Duration::from_secs(5);

/// The stacks of all instances, as lines of their logs.
pub(super) async fn answer(model: &Model) -> Result<Vec<u8>, Refusal> {
    let refusal = |detail: String| Refusal { status: StatusCode::CONFLICT, kind: "no-stack", detail };
    let mut newest = model.logs.subscribe();
    newest.mark_unchanged();
    let (_, mut next) = model.logs.last(0);
    let (sender, asked) = oneshot::channel();
    let was_sent = model.tell(Message::Stacks(sender)).await;
    if !was_sent || asked.await.unwrap_or_default() == 0 {
        let name = &model.name;
        return Err(refusal(format!(
            "no instance of `{name}` can be asked where it is: none runs, or it is of an earlier release"
        )));
    }
    let (begun, mut answer) = (Instant::now(), Vec::new());
    while begun.elapsed() < ALL {
        let patience = if answer.is_empty() { FIRST } else { NEXT };
        if !matches!(tokio::time::timeout(patience, newest.changed()).await, Ok(Ok(()))) {
            break;
        }
        let (entries, further) = model.logs.since(next);
        next = further;
        for entry in entries.iter().filter(|entry| entry.stream == "stderr" && is_stack(output(&entry.text).text)) {
            answer.extend(serde_json::to_vec(entry).unwrap_or_default());
            answer.push(b'\n');
        }
    }
    if answer.is_empty() {
        return Err(refusal(format!("`{}` does not say where it is: see its log", model.name)));
    }
    Ok(answer)
}
