//! An answer of generated text as one document.

use super::{Event, Generation};
use omni_body::{BodyPermit, BudgetShare};
use omni_generation::{Completion, Delta};
use omni_request_error::Failure;
use std::sync::Arc;
use std::time::Instant;

/// Bytes of an answer that are reserved at once.
const STEP: u64 = 64 * 1024;
/// Longest answer, in bytes of text of all choices: that of any other answer.
const MOST: u64 = 64 * 1024 * 1024;

/// Collects the whole answer, whose memory counts against the model's share. `None`: no instance got the request before the model
/// was handed over.
pub(crate) async fn collect(
    generation: &mut Generation,
    share: &Arc<BudgetShare>,
) -> Result<Option<(Completion, BodyPermit)>, Failure> {
    let mut completion =
        Completion { choices: vec![Default::default(); generation.choices.len()], ..Completion::default() };
    let (mut permit, mut length) = (share.body(), 0);
    loop {
        match generation.next().await {
            Event::Begun(_) => {}
            Event::Parts(number, parts) => {
                length += parts.deltas.iter().map(|delta| text(delta).len() as u64).sum::<u64>();
                if length > MOST {
                    return Err(Failure::AnswerNotSendable(format!("it is longer than {MOST} bytes")));
                }
                while length > permit.bytes() {
                    if !permit.grow(STEP, Instant::now()) {
                        return Err(Failure::AnswerNotKept);
                    }
                }
                if let Some(choice) = completion.choices.get_mut(number) {
                    choice.extend(&parts.deltas, &parts.tokens);
                    choice.finish = parts.finish.or(choice.finish.take());
                }
            }
            Event::End(usage) => {
                completion.usage = usage;
                return Ok(Some((completion, permit)));
            }
            Event::Failed(failure) => return Err(failure),
            Event::NotSent => return Ok(None),
        }
    }
}

fn text(delta: &Delta) -> &str {
    match delta {
        Delta::Content(text) | Delta::Reasoning(text) | Delta::CallArguments { text, .. } => text,
        Delta::CallStart { name, .. } => name,
    }
}
