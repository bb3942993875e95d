//! Refusals of requests before a model was found for them.

use crate::answer::AnswerBody;
use crate::head::{REQUEST_ID, request_id};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::{Request, Response};
use omni_ingress::BodyUnread;
use omni_ingress::body::IncomingBody;
use omni_request_error::Failure;
use omni_workers_ai::error_response;

/// Renders a refusal, with a request id as every response has one. The request's body stays unread.
#[must_use]
pub fn refuse(headers: &HeaderMap, failure: &Failure) -> Response<Bytes> {
    let mut response = error_response(failure);
    response.headers_mut().insert(REQUEST_ID, request_id(headers));
    response.extensions_mut().insert(BodyUnread);
    response
}

/// Refuses a request, and skips its body if that is small and arrives at once: then the connection can be kept.
pub(crate) async fn refuse_and_skip(request: Request<Incoming>, failure: &Failure) -> Response<AnswerBody> {
    let (parts, body) = request.into_parts();
    let mut response = refuse(&parts.headers, failure);
    if !IncomingBody::Unread(body).stays_unread(&parts).await {
        response.extensions_mut().remove::<BodyUnread>();
    }
    response.map(AnswerBody::full)
}
