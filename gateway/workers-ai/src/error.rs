//! Rendering of a [`Failure`] in the form of the Workers AI API.

use bytes::Bytes;
use hyper::Response;
use omni_request_error::Failure;

/// Error code of the Workers AI API for a failure.
fn code(failure: &Failure) -> u32 {
    match failure {
        Failure::HeadTooLarge | Failure::BodyTooLarge { .. } => 3006,
        Failure::BodyTimeout | Failure::Deadline | Failure::DeadlineBuilding { .. } => 3007,
        Failure::TooManyRequests { .. }
        | Failure::QueueFull { .. }
        | Failure::NodeBusy
        | Failure::UploadsFull
        | Failure::JobsFull(_)
        | Failure::JobsUnavailable
        | Failure::UsageNotKept
        | Failure::AnswerNotKept
        | Failure::CannotStart { .. }
        | Failure::NoRoom { .. }
        | Failure::NoGpuMemory { .. }
        | Failure::ShuttingDown
        | Failure::NeverRoom
        | Failure::NoFittingGpu => 3040,
        Failure::Raised | Failure::AnswerNotSendable(_) => 3043,
        Failure::Died | Failure::SuccessorDied | Failure::Cancelled => 3050,
        Failure::NoHost
        | Failure::BodyEncoded { .. }
        | Failure::BadRequest(_)
        | Failure::InvalidRequest(_)
        | Failure::NoSuchJob(_) => 5004,
        Failure::NoSuchModel => 5007,
        Failure::NoSuchRoute => 7000,
        Failure::MethodNotAllowed { .. } => 7001,
        Failure::UnknownHost { .. } => 7003,
        Failure::OtherSite | Failure::ModelNotAllowed => 9109,
        Failure::Unauthorized => 10000,
        Failure::Handler { status, .. } => code_of_handler(*status),
    }
}

/// Error code that is nearest to a handler's own status.
#[must_use]
pub fn code_of_handler(status: u16) -> u32 {
    match status {
        413 => 3006,
        429 => 3040,
        504 => 3007,
        500.. => 3043,
        _ => 5004,
    }
}

/// Error code that is nearest to the kind of an error that a queued request has in the place of a response.
#[must_use]
pub fn code_of_item(kind: &str) -> u32 {
    match kind {
        "result_too_long" | "response_too_large" => 3006,
        "batch_expired" => 3007,
        "instance_died" | "no_response" | "batch_cancelled" => 3050,
        "stream_not_supported" | "invalid_request" => 5004,
        _ => 3040, // not executed, or not stored
    }
}

/// The error response of the Workers AI API.
#[must_use]
pub fn error_response(failure: &Failure) -> Response<Bytes> {
    let body = serde_json::json!({
        "result": null,
        "success": false,
        "errors": [{ "code": code(failure), "message": failure.to_string() }],
        "messages": [],
    });
    omni_codec::failure_response(failure, Bytes::from(body.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_request_error::BuildProgress;
    use std::time::Duration;

    #[test]
    fn the_failure_table() {
        let failures = [
            Failure::NoHost,
            Failure::UnknownHost { host: "attacker.example".into() },
            Failure::OtherSite,
            Failure::HeadTooLarge,
            Failure::BodyEncoded { encoding: "gzip".into() },
            Failure::NoSuchRoute,
            Failure::MethodNotAllowed { allowed: "POST" },
            Failure::Unauthorized,
            Failure::ModelNotAllowed,
            Failure::TooManyRequests { retry_after: Duration::from_millis(300) },
            Failure::NoSuchModel,
            Failure::NoSuchJob("request"),
            Failure::JobsFull("the node's space for batch jobs is used up: wait until files expire, or delete some"),
            Failure::JobsUnavailable,
            Failure::BadRequest("text is missing".into()),
            Failure::BodyTimeout,
            Failure::BodyTooLarge { limit: 1024 },
            Failure::QueueFull { retry_after: Duration::from_millis(1200) },
            Failure::NodeBusy,
            Failure::UploadsFull,
            Failure::UsageNotKept,
            Failure::AnswerNotKept,
            Failure::CannotStart { retry_after: Duration::from_secs(300) },
            Failure::NoRoom { retry_after: Duration::from_millis(2400) },
            Failure::NeverRoom,
            Failure::NoGpuMemory { retry_after: Duration::from_millis(1800) },
            Failure::NoFittingGpu,
            Failure::ShuttingDown,
            Failure::Died,
            Failure::SuccessorDied,
            Failure::Deadline,
            Failure::DeadlineBuilding { build: BuildProgress::Queued },
            Failure::DeadlineBuilding { build: BuildProgress::Running },
            Failure::Raised,
            Failure::AnswerNotSendable("the header `date` is the node's to set".into()),
            Failure::Handler { status: 422, message: "no".into() },
            Failure::Handler { status: 503, message: "later".into() },
        ];
        let mut table = String::new();
        for failure in failures {
            let response = error_response(&failure);
            let header = |name: &str| response.headers().get(name).map_or("-", |v| v.to_str().unwrap()).to_owned();
            table += &format!(
                "{:<24} {} retry-after={} should-retry={} omni-retry={} {}\n",
                format!("{failure:?}").split(['(', ' ']).next().unwrap(),
                response.status().as_u16(),
                header("retry-after"),
                header("x-should-retry"),
                header("x-omni-retry"),
                String::from_utf8_lossy(response.body()),
            );
        }
        insta::assert_snapshot!(table);
    }
}
