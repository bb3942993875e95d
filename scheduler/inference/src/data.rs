//! Requests of the data listener: authentication, route, quota.

use crate::answer::AnswerBody;
use crate::api::{self, ApiRoute};
use crate::forward::Listener;
use crate::refusal::refuse_and_skip;
use crate::state::RunApi;
use hyper::body::Incoming;
use hyper::{Request, Response};
use omni_auth::{Admission, Tokens};
use omni_ingress::{AlreadyAdmitted, ResponseGuard};
use omni_workers_ai::model_of;
use std::sync::Arc;

/// State of the data listener.
#[derive(Debug)]
pub struct DataApi {
    /// Requests to models.
    pub run: Arc<RunApi>,
    /// Tokens, one of which each client must have; `None`: none is required.
    pub tokens: Option<Tokens>,
}

impl DataApi {
    /// Serves one request.
    pub async fn serve(&self, request: Request<Incoming>) -> Response<AnswerBody> {
        if self.run.node().is_handed_over() {
            return self.run.forwarder().unread(request).await;
        }
        // Authentication comes first: without a token, no response tells which routes and models exist.
        let holder = match &self.tokens {
            None => None,
            Some(tokens) => match tokens.authenticate(request.headers()) {
                Ok(holder) => Some(holder),
                Err(failure) => return refuse_and_skip(request, &failure).await,
            },
        };
        match ApiRoute::of(request.method(), request.uri().path()) {
            None => {}
            Some(Ok(route)) => return api::serve(&self.run, route, holder, request).await,
            Some(Err(failure)) => return refuse_and_skip(request, &failure).await,
        }
        let name = match model_of(request.method(), request.uri().path()) {
            Ok(name) => name,
            Err(failure) => return refuse_and_skip(request, &failure).await,
        };
        let Some(holder) = holder else { return self.run.run(Listener::Data, (name.as_str(), None), request).await };
        let admission = match request.extensions().get::<AlreadyAdmitted>() {
            None => Admission::New,
            Some(AlreadyAdmitted) => Admission::Forwarded,
        };
        match holder.admit(&name, admission) {
            Err(failure) => refuse_and_skip(request, &failure).await,
            Ok(admitted) => {
                let guard = ResponseGuard::new(admitted); // until the response was written
                let mut response = self.run.run(Listener::Data, (name.as_str(), Some(holder)), request).await;
                response.extensions_mut().insert(guard);
                response
            }
        }
    }
}
