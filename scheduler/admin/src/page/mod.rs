//! The node's page on the admin listener: its files, live state, history, and for holders of a token of role admin
//! logs, commands and requests to models.
//!
//! | route | answer | for |
//! | --- | --- | --- |
//! | `GET /`, `/page/…` | files of the page | anyone |
//! | `GET /page/events` | server-sent events: the whole state, then differences | anyone; texts of models for admins |
//! | `GET /page/history?span=hour` (`day`) | history | anyone |
//! | `GET /page/session` | the role of the token | anyone |
//! | `/control/v1/models/…` | the control API's logs, history, explanation and commands | admins |
//! | `/control/v1/jobs/…/cancel` | cancellation of a batch | admins |
//! | `/ai/…`, `/v1/…` | as the data listener, with the same token | admins |
//!
//! Invariants: nothing that changes a model or shows its words is done without the token, which no browser sends by
//! itself; one page costs no more than its bytes.

mod hub;
mod recorder;

use crate::control::{self, Control};
use bytes::Bytes;
use hub::Hub;
use hyper::body::Incoming;
use hyper::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue,
    IF_NONE_MATCH, REFERRER_POLICY, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, Response, StatusCode};
use omni_auth::TokenHolder;
use omni_capacity::CapacityHandle;
use omni_config::tokens::TokenRole;
use omni_inference::{AnswerBody, DataApi};
use omni_ingress::BodyUnread;
use omni_page::{ASSETS, Asset, Audience, Span};
use omni_request_error::Failure;
use recorder::Recorder;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Most pages that are fed at a time: half of the listener's connections, so that monitoring is never locked out.
const WATCHERS: usize = 32;
/// Events that are queued for a watcher.
const QUEUE: usize = 2;
/// Interval of comments while nothing changes, by which each side notices that the other is gone.
const STILL_HERE: Duration = Duration::from_secs(15);
/// Time for a watcher to take an event.
const TAKEN_WITHIN: Duration = Duration::from_secs(30);
/// Policy of the page: everything comes from the listener itself, and no script or style is in the markup. Files that a
/// model has made are shown from memory.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'self'; img-src 'self' blob: data:; media-src 'self' blob: data:; object-src 'none'; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'",
);
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

/// The page of a node.
#[derive(Debug)]
pub struct Page {
    hub: Hub,
    control: Control,
    /// APIs of the data listener, and its tokens.
    data: Arc<DataApi>,
    watchers: Arc<Semaphore>,
}

/// Refusal of a request: its status, and a line for people.
#[derive(Debug, Clone, Copy)]
struct Refusal(StatusCode, &'static str);

/// Holder of a token, as the page shows it.
#[derive(Serialize)]
struct Session<'a> {
    name: &'a str,
    role: &'static str,
}

impl Page {
    /// The page, whose recorder runs from now on.
    #[must_use]
    pub fn start(control: Control, data: Arc<DataApi>, capacity: CapacityHandle) -> Arc<Self> {
        let recorder = Recorder::new(control.clone(), capacity);
        let page = Arc::new(Self { hub: Hub::new(), control, data, watchers: Arc::new(Semaphore::new(WATCHERS)) });
        tokio::spawn(recorder.run(Arc::clone(&page)));
        page
    }

