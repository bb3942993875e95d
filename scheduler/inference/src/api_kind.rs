//! API that a request's path belongs to, whether it is one of its routes or not, and the form of its errors.

use bytes::Bytes;
use hyper::Response;
use hyper::header::HeaderValue;
use omni_config::url_path::below_account;
use omni_request_error::Failure;

/// Form of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ApiKind {
    /// OpenAI.
    OpenAi,
    /// Anthropic.
    Anthropic,
}

impl ApiKind {
    /// The API of a path, whether it is one of its routes or not; `None`: the run API.
    pub(crate) fn of_path(path: &str) -> Option<Self> {
        let route = below_account(path).strip_prefix("/v1/")?;
        let messages = route.strip_prefix("messages").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        Some(if messages { Self::Anthropic } else { Self::OpenAi })
    }

    /// Response of a failure.
    pub(crate) fn error(self, failure: &Failure, id: &[u8]) -> Response<Bytes> {
        match self {
            Self::OpenAi => omni_openai::error_response(failure),
            Self::Anthropic => omni_anthropic::error_response(failure, str::from_utf8(id).ok()),
        }
    }

    /// Adds the request's id in the API's own header, beside the one that every response has.
    pub(crate) fn named<B>(self, mut response: Response<B>, id: &HeaderValue) -> Response<B> {
        if self == Self::Anthropic {
            response.headers_mut().insert(omni_anthropic::REQUEST_ID, id.clone());
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_no_route_has_an_api_too() {
        for (path, expected) in [
            ("/v1/nothing", Some(ApiKind::OpenAi)),
            ("/client/v4/accounts/a/ai/v1/nothing", Some(ApiKind::OpenAi)),
            ("/v1/messages", Some(ApiKind::Anthropic)),
            ("/v1/messages/batches", Some(ApiKind::Anthropic)),
            ("/v1/messages_of", Some(ApiKind::OpenAi)),
            ("/ai/run/m", None),
            ("/", None),
        ] {
            assert_eq!(ApiKind::of_path(path), expected, "{path}");
        }
    }
}
