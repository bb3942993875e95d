//! A model's task with a launcher and a GPU task that the test plays.

use crate::budget::Budget;
use crate::capacity;
use crate::gpu::{self, Told};
use crate::launcher;
use crate::metrics::Metrics;
use crate::model::content::Content;
use crate::model::{self, Message, Order, task};
use crate::node::NodeContext;
use crate::state::{Lasting, StateStore};
use crate::watchdog::Watchdog;
use omni_api::State;
use omni_config::name::ModelName;
use omni_config::node::NodeConfig;
use omni_ipc::exit::ExitCause;
use omni_ipc::id::{EnvironmentKey, SnapshotDigest};
use omni_ipc::launcher::{GpuMode, GpuSpec, ToLauncher};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

async fn next(asked: &mut mpsc::Receiver<ToLauncher>) -> ToLauncher {
    tokio::time::timeout(Duration::from_secs(10), asked.recv()).await.expect("a word to the launcher").unwrap()
}

/// Its worker was started and answers nobody: it may live, and so may the engine with all of its memory.
#[tokio::test]
async fn an_instance_that_cannot_be_reached_holds_its_gpu_memory_until_it_is_gone() {
    let (gpu, desk) = gpu::testing::listener();
    let (launcher, mut asked) = launcher::testing::launcher();
    let (config, metrics) = (NodeConfig::default(), Metrics::default());
    let state_dir = tempfile::tempdir().unwrap();
    let watchdog = Watchdog::default();
    let context = Arc::new(NodeContext {
        started: Instant::now(),
        models: omni_config::Models::Folder("/nonexistent".into()),
        runtime_dir: "/nonexistent".into(),
        gpu,
        capacity: capacity::start(&config.capacity, metrics.of_capacity(), Instant::now(), watchdog.pulse("capacity")),
        state: StateStore::open(state_dir.path()).unwrap().0,
        config,
        budget: Budget::new(1, metrics.of_bodies()),
        metrics,
        watchdog,
        tokens: None,
        busy_models: AtomicI64::new(0),
        touched_unix_ms: AtomicU64::new(0),
    });
    let name = ModelName::try_from("m".to_owned()).unwrap();
    let (model, ends) = model::new(name.clone(), 1024, context.metrics.of_model("m"), Lasting::default());
    task::spawn(Arc::clone(&model), ends, Lasting::default(), Arc::clone(&context), launcher);

    let snapshot = SnapshotDigest::parse(&"0".repeat(64)).unwrap();
    let manifest = "schema = 1\n[resources]\ngpu-memory = \"1GiB\"\n".to_owned();
    let content = Content::parse(&name, snapshot.clone(), Some(manifest), &context.config).unwrap();
    model.tell(Message::Content(Ok(Box::new(content)))).await;
    model.tell(Message::Order(Order::Start, oneshot::channel().0)).await;
    assert!(matches!(next(&mut asked).await, ToLauncher::Prepare { .. }));
    model.tell(Message::Prepared(snapshot, EnvironmentKey::parse(&"0".repeat(64)).unwrap())).await;
    model.subscribe().wait_for(|view| view.now().state == State::Starting).await.unwrap();
    assert!(matches!(&*desk.heard(), [word] if word.starts_with("Place")));
    let spec = GpuSpec { uuid: "GPU-0".to_owned(), minor: 0, limit_bytes: 1 << 30, mode: GpuMode::Unified };
    model.tell(Message::Gpu(0, Told::Placed(spec))).await;
    let ToLauncher::Start(start) = next(&mut asked).await else { panic!("it is not started") };

    model.tell(Message::Started(start.instance.clone())).await;
    assert_eq!(next(&mut asked).await, ToLauncher::Kill { instance: start.instance.clone() });
    assert!(desk.heard().is_empty(), "its memory may be there still");
    model.tell(Message::WorkerGone(start.instance, ExitCause::WorkerLost)).await;
    assert!(matches!(next(&mut asked).await, ToLauncher::Prepare { .. }), "the next try");
    assert_eq!(desk.heard(), ["Gone"]);
}
