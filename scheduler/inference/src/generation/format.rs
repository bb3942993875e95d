//! Validation of answers that must be JSON, for engines that do not constrain their output.
//!
//! A schema is compiled when a choice has ended: compiled, it may take a hundred times the memory of its text, and requests
//! wait.

use super::choice::Parts;
use crate::aside::Aside;
use omni_generation::{Delta, FinishReason, ResponseFormat};
use omni_request_error::Failure;
use omni_structured_output::Validator;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Check of all choices of an answer. `None`: any text is right, or the engine keeps the form itself.
#[derive(Debug)]
pub(crate) struct FormatCheck(Option<Check>);

#[derive(Debug)]
struct Check {
    format: Arc<ResponseFormat>,
    aside: Aside,
    /// Content of each choice so far.
    contents: Vec<String>,
}

/// Validation of a choice that has ended: its last parts wait for it.
pub(crate) struct Validation {
    choice: usize,
    parts: Parts,
    verdict: Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>,
}

impl fmt::Debug for Validation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Validation").field("choice", &self.choice).finish_non_exhaustive()
    }
}

impl FormatCheck {
    /// The check of so many choices. `format`: a form whose schema is one; `None`: nothing has to be checked.
    pub(crate) fn new(format: Option<Arc<ResponseFormat>>, choices: usize, aside: Aside) -> Self {
        Self(format.map(|format| Check { format, aside, contents: vec![String::new(); choices] }))
    }

    /// Returns true if a part is held until its choice ends.
    pub(crate) fn holds(&self, delta: &Delta) -> bool {
        self.0.is_some() && matches!(delta, Delta::Content(_))
    }

    /// Adds parts, and begins to validate a choice at its end. An answer of tool calls, or one that was cut by the limit of
    /// tokens, has another form, and its finish says so.
    ///
    /// # Errors
    /// The parts, if nothing has to be validated.
    pub(crate) fn check(&mut self, choice: usize, parts: Parts) -> Result<Validation, Parts> {
        let Some(check) = &mut self.0 else { return Err(parts) };
        let Some(content) = check.contents.get_mut(choice) else { return Err(parts) };
        for delta in &parts.deltas {
            if let Delta::Content(text) = delta {
                content.push_str(text);
            }
        }
        let ends = parts.finish.as_ref().is_some_and(|finish| matches!(finish.reason, FinishReason::Stop { .. }));
        if !ends {
            return Err(parts);
        }
        let (content, format) = (std::mem::take(content), Arc::clone(&check.format));
        let validated = check.aside.clone().run(move || validate(&format, &content));
        let verdict = async move { validated.await? };
        Ok(Validation { choice, parts, verdict: Box::pin(verdict) })
    }
}

fn validate(format: &ResponseFormat, content: &str) -> Result<(), Failure> {
    match Validator::new(format)? {
        Some(validator) => {
            validator.validate(content).map_err(|violation| Failure::AnswerNotSendable(violation.to_string()))
        }
        None => Ok(()),
    }
}

impl Validation {
    /// Polls the verdict.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.verdict.as_mut().poll(context)
    }

    /// The choice and its last parts.
    pub(crate) fn into_parts(self) -> (usize, Parts) {
        (self.choice, self.parts)
    }
}
