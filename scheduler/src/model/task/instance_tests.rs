//! A model's task with a launcher and a GPU task that the test plays.

use crate::launcher;
use crate::metrics::Metrics;
use crate::model::content::Content;
use crate::model::{self, Message, Model, Order, task};
use crate::node::NodeContext;
use omni_body::BodyBudget;
use omni_capacity as capacity;
use omni_config::name::ModelName;
use omni_config::node::NodeConfig;
use omni_control_api::State;
use omni_gpu::{self, Decision};
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::id::{EnvironmentKey, SnapshotDigest};
use omni_node_protocol::launcher::{GpuMode, GpuSpec, ToLauncher};
use omni_policy::residency::InstanceKey;
use omni_store::{PersistedState, StateStore, Version};
use omni_task::Watchdog;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

async fn next(asked: &mut mpsc::Receiver<ToLauncher>) -> ToLauncher {
    tokio::time::timeout(Duration::from_secs(10), asked.recv()).await.expect("a word to the launcher").unwrap()
}

/// A model and what the test plays.
struct Played {
    model: Arc<Model>,
    asked: mpsc::Receiver<ToLauncher>,
    desk: omni_gpu::testing::Listener,
    context: Arc<NodeContext>,
    _state: tempfile::TempDir,
}

/// Of a model an earlier scheduler knew this.
fn play(lasting: PersistedState) -> Played {
    let (gpu, desk) = omni_gpu::testing::listener();
    let (launcher, asked) = launcher::testing::launcher();
    let (config, metrics) = (NodeConfig::default(), Metrics::default());
    let state = tempfile::tempdir().unwrap();
    let watchdog = Watchdog::default();
    let context = Arc::new(NodeContext {
        started: Instant::now(),
        models: omni_config::Models::Folder("/nonexistent".into()),
        runtime_dir: "/nonexistent".into(),
        gpu,
        capacity: capacity::start(
            &config.capacity,
            metrics.of_capacity(),
            Instant::now(),
            watchdog.heartbeat("capacity"),
        ),
        state: StateStore::open(state.path()).unwrap().0,
        config,
        budget: BodyBudget::new(1, 1, metrics.of_bodies()),
        metrics,
        watchdog,
        tokens: None,
        busy_models: AtomicI64::new(0),
        touched_unix_ms: AtomicU64::new(0),
    });
    let name = ModelName::try_from("m".to_owned()).unwrap();
    let (model, ends) =
        model::new(name, 1024, (context.metrics.of_model("m"), context.budget.share()), PersistedState::default());
    task::spawn(Arc::clone(&model), ends, lasting, Arc::clone(&context), launcher);
    Played { model, asked, desk, context, _state: state }
}

fn digest(digit: &str) -> SnapshotDigest {
    SnapshotDigest::parse(&digit.repeat(64)).unwrap()
}

/// Its worker was started and answers nobody: it may live, and so may the engine with all of its memory.
#[tokio::test]
async fn an_instance_that_cannot_be_reached_holds_its_gpu_memory_until_it_is_gone() {
    let Played { model, mut asked, desk, context, _state } = play(PersistedState::default());
    let snapshot = digest("0");
    let manifest = "schema = 1\n[resources]\ngpu-memory = \"1GiB\"\n".to_owned();
    let content = Content::parse(&model.name, snapshot.clone(), Some(manifest), &context.config).unwrap();
    model.tell(Message::Content(Ok(Box::new(content)))).await;
    model.tell(Message::Order(Order::Start, oneshot::channel().0)).await;
    assert!(matches!(next(&mut asked).await, ToLauncher::Prepare { .. }));
    model.tell(Message::Prepared(snapshot, EnvironmentKey::parse(&"0".repeat(64)).unwrap())).await;
    model.subscribe().wait_for(|view| view.now().state == State::Starting).await.unwrap();
    assert!(matches!(&*desk.heard(), [word] if word.starts_with("Place")));
    let spec = GpuSpec { uuid: "GPU-0".to_owned(), minor: 0, limit_bytes: 1 << 30, mode: GpuMode::Unified };
    model.tell(Message::Gpu(InstanceKey(0), Decision::Placed(spec))).await;
    let ToLauncher::Start(start) = next(&mut asked).await else { panic!("it is not started") };

    model.tell(Message::Started(start.instance.clone())).await;
    assert_eq!(next(&mut asked).await, ToLauncher::Kill { instance: start.instance.clone() });
    assert!(desk.heard().is_empty(), "its memory may be there still");
    model.tell(Message::WorkerGone(start.instance, ExitCause::WorkerLost)).await;
    assert!(matches!(next(&mut asked).await, ToLauncher::Prepare { .. }), "the next try");
    assert_eq!(desk.heard(), ["Gone"]);
}

/// Which version it would be instead of is known by the directory alone.
#[tokio::test]
async fn nobody_rolls_back_before_the_directory_is_known() {
    let version = |digit| Version { snapshot: digest(digit), manifest: None, first_ready_unix_ms: 0 };
    let Played { model, context, asked: _asked, .. } =
        play(PersistedState { history: vec![version("1"), version("2")], ..PersistedState::default() });
    let roll_back = async || {
        let (answer, answered) = oneshot::channel();
        model.tell(Message::Order(Order::RollBack(Some("2".to_owned())), answer)).await;
        answered.await.unwrap().map(|_| ())
    };
    let refused = roll_back().await.unwrap_err();
    assert!(refused.contains("the launcher has not told yet"), "{refused}");
    let content = Content::parse(&model.name, digest("1"), None, &context.config).unwrap();
    model.tell(Message::Content(Ok(Box::new(content)))).await;
    assert_eq!(roll_back().await, Ok(()));
}
