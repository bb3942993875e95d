//! Control API on `<runtime-dir>/control/control.sock`, which `omnictl` uses through the link `<runtime-dir>/control.sock`.
//! Its values are in `omni-control-api`.

mod jobs;
mod logs;
mod refusal;
mod route;
mod stack;
mod usage;

pub(crate) use self::jobs::newest as newest_jobs;
use self::logs::logs;
use self::refusal::Refusal;
use self::route::{ModelEndpoint, Route};
use crate::openapi::DOCUMENT;
use crate::resource_use::resource_use;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use omni_auth::{Owners, Peer, Role};
use omni_body::BodyBudget;
use omni_config::Models;
use omni_config::node::NodeConfig;
use omni_config::url_path::model_name;
use omni_control_api as api;
use omni_gpu::GpuHandle;
use omni_inference::AnswerBody;
use omni_inference::Listener;
use omni_inference::RunApi;
use omni_supervisor::clock::Clock;
use omni_supervisor::model::{AdminCommand, Message, Model};
use omni_supervisor::node::{Node, NotFound};
use omni_takeover as takeover;
use serde::Serialize;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Addresses of the listeners, with warnings about them.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// Address of the data listener.
    pub listen: String,
    /// Address of the admin listener.
    pub admin_listen: String,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
}

/// State of the control API.
#[derive(Debug, Clone)]
pub struct Control {
    /// Requests to models.
    pub run: Arc<RunApi>,
    /// Configuration of the node.
    pub config: Arc<NodeConfig>,
    /// Directories of the models.
    pub models: Models,
    /// Clock of the node.
    pub clock: Clock,
    /// GPUs.
    pub gpu: GpuHandle,
    /// Memory for bodies.
    pub budget: Arc<BodyBudget>,
    /// Addresses of the listeners.
    pub addresses: Addresses,
    /// Requests for a takeover, each with the receiver of its result.
    pub upgrades: mpsc::Sender<takeover::UpgradeReply>,
    /// Users and groups with a role.
    pub owners: Arc<Owners>,
}

/// Caller of one connection.
#[derive(Debug)]
pub struct Caller {
    /// Credentials.
    pub peer: Peer,
    /// Role; `None`: the caller has no permission.
    pub role: Option<Role>,
}

/// Serves one request of a caller.
pub async fn serve(control: &Control, caller: &Caller, request: Request<Incoming>) -> Response<AnswerBody> {
    let path = request.uri().path().to_owned();
    let response = match authorise(control, caller, request.method(), &path) {
        Ok(route) => answer(control, route, request).await,
        Err(refusal) => Err(refusal),
    };
    response.unwrap_or_else(Refusal::into_response)
}

/// Serves one request of the node's page, whose caller has a token of role admin. Only what the page needs: models are
/// shown and commanded and batches cancelled, the node itself is not commanded.
pub(crate) async fn serve_page(control: &Control, request: Request<Incoming>) -> Response<AnswerBody> {
    let path = request.uri().path().strip_prefix("/control").unwrap_or_default().to_owned();
    let response = match Route::parse(&path).filter(|route| route.is_for_page()) {
        Some(route) if *request.method() == route.requires().0 => answer(control, route, request).await,
        Some(route) => Err(Refusal::method(route.requires().0.as_str())),
        None => Err(Refusal::no_such_route()),
    };
    response.unwrap_or_else(Refusal::into_response)
}

/// The route of a request. Refused unless the caller has its role, it exists, and it accepts the method.
fn authorise<'a>(control: &Control, caller: &Caller, method: &Method, path: &'a str) -> Result<Route<'a>, Refusal> {
    let route = Route::parse(path);
    // A caller without the role to read does not learn which routes exist.
    let (accepted, role) = route.map_or((Method::GET, Role::Read), Route::requires);
    if caller.role < Some(role) {
        let allowed = control.owners.describe(role);
        return Err(Refusal::not_allowed(method, path, &allowed, &caller.peer));
    }
    let route = route.ok_or_else(Refusal::no_such_route)?;
    if *method == accepted { Ok(route) } else { Err(Refusal::method(accepted.as_str())) }
}

