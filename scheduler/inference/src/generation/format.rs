//! Validation of answers that must be JSON, for engines that do not constrain their output.

use super::choice::Parts;
use omni_generation::{Delta, FinishReason};
use omni_request_error::Failure;
use omni_structured_output::Validator;

/// Check of all choices of an answer. `None`: any text is right, or the engine keeps the form itself.
#[derive(Debug)]
pub(crate) struct FormatCheck(Option<Check>);

#[derive(Debug)]
struct Check {
    validator: Validator,
    /// Content of each choice so far.
    contents: Vec<String>,
}

impl FormatCheck {
    pub(crate) fn new(validator: Option<Validator>, choices: usize) -> Self {
        Self(validator.map(|validator| Check { validator, contents: vec![String::new(); choices] }))
    }

    /// Adds parts, and validates a choice at its end. An answer of tool calls, or one that was cut by the limit of tokens, has
    /// another form, and its finish says so.
    ///
    /// # Errors
    /// The content is not of the form that was asked for.
    pub(crate) fn check(&mut self, choice: usize, parts: &Parts) -> Result<(), Failure> {
        let Some(check) = &mut self.0 else { return Ok(()) };
        let Some(content) = check.contents.get_mut(choice) else { return Ok(()) };
        for delta in &parts.deltas {
            if let Delta::Content(text) = delta {
                content.push_str(text);
            }
        }
        match &parts.finish {
            Some(finish) if matches!(finish.reason, FinishReason::Stop { .. }) => {
                let content = std::mem::take(content);
                check
                    .validator
                    .validate(&content)
                    .map_err(|violation| Failure::AnswerNotSendable(violation.to_string()))
            }
            Some(_) | None => Ok(()),
        }
    }
}
