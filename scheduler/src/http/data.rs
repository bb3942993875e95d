//! Requests of the data listener: authentication, route, quota.

use super::answer::AnswerBody;
use super::forward::{Listener, forward_unread};
use super::refusal::refuse_and_skip;
use super::run::run;
use crate::node::Node;
use hyper::body::Incoming;
use hyper::{Request, Response};
use omni_auth::Admission;
use omni_ingress::{AlreadyAdmitted, ResponseGuard};
use omni_workers_ai::model_of;

/// Serves one request.
pub(crate) async fn serve(node: &Node, request: Request<Incoming>) -> Response<AnswerBody> {
    if node.has_left() {
        return forward_unread(node, request).await;
    }
    // Authentication comes first: without a token, no response tells which routes and models exist.
    let holder = match &node.context.tokens {
        None => None,
        Some(tokens) => match tokens.authenticate(request.headers()) {
            Ok(holder) => Some(holder),
            Err(failure) => return refuse_and_skip(request, &failure).await,
        },
    };
    let name = match model_of(request.method(), request.uri().path()) {
        Ok(name) => name,
        Err(failure) => return refuse_and_skip(request, &failure).await,
    };
    let Some(holder) = holder else { return run(node, Listener::Data, name.as_str(), request).await };
    let admission = match request.extensions().get::<AlreadyAdmitted>() {
        None => Admission::New,
        Some(AlreadyAdmitted) => Admission::Forwarded,
    };
    match holder.admit(&name, admission) {
        Err(failure) => refuse_and_skip(request, &failure).await,
        Ok(admitted) => {
            let guard = ResponseGuard::new(admitted); // until the response was written
            let mut response = run(node, Listener::Data, name.as_str(), request).await;
            response.extensions_mut().insert(guard);
            response
        }
    }
}
