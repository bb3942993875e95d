//! Tests of the actor, with the launcher and the residency queue played by the test.

use crate::clock::Clock;
use crate::metrics::NodeMetrics;
use crate::model::content::Content;
use crate::model::services::ModelServices;
use crate::model::{self, AdminCommand, Message, Model, View, actor};
use omni_body::{BodyBudget, BodyMetrics};
use omni_capacity::CapacityMetrics;
use omni_config::name::ModelName;
use omni_config::node::NodeConfig;
use omni_control_api::{Generation, Preparation, State};
use omni_gpu::{Decision, GpuMetrics};
use omni_launcher_client as launcher;
use omni_launcher_client::ModelEvent;
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::id::{EnvironmentKey, SnapshotDigest};
use omni_node_protocol::launcher::{GpuMode, GpuSpec, ToLauncher};
use omni_policy::residency::InstanceKey;
use omni_store::{PersistedState, StateStore, Unprepared, Version};
use omni_task::Watchdog;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

async fn next(requests: &mut mpsc::Receiver<ToLauncher>) -> ToLauncher {
    tokio::time::timeout(Duration::from_secs(10), requests.recv()).await.expect("a message to the launcher").unwrap()
}

/// A model with its actor, and what the test plays.
struct Fixture {
    model: Arc<Model>,
    /// Messages to the launcher.
    requests: mpsc::Receiver<ToLauncher>,
    residency: omni_gpu::testing::Listener,
    config: Arc<NodeConfig>,
    _state: tempfile::TempDir,
}

fn fixture(persisted: PersistedState) -> Fixture {
    let (gpu, residency) = omni_gpu::testing::listener();
    let (launcher, requests) = launcher::testing::launcher();
    let (config, metrics) = (Arc::new(NodeConfig::default()), CapacityMetrics::default());
    let (state, watchdog, started) = (tempfile::tempdir().unwrap(), Watchdog::default(), Instant::now());
    let capacity = omni_capacity::start(&config.capacity, metrics, started, watchdog.heartbeat("capacity"));
    let services = ModelServices {
        clock: Clock::since(started),
        config: Arc::clone(&config),
        runtime_dir: "/nonexistent".into(),
        launcher,
        capacity,
        gpu,
        store: Arc::new(StateStore::open(state.path()).unwrap().0),
        activity: Arc::default(),
        watchdog,
    };
    let name = ModelName::try_from("m".to_owned()).unwrap();
    let mut registry = Registry::default();
    let budget = BodyBudget::new(1, 1, BodyMetrics::register(&mut registry));
    let gpu = GpuMetrics::register(&mut registry);
    let parts = (NodeMetrics::register(&mut registry, gpu).of_model("m"), budget.share());
    let (model, ends) = model::new(name, 1024, parts, PersistedState::default());
    actor::spawn(Arc::clone(&model), ends, persisted, services);
    Fixture { model, requests, residency, config, _state: state }
}

fn digest(digit: &str) -> SnapshotDigest {
    SnapshotDigest::parse(&digit.repeat(64)).unwrap()
}

/// The worker was started and does not answer: it may live, and so may the engine with all of its memory.
#[tokio::test]
async fn an_unreachable_instance_holds_its_gpu_memory_until_it_is_gone() {
    let Fixture { model, mut requests, residency, config, _state } = fixture(PersistedState::default());
    let snapshot = digest("0");
    let manifest = "schema = 1\n[resources]\ngpu-memory = \"1GiB\"\n".to_owned();
    let content = Content::parse(&model.name, snapshot.clone(), Some(manifest), &config).unwrap();
    model.send(Message::Content(Ok(Box::new(content)))).await;
    model.send(Message::Command(AdminCommand::Start, oneshot::channel().0)).await;
    assert!(matches!(next(&mut requests).await, ToLauncher::Prepare { .. }));
    model
        .send(Message::Launcher(ModelEvent::Prepared(snapshot, EnvironmentKey::parse(&"0".repeat(64)).unwrap())))
        .await;
    model.subscribe().wait_for(|view| view.now().state == State::Starting).await.unwrap();
    assert!(matches!(&*residency.heard(), [event] if event.starts_with("Place")));
    let spec = GpuSpec { uuid: "GPU-0".to_owned(), minor: 0, limit_bytes: 1 << 30, mode: GpuMode::Unified };
    model.send(Message::Gpu(InstanceKey(0), Decision::Placed(spec))).await;
    let ToLauncher::Start(start) = next(&mut requests).await else { panic!("it is not started") };

    model.send(Message::Launcher(ModelEvent::WorkerStarted(start.instance.clone()))).await;
    assert_eq!(next(&mut requests).await, ToLauncher::Kill { instance: start.instance.clone() });
    assert!(residency.heard().is_empty(), "its memory may be there still");
    model.send(Message::Launcher(ModelEvent::WorkerExited(start.instance, ExitCause::WorkerLost))).await;
    assert!(matches!(next(&mut requests).await, ToLauncher::Prepare { .. }), "the next try");
    assert_eq!(residency.heard(), ["Gone"]);
}

