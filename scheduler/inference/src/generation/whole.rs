//! An answer of generated text as one document.

use super::{Event, Generation};
use crate::memory::{AnswerMemory, LONGEST_WHOLE, size, size_of_tokens};
use omni_body::{BodyPermit, BudgetShare};
use omni_generation::Completion;
use omni_request_error::Failure;
use std::sync::Arc;

/// Collects the whole answer, whose memory counts against the model's share. `None`: no instance got the request before the model
/// was handed over. A failure's outcome is the caller's to count.
pub(crate) async fn collect(
    generation: &mut Generation,
    share: &Arc<BudgetShare>,
) -> Result<Option<(Completion, BodyPermit)>, Failure> {
    let mut completion =
        Completion { choices: vec![Default::default(); generation.choices.len()], ..Completion::default() };
    let mut memory = AnswerMemory::new(share, LONGEST_WHOLE);
    loop {
        match generation.next().await {
            Event::Begun(_) => {}
            Event::Parts(number, parts) => {
                let held = memory.hold(parts.deltas.iter().map(size).sum::<u64>() + size_of_tokens(&parts.tokens));
                held.inspect_err(|_| generation.cancel())?;
                if let Some(choice) = completion.choices.get_mut(number) {
                    choice.extend(&parts.deltas, &parts.tokens);
                    choice.finish = parts.finish.or(choice.finish.take());
                }
            }
            Event::End(usage) => {
                completion.usage = usage;
                return Ok(Some((completion, memory.into_permit())));
            }
            Event::Failed(failure) => return Err(failure),
            Event::NotSent => return Ok(None),
        }
    }
}
