//! Requests of the data listener: authentication, route, quota.

use crate::admission::{BatchItem, ItemFailure, admit};
use crate::answer::AnswerBody;
use crate::api::{self, ApiRoute, request_name};
use crate::forward::Listener;
use crate::refusal::refuse_and_skip;
use crate::state::RunApi;
use crate::trace::RequestTrace;
use hyper::body::Incoming;
use hyper::{Request, Response};
use omni_auth::{TokenHolder, Tokens};
use omni_request_error::Failure;
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
        let trace = RequestTrace::begin(self.run.tracer(), request.headers(), || request_name(&request));
        trace.on_response(self.authenticate(request, &trace).await)
    }

    /// Serves a request that shows a token where one is needed.
    async fn authenticate(&self, request: Request<Incoming>, trace: &RequestTrace) -> Response<AnswerBody> {
        // Authentication comes first: without a token, no response tells which routes and models exist.
        let holder = match &self.tokens {
            None => None,
            Some(tokens) => match tokens.authenticate(request.headers()) {
                Ok(holder) => Some(holder),
                Err(failure) => return refuse_and_skip(request, &failure).await,
            },
        };
        self.serve_for(holder, request, trace).await
    }

    /// Serves an item of a batch: without a token, as its owner has shown it, and without a quota, as nobody waits for it. The response
    /// to one that failed has an [`ItemFailure`].
    pub async fn serve_item(&self, item: &BatchItem, mut request: Request<Incoming>) -> Response<AnswerBody> {
        let owner = &*item.owner;
        let refusal = if self.run.node().is_handed_over() {
            Some(Failure::ShuttingDown)
        } else {
            // The token may have been removed since.
            self.tokens.as_ref().filter(|tokens| tokens.holder(owner).is_none()).map(|_| Failure::Unauthorized)
        };
        if let Some(failure) = refusal {
            let mut response = refuse_and_skip(request, &failure).await;
            response.extensions_mut().insert(ItemFailure(failure));
            return response;
        }
        request.extensions_mut().insert(item.clone());
        let trace = RequestTrace::of_item(self.run.tracer(), item, || request_name(&request));
        let holder = self.tokens.as_ref().and_then(|tokens| tokens.holder(owner));
        trace.on_response(self.serve_for(holder, request, &trace).await)
    }

    /// Serves a request of the holder of a token.
    async fn serve_for(
        &self,
        holder: Option<&Arc<TokenHolder>>,
        request: Request<Incoming>,
        trace: &RequestTrace,
    ) -> Response<AnswerBody> {
        match ApiRoute::of(request.method(), request.uri().path()) {
            None => {}
            Some(Ok(route)) => return api::serve(&self.run, route, (holder, trace), request).await,
            Some(Err(failure)) => return refuse_and_skip(request, &failure).await,
        }
        let name = match model_of(request.method(), request.uri().path()) {
            Ok(name) => name,
            Err(failure) => return refuse_and_skip(request, &failure).await,
        };
        let name_and_holder = (name.as_str(), holder);
        let Some(holder) = holder else {
            return self.run.run_traced(Listener::Data, name_and_holder, request, trace).await;
        };
        match admit(holder, &name, request.extensions()) {
            Err(failure) => refuse_and_skip(request, &failure).await,
            Ok(guard) => {
                let mut response = self.run.run_traced(Listener::Data, name_and_holder, request, trace).await;
                if let Some(guard) = guard {
                    response.extensions_mut().insert(guard);
                }
                response
            }
        }
    }
}