async fn answer(
    control: &Control,
    route: Route<'_>,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Refusal> {
    let node = control.run.node();
    let query = request.uri().query().unwrap_or_default();
    match route {
        Route::OpenApi => Ok(raw("application/json", DOCUMENT.clone())),
        Route::Node => Ok(json(&node_view(control))),
        Route::Upgrade => upgrade(node, &control.upgrades).await,
        Route::Models => {
            node.first_scan().await; // or the models known so far
            let models = node.models().iter().map(|model| model.view()).collect();
            Ok(json(&api::Models { models, not_served: node.not_served.all() }))
        }
        Route::Top => Ok(json(&top(node).await)),
        Route::Gpus => Ok(json(&control.gpu.view())),
        Route::Usage => usage::usage(control.run.usage().log_dir(), parameter(query, "since")).await,
        Route::Jobs => jobs::list(control).await,
        Route::Job(id) => jobs::show(control, id).await,
        Route::CancelJob(id) => jobs::cancel(control, id).await,
        Route::Model(name, endpoint) => match endpoint {
            ModelEndpoint::State => find(node, name).await.map(|model| json(&model.view())),
            ModelEndpoint::Manifest => find(node, name).await.and_then(|model| manifest(&model)),
            ModelEndpoint::Logs => find(node, name).await.map(|model| logs(node, &model, query)),
            ModelEndpoint::Stack => stack::stacks(&*find(node, name).await?).await.map(raw_lines),
            ModelEndpoint::History => query_json(node, name, Message::History).await,
            ModelEndpoint::Explain => query_json(node, name, Message::Explain).await,
            ModelEndpoint::Run => {
                let model = find(node, name).await?;
                Ok(control.run.run(Listener::Control, (model.name.as_str(), None), request).await)
            }
            ModelEndpoint::Pull => order(node, name, AdminCommand::Pull).await,
            ModelEndpoint::Start => order(node, name, AdminCommand::Start).await,
            ModelEndpoint::Stop => order(node, name, AdminCommand::Stop).await,
            ModelEndpoint::Restart => order(node, name, AdminCommand::Restart).await,
            ModelEndpoint::RollBack => {
                order(node, name, AdminCommand::RollBack(parameter(query, "to").map(str::to_owned))).await
            }
        },
    }
}

async fn find(node: &Node, encoded: &str) -> Result<Arc<Model>, Refusal> {
    let name = model_name(encoded).ok_or_else(|| Refusal::no_such_model(encoded))?;
    node.look_up(name.as_str()).await.map_err(|why| {
        if why == NotFound::NotRead {
            return Refusal::models_unknown();
        }
        let refusal = Refusal::no_such_model(name.as_str());
        match node.single() {
            Some(single) => {
                Refusal { detail: format!("{}, which serves `{}` alone", refusal.detail, single.name), ..refusal }
            }
            None => refusal,
        }
    })
}

fn node_view(control: &Control) -> api::Node {
    let Control { run, config, models, addresses, .. } = control;
    let node = run.node();
    api::Node {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_seconds: control.clock.now().as_secs_f64(),
        listen: addresses.listen.clone(),
        admin_listen: addresses.admin_listen.clone(),
        warnings: addresses.warnings.clone(),
        models_dir: models.path().display().to_string(),
        single_model: models.single().map(|single| single.name.to_string()),
        snapshot_files_limit: config.snapshots.files,
        snapshot_bytes_limit: config.snapshots.bytes.bytes(),
        require_hashes: config.python.require_hashes,
        weights_folders: config.weights.folders.iter().map(|path| path.display().to_string()).collect(),
        weights_sources: config.weights.sources.keys().map(|prefix| prefix.as_str().to_owned()).collect(),
        launcher_connected: node.launcher.connected(),
        launcher_old_protocol: node.launcher.old_protocol(),
        buffered_bytes: control.budget.reserved(),
        buffered_bytes_limit: config.server.buffered_bytes.bytes(),
    }
}

