//! Refusals of requests before a model was found for them, in the form of the API that the path belongs to.

use crate::answer::AnswerBody;
use crate::api_kind::ApiKind;
use crate::head::{REQUEST_ID, request_id};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::{Request, Response, Uri};
use omni_ingress::BodyUnread;
use omni_ingress::body::IncomingBody;
use omni_request_error::Failure;
use omni_workers_ai::error_response;

/// Renders a refusal, with a request id as every response has one. The request's body stays unread.
#[must_use]
pub fn refuse(uri: &Uri, headers: &HeaderMap, failure: &Failure) -> Response<Bytes> {
    let id = request_id(headers);
    let mut response = match ApiKind::of_path(uri.path()) {
        Some(kind) => kind.named(kind.error(failure, id.as_bytes()), &id),
        None => error_response(failure),
    };
    response.headers_mut().insert(REQUEST_ID, id);
    response.extensions_mut().insert(BodyUnread);
    response
}

/// Refuses a request, and skips its body if that is small and arrives at once: then the connection can be kept.
pub(crate) async fn refuse_and_skip(request: Request<Incoming>, failure: &Failure) -> Response<AnswerBody> {
    let (parts, body) = request.into_parts();
    let mut response = refuse(&parts.uri, &parts.headers, failure);
    if !IncomingBody::Unread(body).stays_unread(&parts).await {
        response.extensions_mut().remove::<BodyUnread>();
    }
    response.map(AnswerBody::full)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn a_refusal_has_the_form_of_the_api_that_its_path_belongs_to() {
        let failure = Failure::UnknownHost { host: "foreign".into() };
        let headers = HeaderMap::from_iter([(REQUEST_ID, "id-1".parse().unwrap())]);
        for (path, message, own_id) in [
            ("/ai/run/m", "/errors/0/message", None),
            ("/nowhere", "/errors/0/message", None),
            ("/client/v4/accounts/a/ai/run/m", "/errors/0/message", None),
            ("/v1/models", "/error/message", None),
            ("/v1/nothing", "/error/message", None),
            ("/client/v4/accounts/a/ai/v1/embeddings", "/error/message", None),
            ("/v1/messages", "/error/message", Some("id-1")),
            ("/v1/messages/count_tokens", "/error/message", Some("id-1")),
        ] {
            let response = refuse(&path.parse().unwrap(), &headers, &failure);
            assert_eq!(response.status(), 421, "{path}");
            assert_eq!(response.headers()[REQUEST_ID], "id-1", "{path}");
            let body: Value = serde_json::from_slice(response.body()).unwrap();
            assert_eq!(body.pointer(message), Some(&Value::String(failure.to_string())), "{path}: {body}");
            assert_eq!(body["request_id"].as_str(), own_id, "{path}: {body}");
            let name = response.headers().get(omni_anthropic::REQUEST_ID);
            assert_eq!(name.and_then(|id| id.to_str().ok()), own_id, "{path}");
        }
    }
}
