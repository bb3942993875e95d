//! Failures of the engine as those of a client's request.

use crate::engine::Failure as EngineFailure;
use omni_batcher::Refusal;
use omni_request_error::{Failure, InvalidCode, InvalidRequest};
use omni_sampler::{GrammarError, ParameterError};
use std::time::Duration;

/// Time after which a request is worth another try when too many wait.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Failure of a request to the engine.
pub(super) fn of_engine(failure: EngineFailure) -> Failure {
    match failure {
        EngineFailure::Refused(Refusal::QueueFull { .. }) | EngineFailure::Overloaded => {
            Failure::QueueFull { retry_after: RETRY_AFTER }
        }
        EngineFailure::Refused(Refusal::TooLong { tokens, most }) => too_long(tokens, 0, most),
        EngineFailure::Refused(refusal @ Refusal::Choices { .. }) => {
            InvalidRequest::new("n", refusal.to_string()).into()
        }
        EngineFailure::Refused(refusal @ Refusal::EmptyPrompt) => {
            InvalidRequest::new("prompt", refusal.to_string()).into()
        }
        EngineFailure::Refused(Refusal::Duplicate(_)) => Failure::Died,
        EngineFailure::Parameter(error) => of_parameter(&error),
        EngineFailure::Kind(_) => InvalidRequest::unsupported("model", failure.to_string()).into(),
        EngineFailure::Sample(error) => Failure::AnswerNotSendable(error.to_string()),
        EngineFailure::Deadline => Failure::Deadline,
        EngineFailure::Backend(error) => {
            tracing::error!(error, "a step has failed");
            Failure::Raised
        }
        EngineFailure::Ending => Failure::ShuttingDown,
    }
}

fn of_parameter(error: &ParameterError) -> Failure {
    let parameter = match error {
        ParameterError::Range { parameter, .. } | ParameterError::Token { parameter, .. } => *parameter,
        ParameterError::Vocabulary(_) => "model",
        ParameterError::NothingAllowed => "allowed_token_ids",
    };
    InvalidRequest::new(parameter, error.to_string()).into()
}

/// Failure of a grammar: a fault of the request's schema, or a vocabulary that no grammar can be made for.
#[allow(clippy::needless_pass_by_value, reason = "taken by `map_err`")]
pub(super) fn of_grammar(error: GrammarError) -> Failure {
    let parameter = "response_format";
    match error {
        GrammarError::Vocabulary { .. } | GrammarError::Index(_) | GrammarError::Marker(_) => {
            InvalidRequest::unsupported(parameter, error.to_string()).into()
        }
        GrammarError::TooLarge(_) | GrammarError::Unsupported(_) | GrammarError::TooSlow => {
            InvalidRequest::new(parameter, error.to_string()).with_code(InvalidCode::Schema).into()
        }
    }
}

/// Failure of a prompt and an answer that have no room.
pub(super) fn too_long(prompt: usize, answer: usize, most: usize) -> Failure {
    let message = match answer {
        0 => format!("the prompt has {prompt} tokens, and there is room for {most}, an answer included: shorten it"),
        answer => format!(
            "the prompt has {prompt} tokens and the answer may have {answer}: {} in all, and there is room for {most}",
            prompt.saturating_add(answer)
        ),
    };
    let parameter = if answer > 1 && prompt < most { "max_tokens" } else { "prompt" };
    InvalidRequest::new(parameter, message).with_code(InvalidCode::ContextLength).into()
}
