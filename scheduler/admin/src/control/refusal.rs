//! Refusals of the control API, as problem details of RFC 9457.

use super::raw;
use hyper::{Method, Response, StatusCode};
use omni_auth::Peer;
use omni_control_api::{Model, Problem};
use omni_inference::AnswerBody;

/// Refusal of a request to the control API.
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    /// Machine-readable kind.
    pub(super) kind: &'static str,
    pub(super) detail: String,
}

impl Refusal {
    pub(super) fn no_such_model(name: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            kind: "no-such-model",
            detail: format!("there is no model `{name}` on this node"),
        }
    }

    pub(super) fn models_unknown() -> Self {
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            kind: "models-unknown",
            detail: "this node does not know its models yet: its launcher has not read the models folder".to_owned(),
        }
    }

    /// Refusal of a command that was carried out and cannot be persisted.
    pub(super) fn not_persisted(model: &Model, why: &str) -> Self {
        Self {
            status: StatusCode::INSUFFICIENT_STORAGE,
            kind: "not-kept",
            detail: format!(
                "the command was carried out and `{}` is {}, but the node could not write that down: {why}. The next scheduler \
                 would not know it: make room in the state directory, then repeat the command",
                model.name,
                model.state.as_str()
            ),
        }
    }

    pub(super) fn single_model(detail: String) -> Self {
        Self { status: StatusCode::CONFLICT, kind: "single-model", detail }
    }

    /// Refusal for lack of permission. `allowed`: those who have it.
    pub(super) fn not_allowed(method: &Method, path: &str, allowed: &str, peer: &Peer) -> Self {
        Self {
            status: StatusCode::FORBIDDEN,
            kind: "not-allowed",
            detail: format!("{method} {path} is for {allowed}; you are {peer}"),
        }
    }

    pub(super) fn no_such_route() -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            kind: "bad-request",
            detail: "no such route; GET /openapi.json lists them".to_owned(),
        }
    }

    pub(super) fn method(allowed: &str) -> Self {
        Self {
            status: StatusCode::METHOD_NOT_ALLOWED,
            kind: "bad-request",
            detail: format!("this route takes {allowed}"),
        }
    }

    /// Renders the refusal as `application/problem+json`.
    pub(super) fn into_response(self) -> Response<AnswerBody> {
        let problem = Problem {
            kind: self.kind.to_owned(),
            title: self.status.canonical_reason().unwrap_or_default().to_owned(),
            status: self.status.as_u16(),
            detail: self.detail,
        };
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let mut response = raw("application/problem+json", body.into());
        *response.status_mut() = self.status;
        response
    }
}
