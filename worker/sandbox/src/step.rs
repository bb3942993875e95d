//! The error of the sandbox: the step that failed and the kernel's answer.

use nix::errno::Errno;

/// A step of making a sandbox failed; nothing of the model has run.
#[derive(Debug, thiserror::Error)]
#[error("{step}")]
pub struct StepError {
    step: String,
    #[source]
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl StepError {
    /// The step and its causes in one line, for messages that cross a process boundary.
    #[must_use]
    pub fn chain(&self) -> String {
        omni_log::chain(self)
    }
}

/// Names the step of a result.
pub(super) trait Step<T> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, StepError>;
}

impl<T, E: Into<Box<dyn std::error::Error + Send + Sync>>> Step<T> for Result<T, E> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, StepError> {
        self.map_err(|source| StepError { step: step(), source: source.into() })
    }
}

/// A step that failed without the kernel: bad input of the launcher.
pub(super) fn invalid(step: String) -> StepError {
    StepError { step, source: Errno::EINVAL.into() }
}
