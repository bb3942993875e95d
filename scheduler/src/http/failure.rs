//! The one place that turns a [`Failure`] into an answer: status, Workers AI code, retry advice.
//!
//! The official clients repeat 408, 409, 429 and every 5xx twice by themselves, so a failure whose request did run says
//! `x-should-retry: false`, and `retry-after` is never above a minute (above it they ignore the value and repeat soon).

use super::answer::AnswerBody;
use crate::failure::Failure;
use bytes::Bytes;
use hyper::header::{ACCEPT_ENCODING, ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use std::time::Duration;

/// The longest `retry-after`, in seconds.
const LONGEST_RETRY: u64 = 60;

/// How a failure is told on HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rendering {
    status: StatusCode,
    /// Error code of the Workers AI API.
    code: u32,
    retry: Retry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Retry {
    /// The status says enough.
    Unsaid,
    /// Not by the client on its own: the request ran.
    Never,
    /// Here, after this time.
    After(Duration),
    /// On another node; here after this time.
    OtherNode(Duration),
}

fn rendering(failure: &Failure) -> Rendering {
    let (status, code, retry) = match failure {
        Failure::NoHost => (StatusCode::BAD_REQUEST, 5004, Retry::Unsaid),
        Failure::UnknownHost { .. } => (StatusCode::MISDIRECTED_REQUEST, 7003, Retry::Unsaid),
        Failure::OtherSite => (StatusCode::FORBIDDEN, 9109, Retry::Unsaid),
        Failure::HeadTooLarge => (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, 3006, Retry::Unsaid),
        Failure::BodyEncoded { .. } => (StatusCode::UNSUPPORTED_MEDIA_TYPE, 5004, Retry::Unsaid),
        Failure::NoSuchRoute => (StatusCode::NOT_FOUND, 7000, Retry::Unsaid),
        Failure::MethodNotAllowed { .. } => (StatusCode::METHOD_NOT_ALLOWED, 7001, Retry::Unsaid),
        Failure::Unauthorized => (StatusCode::UNAUTHORIZED, 10000, Retry::Unsaid),
        Failure::ModelNotAllowed => (StatusCode::FORBIDDEN, 9109, Retry::Unsaid),
        Failure::TooManyRequests { retry_after } => (StatusCode::TOO_MANY_REQUESTS, 3040, Retry::After(*retry_after)),
        Failure::NoSuchModel => (StatusCode::NOT_FOUND, 5007, Retry::Unsaid),
        Failure::BadRequest(_) => (StatusCode::BAD_REQUEST, 5004, Retry::Unsaid),
        Failure::BodyTimeout => (StatusCode::REQUEST_TIMEOUT, 3007, Retry::Never),
        Failure::BodyTooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, 3006, Retry::Unsaid),
        Failure::QueueFull { retry_after } => (StatusCode::TOO_MANY_REQUESTS, 3040, Retry::After(*retry_after)),
        Failure::NodeBusy => (StatusCode::SERVICE_UNAVAILABLE, 3040, Retry::OtherNode(Duration::from_secs(1))),
        Failure::AnswerNotKept => (StatusCode::SERVICE_UNAVAILABLE, 3040, Retry::Never), // it ran
        Failure::CannotStart { retry_after }
        | Failure::NoRoom { retry_after }
        | Failure::NoGpuMemory { retry_after } => {
            (StatusCode::SERVICE_UNAVAILABLE, 3040, Retry::OtherNode(*retry_after))
        }
        Failure::ShuttingDown | Failure::NeverRoom | Failure::NoFittingGpu => {
            (StatusCode::SERVICE_UNAVAILABLE, 3040, Retry::OtherNode(Duration::from_secs(LONGEST_RETRY)))
        }
        Failure::Died | Failure::SuccessorDied | Failure::Cancelled => (StatusCode::BAD_GATEWAY, 3050, Retry::Never),
        Failure::Deadline | Failure::DeadlineBuilding { .. } => (StatusCode::GATEWAY_TIMEOUT, 3007, Retry::Never),
        Failure::Raised | Failure::AnswerNotSendable(_) => (StatusCode::INTERNAL_SERVER_ERROR, 3043, Retry::Never),
        Failure::Handler { status, .. } => handler_rendering(*status),
    };
    Rendering { status, code, retry }
}

/// What a handler says itself: its status stands.
fn handler_rendering(status: u16) -> (StatusCode, u32, Retry) {
    let retry = if status >= 500 { Retry::Never } else { Retry::Unsaid };
    (StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), code_of_handler(status), retry)
}

/// The code of the API that is nearest to a handler's status.
pub(super) fn code_of_handler(status: u16) -> u32 {
    match status {
        413 => 3006,
        429 => 3040,
        504 => 3007,
        500.. => 3043,
        _ => 5004,
    }
}

/// The status alone.
#[must_use]
pub fn status(failure: &Failure) -> StatusCode {
    rendering(failure).status
}

/// The answer of the Workers AI API.
#[must_use]
pub fn workers_ai(failure: &Failure) -> Response<AnswerBody> {
    let rendering = rendering(failure);
    let body = serde_json::json!({
        "result": null,
        "success": false,
        "errors": [{ "code": rendering.code, "message": failure.to_string() }],
        "messages": [],
    });
    let mut response = Response::new(AnswerBody::full(Bytes::from(body.to_string())));
    *response.status_mut() = rendering.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    match rendering.retry {
        Retry::Unsaid => {}
        Retry::Never => {
            headers.insert(HeaderName::from_static("x-should-retry"), HeaderValue::from_static("false"));
        }
        Retry::After(time) => {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds(time)));
        }
        Retry::OtherNode(time) => {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds(time)));
            headers.insert(HeaderName::from_static("x-omni-retry"), HeaderValue::from_static("other-node"));
        }
    }
    if let Failure::MethodNotAllowed { allowed } = failure {
        headers.insert(ALLOW, HeaderValue::from_static(allowed));
    }
    if let Failure::BodyEncoded { .. } = failure {
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
    if *failure == Failure::Unauthorized {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// Whole seconds, at least one and at most [`LONGEST_RETRY`].
fn seconds(time: Duration) -> u64 {
    time.as_millis().div_ceil(1000).clamp(1, u128::from(LONGEST_RETRY)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Build;

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
            Failure::BadRequest("text is missing".into()),
            Failure::BodyTimeout,
            Failure::BodyTooLarge { limit: 1024 },
            Failure::QueueFull { retry_after: Duration::from_millis(1200) },
            Failure::NodeBusy,
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
            Failure::DeadlineBuilding { build: Build::Waits },
            Failure::DeadlineBuilding { build: Build::Runs },
            Failure::Raised,
            Failure::AnswerNotSendable("the header `date` is the node's to set".into()),
            Failure::Handler { status: 422, message: "no".into() },
            Failure::Handler { status: 503, message: "later".into() },
        ];
        let mut table = String::new();
        for failure in failures {
            let response = workers_ai(&failure);
            let header = |name: &str| response.headers().get(name).map_or("-", |v| v.to_str().unwrap()).to_owned();
            table += &format!(
                "{:<24} {} retry-after={} should-retry={} omni-retry={} {}\n",
                format!("{failure:?}").split(['(', ' ']).next().unwrap(),
                response.status().as_u16(),
                header("retry-after"),
                header("x-should-retry"),
                header("x-omni-retry"),
                String::from_utf8_lossy(&response.body().bytes().unwrap()),
            );
        }
        insta::assert_snapshot!(table);
    }
}