/// A pull is waited for by how the preparation goes: the state of a held model says nothing of it.
#[tokio::test]
async fn the_preparation_of_a_held_model_is_shown_to_its_end() {
    let persisted = PersistedState { held: true, ..PersistedState::default() };
    let Fixture { model, mut requests, config, .. } = fixture(persisted);
    let snapshot = digest("0");
    let content = Content::parse(&model.name, snapshot.clone(), None, &config).unwrap();
    model.send(Message::Content(Ok(Box::new(content)))).await;
    let prepared = || ModelEvent::Prepared(snapshot.clone(), EnvironmentKey::parse(&"0".repeat(64)).unwrap());
    let failed = || {
        let (message, permanent) = ("it answers 403".to_owned(), true);
        ModelEvent::PrepareFailed { snapshot: snapshot.clone(), message, permanent, after: None }
    };
    let ends = [
        (failed(), Preparation::Failed, Some("it answers 403")),
        (ModelEvent::Lost, Preparation::Failed, Some("the launcher does not answer")),
        (prepared(), Preparation::Done, None),
    ];
    for (event, end, why) in ends {
        let (answer, answered) = oneshot::channel();
        model.send(Message::Command(AdminCommand::Pull, answer)).await;
        let taken = answered.await.unwrap().unwrap();
        assert_eq!((taken.state, taken.held), (State::Stopped, true));
        assert_eq!(taken.generations[0].preparation, Some(Preparation::Underway));
        assert!(matches!(next(&mut requests).await, ToLauncher::Prepare { .. }));
        model.send(Message::Launcher(event)).await;
        let is_end = |generation: &Generation| generation.preparation == Some(end);
        let mut views = model.subscribe();
        let view = views.wait_for(|view| view.now().generations.iter().any(is_end)).await.unwrap().now();
        let message = view.generations[0].message.clone().unwrap_or_default();
        assert!(why.is_none_or(|why| message.starts_with(why)), "{message}");
    }
}

#[tokio::test]
async fn why_a_version_could_not_be_prepared_is_shown_by_the_next_scheduler() {
    let unprepared = Unprepared::new(digest("0"), "it answers 403");
    let state = PersistedState { unprepared: Some(unprepared), ..PersistedState::default() };
    let Fixture { model, requests: _requests, config, .. } = fixture(state);
    let content = |digit| Box::new(Content::parse(&model.name, digest(digit), None, &config).unwrap());
    for (digit, message) in [("0", Some("it answers 403")), ("1", None)] {
        model.send(Message::Content(Ok(content(digit)))).await;
        let version = digest(digit).to_string();
        let mut views = model.subscribe();
        let is_seen = |view: &View| view.now().generations.iter().any(|generation| generation.version == version);
        let view = views.wait_for(is_seen).await.unwrap().now();
        assert_eq!((view.state, view.message.as_deref()), (State::Stopped, message));
    }
}

#[tokio::test]
async fn a_rollback_is_refused_before_the_directory_is_known() {
    let version = |digit| Version { snapshot: digest(digit), manifest: None, first_ready_unix_ms: 0 };
    let history = vec![version("1"), version("2")];
    let Fixture { model, config, requests: _requests, .. } =
        fixture(PersistedState { history, ..PersistedState::default() });
    let roll_back = async || {
        let (answer, answered) = oneshot::channel();
        model.send(Message::Command(AdminCommand::RollBack(Some("2".to_owned())), answer)).await;
        answered.await.unwrap().map(|_| ())
    };
    let refused = roll_back().await.unwrap_err();
    assert!(refused.contains("the launcher has not told yet"), "{refused}");
    let content = Content::parse(&model.name, digest("1"), None, &config).unwrap();
    model.send(Message::Content(Ok(Box::new(content)))).await;
    assert_eq!(roll_back().await, Ok(()));
}