    /// Answers a request of the page; returns one that is none.
    pub(crate) async fn serve(
        self: &Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<AnswerBody>, Request<Incoming>> {
        let path = request.uri().path();
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        if path.starts_with("/control/") || path.starts_with("/ai/") || path.starts_with("/v1/") {
            return Ok(match self.admin(request.headers()) {
                Ok(()) if path.starts_with("/control/") => control::serve_page(&self.control, request).await,
                Ok(()) => self.data.serve(request).await,
                Err(refusal) => refusal.into_response(),
            });
        }
        if !is_read {
            return Err(request);
        }
        let headers = request.headers();
        Ok(match path {
            "/page/events" => match self.audience(headers) {
                Ok(audience) => self.events(audience),
                Err(refusal) => refusal.into_response(),
            },
            "/page/history" => self.history(request.uri().query().unwrap_or_default(), headers),
            "/page/session" => self.session(headers),
            _ => match ASSETS.iter().find(|asset| asset.path == path) {
                Some(asset) => file(asset, headers),
                None => return Err(request),
            },
        })
    }

    /// Holder of the token that a request shows; `None` without a token.
    fn holder(&self, headers: &HeaderMap) -> Result<Option<&Arc<TokenHolder>>, Refusal> {
        if !headers.contains_key(AUTHORIZATION) {
            return Ok(None);
        }
        let failure = match &self.data.tokens {
            Some(tokens) => match tokens.authenticate(headers) {
                Ok(holder) => return Ok(Some(holder)),
                Err(failure) => failure,
            },
            None => Failure::Unauthorized,
        };
        let status = StatusCode::from_u16(failure.status()).unwrap_or(StatusCode::UNAUTHORIZED);
        Err(Refusal(status, "the token is none of this node's"))
    }

    /// Refuses all but holders of a token of role admin.
    fn admin(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let need = "this needs a token of role admin: `role = \"admin\"` in the file that [server] tokens names";
        match self.holder(headers)?.map(|holder| holder.role()) {
            Some(TokenRole::Admin) => Ok(()),
            Some(TokenRole::Client) => Err(Refusal(StatusCode::FORBIDDEN, need)),
            None => Err(Refusal(StatusCode::UNAUTHORIZED, need)),
        }
    }

    fn audience(&self, headers: &HeaderMap) -> Result<Audience, Refusal> {
        let role = self.holder(headers)?.map(|holder| holder.role());
        Ok(if role == Some(TokenRole::Admin) { Audience::Admin } else { Audience::Anyone })
    }

    fn session(&self, headers: &HeaderMap) -> Response<AnswerBody> {
        match self.holder(headers) {
            Ok(Some(holder)) => json(&Session { name: holder.name(), role: holder.role().as_str() }),
            Ok(None) => json(&Session { name: "", role: "" }),
            Err(refusal) => refusal.into_response(),
        }
    }

    fn history(&self, query: &str, headers: &HeaderMap) -> Response<AnswerBody> {
        let Some(span) = Span::ALL.into_iter().find(|span| query.strip_prefix("span=") == Some(span.as_str())) else {
            let why = "the span is `hour` or `day`: /page/history?span=hour";
            return Refusal(StatusCode::BAD_REQUEST, why).into_response();
        };
        let (bytes, version) = self.hub.history(span);
        let tag = HeaderValue::from_str(&format!("\"{}-{version}\"", std::process::id()));
        cached(bytes, "application/json", tag.unwrap_or(HeaderValue::from_static("\"\"")), headers)
    }

    fn events(self: &Arc<Self>, audience: Audience) -> Response<AnswerBody> {
        let Ok(place) = Arc::clone(&self.watchers).try_acquire_owned() else {
            let why = "too many pages are open: close some of them";
            let mut response = Refusal(StatusCode::SERVICE_UNAVAILABLE, why).into_response();
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("10"));
            return response;
        };
        let (sender, receiver) = mpsc::channel(QUEUE);
        tokio::spawn(Arc::clone(self).feed(audience, sender, place));
        let mut response = Response::new(AnswerBody::Lines(receiver));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    /// Sends the state and its differences to one watcher until it leaves, or a successor has taken over.
    async fn feed(self: Arc<Self>, audience: Audience, sender: mpsc::Sender<Bytes>, _place: OwnedSemaphorePermit) {
        let node = Arc::clone(self.control.run.node());
        let (mut event, mut changes) = self.hub.join(audience);
        loop {
            if sender.send_timeout(event, TAKEN_WITHIN).await.is_err() {
                return;
            }
            let change = tokio::select! {
                change = changes.recv() => change,
                () = tokio::time::sleep(STILL_HERE) => Ok(Bytes::from_static(b":\n\n")),
                () = sender.closed() => return,
                () = node.taken_over() => return,
            };
            event = match change {
                Ok(change) => change,
                Err(RecvError::Lagged(_)) => {
                    let (whole, anew) = self.hub.join(audience);
                    changes = anew;
                    whole
                }
                Err(RecvError::Closed) => return,
            };
        }
    }
}

fn file(asset: &Asset, headers: &HeaderMap) -> Response<AnswerBody> {
    let tag = HeaderValue::from_str(&asset.tag).unwrap_or(HeaderValue::from_static("\"\""));
    let mut response = cached(Bytes::from_static(asset.bytes), asset.media_type, tag, headers);
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(OPENER_POLICY, HeaderValue::from_static("same-origin"));
    response
}

/// Response that a browser keeps and asks for again by its tag.
fn cached(bytes: Bytes, media: &'static str, tag: HeaderValue, headers: &HeaderMap) -> Response<AnswerBody> {
    let is_known = headers.get(IF_NONE_MATCH) == Some(&tag);
    let mut response = Response::new(AnswerBody::full(if is_known { Bytes::new() } else { bytes }));
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(ETAG, tag);
    response
}

fn json(value: &impl Serialize) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::full(serde_json::to_vec(value).unwrap_or_default().into()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl Refusal {
    /// The refusal as a line of text, sent before the request's body is read.
    fn into_response(self) -> Response<AnswerBody> {
        let Self(status, why) = self;
        let mut response = Response::new(AnswerBody::full(format!("{why}\n").into()));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(BodyUnread);
        response
    }
}
