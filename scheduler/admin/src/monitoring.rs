//! Admin listener: liveness, readiness, metrics, capacity; everything else is the node's [page](crate::page).

use crate::capacity::{Capacity, ModelCapacity};
use crate::openapi::DOCUMENT;
use crate::openapi::admin::OPEN_METRICS;
use crate::resource_use::resource_use;
use crate::{Metrics, Page};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH};
use hyper::{Method, Request, Response, StatusCode, Uri};
use omni_control_api::State;
use omni_gpu::GpuHandle;
use omni_inference::AnswerBody;
use omni_ingress::BodyUnread;
use omni_request_error::Failure;
use omni_supervisor::model::Model;
use omni_supervisor::node::Node;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Routes, which take `GET`.
const ROUTES: &[(&str, Route)] = &[
    ("/livez", Route::Live),
    ("/readyz", Route::Ready),
    ("/metrics", Route::Metrics),
    ("/capacity", Route::Capacity),
    ("/openapi.json", Route::OpenApi),
];

/// Route of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    /// Liveness.
    Live,
    /// Readiness.
    Ready,
    /// Metrics.
    Metrics,
    /// Room for requests.
    Capacity,
    /// OpenAPI document.
    OpenApi,
}

/// State of the admin listener.
#[derive(Debug)]
pub struct AdminApi {
    /// The node.
    pub node: Arc<Node>,
    /// GPUs.
    pub gpu: GpuHandle,
    /// All metrics.
    pub metrics: Arc<Metrics>,
    /// The node's page.
    pub page: Arc<Page>,
}

/// Serves one request.
pub async fn serve(api: &AdminApi, request: Request<Incoming>) -> Response<AnswerBody> {
    match api.page.serve(request).await {
        Ok(response) => response,
        Err(request) => answer(api, request).await.map(AnswerBody::full),
    }
}

async fn answer(api: &AdminApi, request: Request<Incoming>) -> Response<Bytes> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "this listener takes GET\n".into());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let path = request.uri().path();
    let Some((_, route)) = ROUTES.iter().find(|(known, _)| *known == path) else {
        let known: Vec<_> = ROUTES.iter().map(|(path, _)| *path).collect();
        return text(StatusCode::NOT_FOUND, "text/plain", format!("no such route: / {}\n", known.join(" ")));
    };
    match route {
        Route::Live => text(StatusCode::OK, "text/plain", "ok\n".into()),
        Route::Ready => readyz(&api.node),
        Route::Metrics => {
            resource_use(&api.node).await; // sets the gauges
            api.metrics.refresh().await;
            text(StatusCode::OK, OPEN_METRICS, api.metrics.render())
        }
        Route::Capacity => capacity(api, request.headers().get(IF_NONE_MATCH)),
        Route::OpenApi => body(StatusCode::OK, "application/json", DOCUMENT.clone()),
    }
}

/// Renders a refusal of a request whose head was not accepted.
#[must_use]
pub fn refuse(_uri: &Uri, _headers: &HeaderMap, failure: &Failure) -> Response<Bytes> {
    let mut response = text(
        StatusCode::from_u16(failure.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        "text/plain",
        format!("{failure}\n"),
    );
    response.extensions_mut().insert(BodyUnread);
    response
}

fn readyz(node: &Node) -> Response<Bytes> {
    let not_ready = if node.draining() {
        "the node is shutting down\n"
    } else if !node.scanned() {
        "the models folder was not read yet\n"
    } else if node.not_served.has_no_folder() {
        "the models folder is gone\n"
    } else if !node.launcher.connected() {
        "the launcher does not answer: nothing can be started\n"
    } else if !node.single_is_ready() {
        "the model is not ready\n"
    } else {
        return text(StatusCode::OK, "text/plain", "ready\n".into());
    };
    text(StatusCode::SERVICE_UNAVAILABLE, "text/plain", not_ready.into())
}

fn capacity(AdminApi { node, gpu, .. }: &AdminApi, known: Option<&HeaderValue>) -> Response<Bytes> {
    let away = gpu.away();
    let models = node.models().iter().map(|model| model_capacity(model, &away)).collect();
    let capacity = Capacity { idle_since_unix_ms: node.idle_since(), draining: node.draining(), models };
    let mut hasher = DefaultHasher::new();
    capacity.hash(&mut hasher);
    let tag =
        HeaderValue::from_str(&format!("\"{:016x}\"", hasher.finish())).unwrap_or(HeaderValue::from_static("\"\""));
    let mut response = if known == Some(&tag) {
        text(StatusCode::NOT_MODIFIED, "application/json", String::new())
    } else {
        text(StatusCode::OK, "application/json", serde_json::to_string(&capacity).unwrap_or_default())
    };
    response.headers_mut().insert(ETAG, tag);
    response
}

fn model_capacity(model: &Model, away: &HashSet<String>) -> ModelCapacity {
    let view = model.view();
    let concurrency = model.admission().content.map_or(0, |content| u64::from(content.manifest.requests_at_once()));
    let (ready, startable) = match view.state {
        State::Ready => (true, true),
        State::Stopped => (false, !view.held),
        State::Preparing | State::Starting => (false, true),
        State::Draining | State::Failed => (false, false),
    };
    let serving: Vec<_> = view.instances.iter().filter(|instance| instance.state == State::Ready).collect();
    // A stopped model starts with one instance.
    let places = concurrency.saturating_mul(serving.len().max(1) as u64);
    let free_slots = if startable { places.saturating_sub(view.in_flight + view.queued) } else { 0 };
    let wait = model.metrics.usual_time().map(|each| each * u32::try_from(view.queued).unwrap_or(u32::MAX));
    let on_card = serving.iter().any(|instance| !away.contains(&instance.id));
    ModelCapacity {
        name: view.name,
        state: view.state.as_str(),
        version: view.version,
        free_slots,
        queued: view.queued,
        queue_limit: view.queue_limit,
        resident: ready && on_card,
        estimated_wait_ms: wait.filter(|_| ready).and_then(|wait| u64::try_from(wait.as_millis()).ok()),
    }
}

fn text(status: StatusCode, media: &'static str, text: String) -> Response<Bytes> {
    body(status, media, Bytes::from(text))
}

fn body(status: StatusCode, media: &'static str, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openapi::admin::API;
    use omni_codec::openapi::Operation;

    #[test]
    fn every_route_has_an_operation() {
        let operations: Vec<_> = API.operations.iter().map(Operation::path).chain(["/openapi.json"]).collect();
        assert_eq!(operations, ROUTES.iter().map(|(path, _)| *path).collect::<Vec<_>>());
    }
}