/// Starts a takeover by the program on disk, as soon as the predecessor has ended. Responds once the successor serves.
async fn upgrade(
    node: &Node,
    upgrades: &mpsc::Sender<takeover::UpgradeReply>,
) -> Result<Response<AnswerBody>, Refusal> {
    let refusal = |status, detail: String| Refusal { status, kind: "not-upgraded", detail };
    let result = takeover::request(node, upgrades).await.map_err(|why| refusal(StatusCode::CONFLICT, why))?;
    match result.await {
        Ok(Ok(upgrade)) => Ok(json(&upgrade)),
        Ok(Err(why)) => Err(refusal(StatusCode::UNPROCESSABLE_ENTITY, why)),
        Err(_) => {
            Err(refusal(StatusCode::INTERNAL_SERVER_ERROR, "the successor failed: see the node's log".to_owned()))
        }
    }
}

async fn top(node: &Node) -> api::Top {
    let rows = resource_use(node).await.into_iter().map(|(model, stats)| {
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
    let content = model.admission().content.ok_or_else(|| Refusal {
        status: StatusCode::CONFLICT,
        kind: "not-ready",
        detail: format!("`{}` has no manifest that can be shown: see its status", model.name),
    })?;
    Ok(json(&content.manifest))
}

/// Queries a model's actor for a value, and responds with it.
async fn query_json<T: Serialize>(
    node: &Node,
    name: &str,
    question: impl FnOnce(oneshot::Sender<T>) -> Message,
) -> Result<Response<AnswerBody>, Refusal> {
    let model = find(node, name).await?;
    query(&model, question).await.map(|value| json(&value))
}

/// Carries out an operator's command. Responds once the change is persisted, or cannot be.
async fn order(node: &Node, name: &str, order: AdminCommand) -> Result<Response<AnswerBody>, Refusal> {
    let model = find(node, name).await?;
    if let Some(single) = node.single()
        && let Some(instead) = single_instead(&order)
    {
        return Err(Refusal::single_model(format!("this node serves `{}` alone: {instead}", single.name)));
    }
    let changed = query(&model, |sender| Message::Command(order, sender)).await?;
    let view = changed.map_err(|detail| Refusal { status: StatusCode::CONFLICT, kind: "not-ready", detail })?;
    let persisted = node.store().persisted(&model.name).await;
    persisted.map_err(|why| Refusal::not_persisted(&view, &why))?;
    Ok(json(&view))
}

/// Advice for a command that a single model refuses: it runs for as long as its service.
fn single_instead(order: &AdminCommand) -> Option<&'static str> {
    match order {
        AdminCommand::Pull | AdminCommand::Start | AdminCommand::Restart => None,
        AdminCommand::Stop => Some("it is kept running; stop the service itself"),
        AdminCommand::RollBack(_) => {
            Some("it runs what its directory had when the service began; change that, then `omnictl upgrade`")
        }
    }
}

/// Queries a model's actor for a value. Refused when the actor has ended.
async fn query<T>(model: &Model, question: impl FnOnce(oneshot::Sender<T>) -> Message) -> Result<T, Refusal> {
    let (sender, receiver) = oneshot::channel();
    let gone = || Refusal::no_such_model(model.name.as_str());
    if !model.send(question(sender)).await {
        return Err(gone());
    }
    receiver.await.map_err(|_| gone())
}

/// Value of a parameter in the query of a URL. Those of this API need no escapes.
fn parameter<'a>(query: &'a str, key: &str) -> Option<&'a str> {
    query.split('&').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='))
}

fn raw_lines(lines: Vec<u8>) -> Response<AnswerBody> {
    raw("application/x-ndjson", lines.into())
}

fn json(value: &impl Serialize) -> Response<AnswerBody> {
    raw("application/json", serde_json::to_vec(value).unwrap_or_default().into())
}

fn raw(media: &'static str, body: Bytes) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::full(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
    response
}
