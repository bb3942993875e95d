//! Executor of batch jobs: opens the store, claims items when nobody else needs their models, and sends each to the
//! node's own API.
//!
//! ```text
//!            ┌──────────────── plan: how many of each batch and model ◀── load of models
//! store ─ claim ─▶ item ─ HTTP over memory ─▶ API of the node ─ response ─▶ outcome ─▶ store: result, death, or back
//! ```
//!
//! An item is an ordinary request over HTTP, on a connection in memory: routes, bounds, forms of answers and errors,
//! and usage records are those of every client.
//!
//! Invariants: an item that is in flight when the executor ends is given back; the store is closed before another
//! process opens it.

#![forbid(unsafe_code)]

mod deaths;
mod exchange;
mod executor;
mod item;
mod load;
mod outcome;
mod pace;
mod usage;
mod work;

use executor::Executor;
use omni_config::node::Jobs;
use omni_inference::{DataApi, JobCounts, JobsHandle, StoreState};
use omni_jobs::{JobStore, Limits, OpenError, Settings, UnixMillis};
use omni_supervisor::clock::unix_ms;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Time between two attempts to open a store that the predecessor has not closed yet.
const REOPEN: Duration = Duration::from_millis(50);
/// Time between two attempts to open a store whose disk is full or has failed.
const REOPEN_FAILED: Duration = Duration::from_secs(10);

/// Batch jobs of a node, until they are closed.
#[derive(Debug)]
pub struct JobsService {
    stop: watch::Sender<bool>,
    state: watch::Sender<StoreState>,
    task: JoinHandle<()>,
}

/// Store that is to be opened once the node belongs to this process.
#[derive(Debug)]
pub struct JobsSetup {
    folder: PathBuf,
    limits: Limits,
    settings: Settings,
    counts: Arc<JobCounts>,
    state: watch::Sender<StoreState>,
}

/// Time of day, as the store has it.
fn now() -> UnixMillis {
    UnixMillis(unix_ms())
}

impl JobsSetup {
    /// Batch jobs in this folder, and their handle for the API; `None`: the configuration has them off.
    #[must_use]
    pub fn from_config(config: &Jobs, folder: PathBuf) -> Option<(Self, JobsHandle)> {
        let Jobs { enabled, idle, disk, keep } = *config;
        let limits = Limits { disk: disk.bytes(), owner_disk: disk.bytes() / 2, keep, ..Limits::default() };
        let (state, states) = watch::channel(StoreState::Opening);
        let (settings, counts) = (Settings { idle }, Arc::<JobCounts>::default());
        let handle = JobsHandle::new(states, Arc::clone(&counts));
        enabled.then(|| (Self { folder, limits, settings, counts, state }, handle))
    }

    /// Opens the store and executes its items, until the service is closed.
    #[must_use]
    pub fn start(self, api: Arc<DataApi>) -> JobsService {
        let Self { folder, limits, settings, counts, state } = self;
        let (stop, mut stopped) = watch::channel(false);
        let opened = state.clone();
        let task = tokio::spawn(async move {
            let open = tokio::select! {
                store = open(&folder, &limits) => store,
                _ = stopped.wait_for(|stop| *stop) => return,
            };
            let Some(store) = open else {
                opened.send_replace(StoreState::Closed);
                return;
            };
            opened.send_replace(StoreState::Open(store.clone()));
            let node = Arc::clone(api.run.node());
            let end = async move {
                tokio::select! {
                    _ = stopped.wait_for(|stop| *stop) => {}
                    () = node.taken_over() => {}
                }
            };
            Executor::new(store, api, settings, counts).run(end).await;
            if let StoreState::Open(store) = opened.send_replace(StoreState::Closed) {
                store.close().await;
            }
        });
        JobsService { stop, state, task }
    }
}

impl JobsService {
    /// Gives back what is in flight, and closes the store.
    pub async fn close(self) {
        self.stop.send_replace(true);
        let _ = self.task.await; // it has panicked: the store is closed with the process
        self.state.send_replace(StoreState::Closed);
    }
}

/// Opens the store, and waits for the predecessor to close it. `None`: it cannot be opened.
async fn open(folder: &Path, limits: &Limits) -> Option<JobStore> {
    let mut reported = false;
    loop {
        let (folder, limits) = (folder.to_owned(), limits.clone());
        match tokio::task::spawn_blocking(move || JobStore::open(&folder, limits, now())).await {
            Ok(Ok(store)) => return Some(store),
            Ok(Err(OpenError::InUse(_))) => tokio::time::sleep(REOPEN).await,
            Ok(Err(error)) if error.is_passing() => {
                if !reported {
                    tracing::error!("no batch jobs until the disk takes changes again: {}", omni_log::chain(&error));
                }
                reported = true;
                tokio::time::sleep(REOPEN_FAILED).await;
            }
            Ok(Err(error)) => {
                tracing::error!("no batch jobs: {}", omni_log::chain(&error));
                return None;
            }
            Err(error) => {
                tracing::error!("no batch jobs: {error}");
                return None;
            }
        }
    }
}
