//! Response of a failure: status and headers, which are the same in all APIs, around the body of one of them.

use bytes::Bytes;
use hyper::header::{
    ACCEPT_ENCODING, ALLOW, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::{Response, StatusCode};
use omni_request_error::{Failure, RetryAdvice, retry_after_seconds};

/// The response of a failure, with a JSON body in the form of the client's API.
#[must_use]
pub fn failure_response(failure: &Failure, json: Bytes) -> Response<Bytes> {
    let mut response = Response::new(json);
    *response.status_mut() = StatusCode::from_u16(failure.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    put_retry_advice(failure.retry_advice(), headers);
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

fn put_retry_advice(advice: RetryAdvice, headers: &mut HeaderMap) {
    match advice {
        RetryAdvice::None => {}
        RetryAdvice::Never => {
            headers.insert(HeaderName::from_static("x-should-retry"), HeaderValue::from_static("false"));
        }
        RetryAdvice::After(time) => {
            headers.insert(RETRY_AFTER, HeaderValue::from(retry_after_seconds(time)));
        }
        RetryAdvice::OtherNode(time) => {
            headers.insert(RETRY_AFTER, HeaderValue::from(retry_after_seconds(time)));
            headers.insert(HeaderName::from_static("x-omni-retry"), HeaderValue::from_static("other-node"));
        }
    }
}
