//! Admin listener: liveness, readiness, metrics, capacity; everything else is the node's [page](crate::page).

use crate::capacity::{Capacity, ModelCapacity};
use crate::openapi::DOCUMENT;
use crate::openapi::admin::OPEN_METRICS;
use crate::{Metrics, Page};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH};
use hyper::{Method, Request, Response, StatusCode, Uri};
use omni_control_api::State;
use omni_gpu::GpuHandle;
use omni_inference::AnswerBody;
use omni_ingress::BodyUnread;
use omni_node_protocol::instance::{GpuUsage, Stats};
use omni_request_error::Failure;
use omni_supervisor::model::{Message, Model};
use omni_supervisor::node::Node;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Time for workers to report their use; those that do not are left out.
const STATS_TIMEOUT: Duration = Duration::from_millis(300);

/// Length of the queue of reports, which is more than a model has instances.
const REPORTS: usize = 4096;

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

/// Queries the use of every running instance, all at once; the sum for each model.
pub(crate) async fn resource_use(node: &Node) -> Vec<(Arc<Model>, Option<Stats>)> {
    let mut asked = Vec::new();
    for model in node.models() {
        let (sender, receiver) = mpsc::channel(REPORTS);
        if model.send(Message::Stats(sender)).await {
            asked.push((model, receiver));
        }
    }
    let limit = tokio::time::Instant::now() + STATS_TIMEOUT;
    let mut all = Vec::with_capacity(asked.len());
    for (model, mut receiver) in asked {
        let mut sum = None;
        // Ends when all have reported, or are gone.
        while let Ok(Some(stats)) = tokio::time::timeout_at(limit, receiver.recv()).await {
            sum = Some(sum.map_or(stats, |sum| sum_of(sum, &stats)));
        }
        model.metrics.memory.set(sum.map_or(0, |sum| i64::try_from(sum.memory_bytes).unwrap_or(i64::MAX)));
        all.push((model, sum));
    }
    all
}

fn sum_of(a: Stats, b: &Stats) -> Stats {
    let gpu = match (a.gpu, b.gpu) {
        (Some(a), Some(b)) => Some(GpuUsage {
            managed_bytes: a.managed_bytes.saturating_add(b.managed_bytes),
            resident_bytes: a.resident_bytes.saturating_add(b.resident_bytes),
            device_bytes: a.device_bytes.saturating_add(b.device_bytes),
            host_bytes: a.host_bytes.saturating_add(b.host_bytes),
        }),
        (one, other) => one.or(other),
    };
    Stats {
        memory_bytes: a.memory_bytes.saturating_add(b.memory_bytes),
        memory_limit_bytes: a.memory_limit_bytes.saturating_add(b.memory_limit_bytes),
        cpu_usec: a.cpu_usec.saturating_add(b.cpu_usec),
        pids: a.pids.saturating_add(b.pids),
        pss_bytes: a.pss_bytes.map_or(b.pss_bytes, |bytes| Some(bytes.saturating_add(b.pss_bytes.unwrap_or(0)))),
        gpu,
    }
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
