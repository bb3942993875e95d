//! The control API on `<runtime-dir>/control.sock`: what `omnictl` uses. Values and routes are in `omni-api`.

use super::admin::use_of_all;
use super::answer::AnswerBody;
use super::data::model_name;
use super::openapi::OPENAPI;
use super::run::run;
use crate::model::{Message, Model, Order};
use crate::node::Node;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use omni_api as api;
use serde::Serialize;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Lines of a log that are sent when nobody says how many.
const LINES: usize = 100;
/// Lines that wait for a slow reader of a log.
const WAITING: usize = 64;

/// What the control API needs beside the node.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// Of the data listener.
    pub listen: String,
    /// Of the admin listener.
    pub admin_listen: String,
}

/// Everything that the control API speaks for.
#[derive(Debug, Clone)]
pub struct Control {
    /// The models.
    pub node: Arc<Node>,
    /// See there.
    pub addresses: Addresses,
    /// Who has a successor take over, and answers with what came of it or with why there is none.
    pub upgrades: mpsc::Sender<oneshot::Sender<Result<api::Upgrade, String>>>,
}

/// A refusal of the control API.
struct Refusal {
    status: StatusCode,
    kind: &'static str,
    detail: String,
}

impl Refusal {
    fn no_such_model(name: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            kind: "no-such-model",
            detail: format!("there is no model `{name}` on this node"),
        }
    }

    fn method(allowed: &str) -> Self {
        Self {
            status: StatusCode::METHOD_NOT_ALLOWED,
            kind: "bad-request",
            detail: format!("this route takes {allowed}"),
        }
    }
}

/// Serves one request.
pub async fn serve(control: &Control, request: Request<Incoming>) -> Response<AnswerBody> {
    let Control { node, addresses, upgrades } = control;
    let path = request.uri().path().to_owned();
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let method = request.method().clone();
    let answer = match (segments.as_slice(), &method) {
        (["openapi.json"], &Method::GET) => Ok(raw("application/json", Bytes::from_static(OPENAPI.as_bytes()))),
        (["v1", "node"], &Method::GET) => Ok(json(&node_view(node, addresses))),
        (["v1", "models"], &Method::GET) => {
            Ok(json(&api::Models { models: node.models().iter().map(|model| model.view()).collect() }))
        }
        (["v1", "gpus"], &Method::GET) => Ok(json(&node.context.gpu.view())),
        (["v1", "top"], &Method::GET) => Ok(json(&top(node).await)),
        (["v1", "models", name], &Method::GET) => find(node, name).map(|model| json(&model.view())),
        (["v1", "models", name, "manifest"], &Method::GET) => find(node, name).and_then(|model| manifest(&model)),
        (["v1", "models", name, "logs"], &Method::GET) => {
            find(node, name).map(|model| logs(&model, request.uri().query().unwrap_or_default()))
        }
        (["v1", "models", name, "run"], &Method::POST) => match find(node, name) {
            Ok(model) => return run(node, model.name.as_str(), request).await,
            Err(refusal) => Err(refusal),
        },
        (["v1", "models", name, "history"], &Method::GET) => ask(node, name, Message::History).await,
        (["v1", "models", name, "explain"], &Method::GET) => ask(node, name, Message::Explain).await,
        (["v1", "models", name, "start"], &Method::POST) => order(node, name, Order::Start).await,
        (["v1", "models", name, "stop"], &Method::POST) => order(node, name, Order::Stop).await,
        (["v1", "models", name, "restart"], &Method::POST) => order(node, name, Order::Restart).await,
        (["v1", "models", name, "rollback"], &Method::POST) => {
            let to = parameter(request.uri().query().unwrap_or_default(), "to").map(str::to_owned);
            order(node, name, Order::RollBack(to)).await
        }
        (["v1", "node", "upgrade"], &Method::POST) => upgrade(node, upgrades).await,
        (["openapi.json"] | ["v1", "node" | "models" | "gpus" | "top"] | ["v1", "models", _], _)
        | (["v1", "models", _, "manifest" | "logs" | "history" | "explain"], _) => Err(Refusal::method("GET")),
        (["v1", "models", _, "run" | "start" | "stop" | "restart" | "rollback"] | ["v1", "node", "upgrade"], _) => {
            Err(Refusal::method("POST"))
        }
        _ => Err(Refusal {
            status: StatusCode::NOT_FOUND,
            kind: "bad-request",
            detail: "no such route; GET /openapi.json lists them".to_owned(),
        }),
    };
    answer.unwrap_or_else(problem)
}

fn find(node: &Node, encoded: &str) -> Result<Arc<Model>, Refusal> {
    let name = model_name(encoded).ok_or_else(|| Refusal::no_such_model(encoded))?;
    node.find(name.as_str()).ok_or_else(|| Refusal::no_such_model(name.as_str()))
}

fn node_view(node: &Node, addresses: &Addresses) -> api::Node {
    let limit = node.context.config.server.buffered_bytes.bytes();
    api::Node {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_seconds: node.context.started.elapsed().as_secs_f64(),
        listen: addresses.listen.clone(),
        admin_listen: addresses.admin_listen.clone(),
        models_dir: node.context.models_dir.display().to_string(),
        snapshot_files_limit: node.context.config.snapshots.files,
        snapshot_bytes_limit: node.context.config.snapshots.bytes.bytes(),
        require_hashes: node.context.config.python.require_hashes,
        launcher_connected: node.launcher.connected(),
        launcher_old_protocol: node.launcher.old_protocol(),
        buffered_bytes: node.context.budget.lent(),
        buffered_bytes_limit: limit,
    }
}

