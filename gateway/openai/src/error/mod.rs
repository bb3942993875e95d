//! Errors in the form of the OpenAI API: `{"error": {"message", "type", "param", "code"}}`.

use bytes::Bytes;
use hyper::Response;
use omni_request_error::Failure;
use schemars::JsonSchema;
use serde::Serialize;

/// Body of an error response, and last event of a stream that fails.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorObject,
}

/// An error.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ErrorObject {
    /// Cause, and what to do about it.
    pub message: String,
    /// Class of the error.
    pub r#type: &'static str,
    /// Path of the parameter that is wrong.
    pub param: Option<String>,
    /// Code of the cause.
    pub code: Option<&'static str>,
}

/// The error response of a failure.
#[must_use]
pub fn error_response(failure: &Failure) -> Response<Bytes> {
    let body = ErrorBody::new(failure);
    omni_codec::failure_response(failure, Bytes::from(serde_json::to_vec(&body).unwrap_or_default()))
}

impl ErrorBody {
    /// The body of a failure.
    pub(crate) fn new(failure: &Failure) -> Self {
        let param = match failure {
            Failure::InvalidRequest(invalid) => invalid.parameter.clone(),
            Failure::NoSuchModel | Failure::ModelNotAllowed => Some("model".to_owned()),
            _ => None,
        };
        let (message, r#type, code) = (failure.to_string(), class(failure.status()), code(failure));
        Self { error: ErrorObject { message, r#type, param, code } }
    }
}

fn class(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        _ => "server_error",
    }
}

fn code(failure: &Failure) -> Option<&'static str> {
    match failure {
        Failure::InvalidRequest(invalid) => Some(invalid.code.name()),
        Failure::NoSuchRoute => Some("unknown_url"),
        Failure::MethodNotAllowed { .. } => Some("method_not_supported"),
        Failure::Unauthorized => Some("invalid_api_key"),
        Failure::NoSuchModel => Some("model_not_found"),
        Failure::ModelNotAllowed => Some("model_not_allowed"),
        Failure::NoHost
        | Failure::UnknownHost { .. }
        | Failure::OtherSite
        | Failure::HeadTooLarge
        | Failure::TooManyRequests { .. }
        | Failure::NoSuchJob(_)
        | Failure::JobsFull(_)
        | Failure::JobsUnavailable
        | Failure::BadRequest(_)
        | Failure::BodyTimeout
        | Failure::BodyEncoded { .. }
        | Failure::BodyTooLarge { .. }
        | Failure::QueueFull { .. }
        | Failure::NodeBusy
        | Failure::UploadsFull
        | Failure::UsageNotKept
        | Failure::AnswerNotKept
        | Failure::CannotStart { .. }
        | Failure::NoRoom { .. }
        | Failure::NeverRoom
        | Failure::NoGpuMemory { .. }
        | Failure::NoFittingGpu
        | Failure::ShuttingDown
        | Failure::Died
        | Failure::SuccessorDied
        | Failure::Deadline
        | Failure::DeadlineBuilding { .. }
        | Failure::Raised
        | Failure::AnswerNotSendable(_)
        | Failure::Handler { .. }
        | Failure::Cancelled => code_of_status(failure.status()),
    }
}

fn code_of_status(status: u16) -> Option<&'static str> {
    match status {
        408 | 504 => Some("timeout"),
        413 | 431 => Some("request_too_large"),
        429 => Some("rate_limit_exceeded"),
        503 => Some("service_unavailable"),
        507 => Some("insufficient_storage"),
        500.. => Some("server_error"),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
