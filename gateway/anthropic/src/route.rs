//! Routes of the Messages API, at the root and below the prefix of the Workers AI API.

use hyper::Method;
use omni_config::url_path::below_account;
use omni_request_error::Failure;

/// A route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Message.
    Messages,
    /// Count of the tokens of a message's input.
    CountTokens,
}

/// Routes with their paths, which follow `/v1`. All of them take `POST`.
pub(crate) const ROUTES: &[(&str, Route)] =
    &[("/messages", Route::Messages), ("/messages/count_tokens", Route::CountTokens)];

/// The route of a request; `None`: the path is none of this API.
#[must_use]
pub fn route(method: &Method, path: &str) -> Option<Result<Route, Failure>> {
    let path = below_account(path).strip_prefix("/v1")?;
    let (_, route) = ROUTES.iter().find(|(known, _)| *known == path)?;
    Some(if *method == Method::POST { Ok(*route) } else { Err(Failure::MethodNotAllowed { allowed: "POST" }) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_routes() {
        for (method, path, expected) in [
            (Method::POST, "/v1/messages", Some(Ok(Route::Messages))),
            (Method::POST, "/client/v4/accounts/x/ai/v1/messages", Some(Ok(Route::Messages))),
            (Method::POST, "/v1/messages/count_tokens", Some(Ok(Route::CountTokens))),
            (Method::GET, "/v1/messages", Some(Err(Failure::MethodNotAllowed { allowed: "POST" }))),
            (Method::POST, "/v1/messages/batches", None),
            (Method::POST, "/v1/chat/completions", None),
        ] {
            assert_eq!(route(&method, path), expected, "{path}");
        }
    }
}