/// Why a node cannot be handed over now.
pub const NOT_READY: &str = "the node is not ready: it starts, ends, is being taken over, or misses its launcher";

/// Has the program that is on disk take over; answers once it serves.
async fn upgrade(
    node: &Node,
    upgrades: &mpsc::Sender<oneshot::Sender<Result<api::Upgrade, String>>>,
) -> Result<Response<AnswerBody>, Refusal> {
    let refusal = |status, detail: &str| Refusal { status, kind: "not-upgraded", detail: detail.to_owned() };
    if !node.can_be_handed_over() {
        return Err(refusal(StatusCode::CONFLICT, NOT_READY));
    }
    let (answer, answered) = oneshot::channel();
    if upgrades.try_send(answer).is_err() {
        return Err(refusal(StatusCode::CONFLICT, "the node is being taken over already"));
    }
    match answered.await {
        Ok(Ok(upgrade)) => Ok(json(&upgrade)),
        Ok(Err(why)) => Err(refusal(StatusCode::UNPROCESSABLE_ENTITY, &why)),
        Err(_) => Err(refusal(StatusCode::INTERNAL_SERVER_ERROR, "the successor failed: see the node's log")),
    }
}

async fn top(node: &Node) -> api::Top {
    let rows = use_of_all(node).await.into_iter().map(|(model, stats)| {
        let (view, stats) = (model.view(), stats.unwrap_or_default());
        api::TopRow {
            name: view.name,
            state: view.state,
            memory_bytes: stats.memory_bytes,
            memory_limit_bytes: stats.memory_limit_bytes,
            gpu_bytes: stats.gpu.map(|used| used.managed_bytes.saturating_add(used.device_bytes)),
            cpu_usec: stats.cpu_usec,
            pids: stats.pids,
            in_flight: view.in_flight,
            requests: model.metrics.answered(),
        }
    });
    api::Top { models: rows.collect() }
}

fn manifest(model: &Model) -> Result<Response<AnswerBody>, Refusal> {
    let content = model.front().content.ok_or_else(|| Refusal {
        status: StatusCode::CONFLICT,
        kind: "not-ready",
        detail: format!("`{}` has no manifest that can be shown: see its status", model.name),
    })?;
    Ok(json(&content.manifest))
}

/// Asks the model's task for a value.
async fn ask<T: Serialize>(
    node: &Node,
    name: &str,
    question: impl FnOnce(oneshot::Sender<T>) -> Message,
) -> Result<Response<AnswerBody>, Refusal> {
    let model = find(node, name)?;
    answer(&model, question).await.map(|value| json(&value))
}

/// Passes on a person's word. It is answered once what it changed will outlast the scheduler.
async fn order(node: &Node, name: &str, order: Order) -> Result<Response<AnswerBody>, Refusal> {
    let model = find(node, name)?;
    let taken = answer(&model, |sender| Message::Order(order, sender)).await?;
    let view = taken.map_err(|detail| Refusal { status: StatusCode::CONFLICT, kind: "not-ready", detail })?;
    node.context.state.settled().await;
    Ok(json(&view))
}

async fn answer<T>(model: &Model, question: impl FnOnce(oneshot::Sender<T>) -> Message) -> Result<T, Refusal> {
    let (sender, receiver) = oneshot::channel();
    let gone = || Refusal::no_such_model(model.name.as_str());
    if !model.tell(question(sender)).await {
        return Err(gone());
    }
    receiver.await.map_err(|_| gone())
}

/// A parameter of a query. Those of this API need no escapes.
fn parameter<'a>(query: &'a str, key: &str) -> Option<&'a str> {
    query.split('&').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='))
}

/// The last lines, then (with `follow=true`) every further one until the reader hangs up or the model is gone.
fn logs(model: &Arc<Model>, query: &str) -> Response<AnswerBody> {
    let lines = parameter(query, "lines").and_then(|text| text.parse().ok()).unwrap_or(LINES);
    let mut follow = parameter(query, "follow") == Some("true");
    let ring = Arc::clone(&model.logs);
    let mut life = model.subscribe();
    let (sender, receiver) = mpsc::channel(WAITING);
    tokio::spawn(async move {
        let mut newest = ring.subscribe();
        newest.mark_unchanged();
        let (mut entries, mut next) = ring.last(lines);
        loop {
            for entry in entries {
                let mut line = serde_json::to_vec(&entry).unwrap_or_default();
                line.push(b'\n');
                if sender.send(line.into()).await.is_err() {
                    return;
                }
            }
            if !follow {
                return;
            }
            tokio::select! {
                changed = newest.changed() => follow = changed.is_ok(),
                () = async { while life.changed().await.is_ok() {} } => follow = false,
                () = sender.closed() => return,
            }
            (entries, next) = ring.since(next);
        }
    });
    let mut response = Response::new(AnswerBody::Lines(receiver));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    response
}

fn json(value: &impl Serialize) -> Response<AnswerBody> {
    raw("application/json", serde_json::to_vec(value).unwrap_or_default().into())
}

fn raw(media: &'static str, body: Bytes) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::full(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

fn problem(refusal: Refusal) -> Response<AnswerBody> {
    let problem = api::Problem {
        kind: refusal.kind.to_owned(),
        title: refusal.status.canonical_reason().unwrap_or_default().to_owned(),
        status: refusal.status.as_u16(),
        detail: refusal.detail,
    };
    let body = serde_json::to_vec(&problem).unwrap_or_default();
    let mut response = raw("application/problem+json", body.into());
    *response.status_mut() = refusal.status;
    response
}
