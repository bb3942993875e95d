//! Names of requests in traces: well-known methods, and routes with names of parameters in place of the client's text.

use super::APIS;
use crate::trace::RequestName;
use hyper::{Method, Request};
use omni_codec::openapi;
use omni_traces::names;

/// Beginning of the paths of the Workers AI API at its usual place.
const ACCOUNTS: &str = "/client/v4/accounts/";

/// Name of a request.
pub(crate) fn request_name<B>(request: &Request<B>) -> RequestName {
    RequestName { method: method_name(request.method()), route: route(request.method(), request.uri().path()) }
}

/// Name of a method, if it is well known: any other is the client's text.
fn method_name(method: &Method) -> &'static str {
    let known = ["GET", "POST", "DELETE", "HEAD", "PUT", "PATCH", "OPTIONS"];
    known.into_iter().find(|name| *name == method.as_str()).unwrap_or(names::OTHER_METHOD)
}

/// Route of an API that a request is for, with the names of its parameters in place of the client's text.
fn route(method: &Method, path: &str) -> Option<String> {
    // `/client/v4/accounts/ACCOUNT` stands before the same routes.
    let path = path.strip_prefix(ACCOUNTS).and_then(|path| Some(&path[path.find('/')?..])).unwrap_or(path);
    let path = path.strip_prefix("/ai").filter(|path| path.starts_with("/v1/")).unwrap_or(path);
    for api in APIS {
        let prefix = if api.servers == openapi::V1 { "/v1" } else { "/ai" };
        for operation in api.operations.iter().filter(|operation| operation.method() == method.as_str()) {
            let route = format!("{prefix}{}", operation.path());
            if fits(&route, path) {
                return Some(route);
            }
        }
    }
    None
}

/// Returns whether a path is one of a route. The last parameter takes all the rest.
fn fits(route: &str, path: &str) -> bool {
    let (mut route, mut path) = (route.split('/').peekable(), path.split('/'));
    while let Some(expected) = route.next() {
        let Some(segment) = path.next() else { return false };
        let is_parameter = expected.starts_with('{');
        if is_parameter && route.peek().is_none() {
            return true;
        }
        if !is_parameter && expected != segment {
            return false;
        }
    }
    path.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_have_names_in_place_of_the_clients_text() {
        for (method, path, expected) in [
            ("POST", "/v1/chat/completions", Some("/v1/chat/completions")),
            ("POST", "/v1/messages/count_tokens", Some("/v1/messages/count_tokens")),
            ("GET", "/v1/models", Some("/v1/models")),
            ("GET", "/v1/models/secret", Some("/v1/models/{model}")),
            ("POST", "/ai/run/secret", Some("/ai/run/{model}")),
            ("POST", "/ai/run/@cf/secret/model", Some("/ai/run/{model}")),
            ("POST", "/client/v4/accounts/secret/ai/run/@cf/secret", Some("/ai/run/{model}")),
            ("POST", "/client/v4/accounts/secret/ai/v1/chat/completions", Some("/v1/chat/completions")),
            ("GET", "/v1/chat/completions", None),
            ("POST", "/v1/chat/completions/secret", None),
            ("POST", "/secret", None),
            ("POST", "/", None),
            ("POST", "", None),
        ] {
            assert_eq!(route(&method.parse().unwrap(), path).as_deref(), expected, "{method} {path}");
        }
        assert_eq!(method_name(&"SECRET".parse().unwrap()), names::OTHER_METHOD);
        assert_eq!(method_name(&Method::DELETE), "DELETE");
    }
}
