//! Requests of the data listener: authentication, route, quota.

use super::answer::AnswerBody;
use super::forward::{Listener, forward_unread};
use super::run::{refuse_whole, run};
use crate::node::Node;
use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use omni_auth::Admission;
use omni_config::name::ModelName;
use omni_ingress::{AlreadyAdmitted, ResponseGuard};
use omni_request_error::Failure;

/// Serves one request.
pub async fn serve(node: &Node, request: Request<Incoming>) -> Response<AnswerBody> {
    if node.has_left() {
        return forward_unread(node, request).await;
    }
    // Before the response can tell which routes and models exist.
    let holder = match &node.context.tokens {
        None => None,
        Some(tokens) => match tokens.authenticate(request.headers()) {
            Ok(holder) => Some(holder),
            Err(failure) => return refuse_whole(request, &failure).await,
        },
    };
    let name = match model_of(request.method(), request.uri().path()) {
        Ok(name) => name,
        Err(failure) => return refuse_whole(request, &failure).await,
    };
    let Some(holder) = holder else { return run(node, Listener::Data, name.as_str(), request).await };
    let admission = match request.extensions().get::<AlreadyAdmitted>() {
        None => Admission::New,
        Some(AlreadyAdmitted) => Admission::Forwarded,
    };
    match holder.admit(&name, admission) {
        Err(failure) => refuse_whole(request, &failure).await,
        Ok(admitted) => {
            let guard = ResponseGuard::new(admitted); // until the response was written
            let mut response = run(node, Listener::Data, name.as_str(), request).await;
            response.extensions_mut().insert(guard);
            response
        }
    }
}

/// The model of a request, by method and path.
///
/// # Errors
/// No such route, another method, or no valid name of a model.
pub fn model_of(method: &Method, path: &str) -> Result<ModelName, Failure> {
    let tail = run_route(path).ok_or(Failure::NoSuchRoute)?;
    if method != Method::POST {
        return Err(Failure::MethodNotAllowed { allowed: "POST" });
    }
    model_name(tail).ok_or(Failure::NoSuchModel)
}

/// The rest of a path behind `/ai/run/` or `/client/v4/accounts/{account}/ai/run/`, still encoded.
fn run_route(path: &str) -> Option<&str> {
    let path = match path.strip_prefix("/client/v4/accounts/") {
        None => path,
        Some(rest) => {
            let at = rest.find('/').filter(|at| *at > 0)?;
            rest.get(at..)?
        }
    };
    path.strip_prefix("/ai/run/").filter(|tail| !tail.is_empty())
}

/// Decodes the rest of a path once, and checks that it is the name of a model.
#[must_use]
pub fn model_name(tail: &str) -> Option<ModelName> {
    let mut decoded = Vec::with_capacity(tail.len());
    let mut bytes = tail.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let (high, low) = (bytes.next()?, bytes.next()?);
            let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            decoded.push(digit(high)? * 16 + digit(low)?);
        } else {
            decoded.push(byte);
        }
    }
    ModelName::try_from(String::from_utf8(decoded).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_split_before_they_are_decoded() {
        let name = |path: &str| run_route(path).and_then(model_name).map(|name| name.to_string());
        for (path, expected) in [
            ("/ai/run/cowsay", Some("cowsay")),
            ("/ai/run/@cf/meta/llama", Some("@cf/meta/llama")),
            ("/ai/run/@cf%2Fmeta%2Fllama", Some("@cf/meta/llama")),
            ("/ai/run/%40cf%2fmeta/llama", Some("@cf/meta/llama")),
            ("/client/v4/accounts/x/ai/run/@cf%2Fmeta%2Fllama", Some("@cf/meta/llama")),
            ("/client/v4/accounts//ai/run/cowsay", None),
            ("/client/v4/accounts/x/ai/run/", None),
            ("/ai/run/..%2Fx", None),
            ("/ai/run/../x", None),
            ("/ai/run/a%252Fb", None),
            ("/ai/run/a%2", None),
            ("/ai/run/a%zz", None),
            ("/ai/run/a%00", None),
            ("/ai/run/%ff", None),
            ("/ai/running", None),
            ("/", None),
        ] {
            assert_eq!(name(path).as_deref(), expected, "{path}");
        }
    }
}
