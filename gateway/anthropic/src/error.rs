//! Errors in the form of the Messages API: `{"type": "error", "error": {"type", "message"}, "request_id"}`.

use bytes::Bytes;
use hyper::Response;
use omni_request_error::{Failure, InvalidCode};
use schemars::JsonSchema;
use serde::Serialize;

/// Body of an error response, and last event of a stream that fails.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "MessageError")]
pub struct ErrorBody<'a> {
    /// `error`.
    r#type: &'static str,
    /// The error.
    error: ErrorObject<'a>,
    /// Id of the request.
    request_id: Option<&'a str>,
}

/// An error.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "MessageErrorObject")]
struct ErrorObject<'a> {
    /// Class of the error.
    r#type: &'static str,
    /// Cause, and what to do about it.
    message: &'a str,
}

impl<'a> ErrorBody<'a> {
    /// The body of a failure.
    #[must_use]
    pub fn new(status: u16, message: &'a str, request_id: Option<&'a str>) -> Self {
        Self { r#type: "error", error: ErrorObject { r#type: class(status), message }, request_id }
    }
}

/// The error response of a failure. The clients of this API read the id of the request from the body too.
#[must_use]
pub fn error_response(failure: &Failure, request_id: Option<&str>) -> Response<Bytes> {
    let message = message(failure);
    let body = ErrorBody::new(failure.status(), &message, request_id);
    omni_codec::failure_response(failure, Bytes::from(serde_json::to_vec(&body).unwrap_or_default()))
}

/// Message of a failure. The API has no field for the parameter.
pub(crate) fn message(failure: &Failure) -> String {
    match failure {
        // Clients know this failure by the beginning of its message.
        Failure::InvalidRequest(invalid) if invalid.code == InvalidCode::ContextLength => {
            format!("prompt is too long: {}", invalid.message)
        }
        Failure::InvalidRequest(invalid) => match &invalid.parameter {
            Some(parameter) if !invalid.message.contains(parameter.as_str()) => {
                format!("{parameter}: {}", invalid.message)
            }
            _ => invalid.message.clone(),
        },
        failure => failure.to_string(),
    }
}

fn class(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 | 504 => "timeout_error",
        413 | 431 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_request_error::InvalidRequest;
    use std::time::Duration;

    #[test]
    fn the_failure_table() {
        let retry_after = Duration::from_millis(1200);
        let failures = [
            Failure::NoSuchRoute,
            Failure::MethodNotAllowed { allowed: "POST" },
            Failure::Unauthorized,
            Failure::ModelNotAllowed,
            Failure::TooManyRequests { retry_after },
            Failure::NoSuchModel,
            Failure::BadRequest("the client hung up".into()),
            InvalidRequest::new("temperature", "`temperature` is 3: it has to be from 0 to 1").into(),
            InvalidRequest::new("messages[0].role", "the role has to be `user` or `assistant`").into(),
            InvalidRequest::new("messages", "2100 tokens, at most 2048").with_code(InvalidCode::ContextLength).into(),
            Failure::BodyTimeout,
            Failure::BodyTooLarge { limit: 1024 },
            Failure::BodyEncoded { encoding: "gzip".into() },
            Failure::QueueFull { retry_after },
            Failure::NodeBusy,
            Failure::UsageNotKept,
            Failure::ShuttingDown,
            Failure::Died,
            Failure::Deadline,
            Failure::Raised,
            Failure::Handler { status: 422, message: "no".into() },
        ];
        let mut table = String::new();
        for failure in failures {
            let response = error_response(&failure, Some("req_1"));
            let header = |name: &str| response.headers().get(name).map_or("-", |v| v.to_str().unwrap()).to_owned();
            table += &format!(
                "{} retry-after={} should-retry={} {}\n",
                response.status().as_u16(),
                header("retry-after"),
                header("x-should-retry"),
                String::from_utf8_lossy(response.body()),
            );
        }
        insta::assert_snapshot!(table);
    }
}
