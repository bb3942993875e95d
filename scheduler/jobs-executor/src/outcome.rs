//! Outcome of an attempt at an item, by its response. Pure.

use omni_request_error::{Failure, RetryAdvice};
use std::time::Duration;

/// Attempts whose end may be the node's fault before their response is the result.
const DOUBTFUL: u32 = 3;
/// Time until a model is tried again that could not take an item, where nothing else is known.
const PAUSE: Duration = Duration::from_secs(1);

/// Fate of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The response is its result.
    Result,
    /// Death of the instance.
    Died,
    /// Wait for another attempt; the model gets no item for a while.
    Back(Duration),
}

/// Outcome of a response that the node itself has made for this cause; `None`: the model's own. `attempt`: from 1.
pub(crate) fn outcome(failure: Option<&Failure>, attempt: u32) -> Outcome {
    let Some(failure) = failure else { return Outcome::Result };
    let doubtful = |outcome| if attempt < DOUBTFUL { outcome } else { Outcome::Result };
    match failure {
        Failure::Died => Outcome::Died,
        // A start that takes longer than a request may is not the item's fault: so is a long wait for a place.
        Failure::DeadlineBuilding { .. } | Failure::ShuttingDown => Outcome::Back(PAUSE),
        Failure::Deadline | Failure::AnswerNotKept | Failure::SuccessorDied | Failure::Cancelled => {
            doubtful(Outcome::Back(PAUSE))
        }
        Failure::Handler { .. } => Outcome::Result,
        failure if matches!(failure.status(), 429 | 503) => match failure.retry_advice() {
            RetryAdvice::After(pause) | RetryAdvice::OtherNode(pause) => Outcome::Back(pause),
            RetryAdvice::None | RetryAdvice::Never => Outcome::Back(PAUSE),
        },
        _ => Outcome::Result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_by_cause() {
        let second = Duration::from_secs(1);
        for (failure, first, last) in [
            (None, Outcome::Result, Outcome::Result),
            (Some(Failure::Died), Outcome::Died, Outcome::Died),
            (Some(Failure::Raised), Outcome::Result, Outcome::Result),
            (Some(Failure::NoSuchModel), Outcome::Result, Outcome::Result),
            (Some(Failure::Unauthorized), Outcome::Result, Outcome::Result),
            (Some(Failure::Deadline), Outcome::Back(second), Outcome::Result),
            (Some(Failure::ShuttingDown), Outcome::Back(second), Outcome::Back(second)),
            (
                Some(Failure::QueueFull { retry_after: 5 * second }),
                Outcome::Back(5 * second),
                Outcome::Back(5 * second),
            ),
            (Some(Failure::NodeBusy), Outcome::Back(second), Outcome::Back(second)),
            (Some(Failure::Handler { status: 503, message: String::new() }), Outcome::Result, Outcome::Result),
        ] {
            let failure = failure.as_ref();
            assert_eq!((outcome(failure, 1), outcome(failure, 9)), (first, last), "{failure:?}");
        }
    }
}
