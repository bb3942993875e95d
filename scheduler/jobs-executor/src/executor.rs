//! Loop of the executor: what the store has to do, what the models can take, and what runs.

use crate::item::{self, Attempted};
use crate::load::{ModelLoad, load};
use crate::now;
use omni_inference::{DataApi, JobCounts};
use omni_jobs::{BatchId, Demand, JobError, JobStore, Load, Settings, Work, plan};
use omni_supervisor::model::Model;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::task::{AbortHandle, Id, JoinSet};

/// Time between two looks at the load while there is work.
const LOOK: Duration = Duration::from_millis(100);
/// Time between two looks at the store without work, where it says nothing before.
const REST: Duration = Duration::from_secs(60);
/// Time until a store that failed is asked again.
const RETRY: Duration = Duration::from_secs(5);
/// Seats of a name that is no model: its items fail at once.
const UNKNOWN_MODEL: u32 = 8;
/// Weight of the last item in the mean time of items.
const WEIGHT: f64 = 0.1;

/// Items of one batch for one model.
type Line = (BatchId, String);

/// Executor of the items of a store.
#[derive(Debug)]
pub(crate) struct Executor {
    store: JobStore,
    api: Arc<DataApi>,
    settings: Settings,
    counts: Arc<JobCounts>,
    /// Time from which interactive requests are known of.
    since: Instant,
    running: JoinSet<Attempted>,
    /// Items in flight.
    tasks: HashMap<Id, (Line, AbortHandle)>,
    /// Mean times of items, in seconds.
    means: HashMap<Line, f64>,
    /// Times until which models get no item.
    pauses: HashMap<String, Instant>,
}

impl Executor {
    pub(crate) fn new(store: JobStore, api: Arc<DataApi>, settings: Settings, counts: Arc<JobCounts>) -> Self {
        let (running, tasks) = (JoinSet::new(), HashMap::new());
        let (means, pauses) = (HashMap::new(), HashMap::new());
        Self { store, api, settings, counts, since: Instant::now(), running, tasks, means, pauses }
    }

    /// Executes items until `end`. Then what is in flight has been given back.
    pub(crate) async fn run(mut self, end: impl Future<Output = ()>) {
        let tending = tend(self.store.clone());
        tokio::select! {
            () = tending => {}
            () = self.execute() => {}
            () = end => {}
        }
        self.running.shutdown().await; // each drops its claim
    }

    async fn execute(&mut self) {
        let mut changes = self.store.changes();
        loop {
            changes.mark_unchanged();
            let wait = match self.step().await {
                Ok(true) => LOOK,
                Ok(false) => REST,
                Err(JobError::Closed) => return,
                Err(error) => {
                    tracing::error!("batch jobs: {}", omni_log::chain(&error));
                    RETRY
                }
            };
            tokio::select! {
                Some(ended) = self.running.join_next_with_id() => {
                    self.on_end(ended);
                    while let Some(ended) = self.running.try_join_next_with_id() {
                        self.on_end(ended);
                    }
                }
                changed = changes.changed(), if wait != RETRY => if changed.is_err() { return },
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Claims what may run now, and cancels what should not. Returns whether there is work.
    async fn step(&mut self) -> Result<bool, JobError> {
        let work = self.store.work().await?;
        let waiting = work.iter().map(|work| work.pending).sum();
        self.counts.waiting.store(waiting, Ordering::Relaxed);
        self.counts.in_flight.store(self.tasks.len() as u64, Ordering::Relaxed);
        self.cancel_stopping(&work);
        self.means
            .retain(|line, _| work.iter().any(|work| (work.batch, work.model.as_str()) == (line.0, line.1.as_str())));
        let now = Instant::now();
        self.pauses.retain(|_, until| *until > now);
        let node = Arc::clone(self.api.run.node());
        if node.is_handed_over() || node.draining() || !node.scanned() {
            return Ok(!work.is_empty());
        }
        let models = node.models();
        let loads: Vec<ModelLoad> = models.iter().map(|model| model_load(model)).collect();
        let mut by_model: HashMap<&str, Vec<&Work>> = HashMap::new();
        for work in work.iter().filter(|work| !work.stopping && work.pending + work.in_flight > 0) {
            by_model.entry(work.model.as_str()).or_default().push(work);
        }
        for (model, work) in by_model {
            if self.pauses.contains_key(model) {
                continue;
            }
            let load = match models.iter().position(|known| known.name.as_str() == model) {
                Some(at) => load(&loads, at, self.since, now),
                None => Some(unknown_model()),
            };
            if let Some(load) = load {
                self.claim(&load, &work).await?;
            }
        }
        Ok(!work.is_empty())
    }

    /// Claims and starts the items of one model.
    async fn claim(&mut self, load: &Load, work: &[&Work]) -> Result<(), JobError> {
        let demands: Vec<Demand> = work.iter().map(|work| self.demand(work)).collect();
        let grants = plan(load, &demands, &self.settings);
        for ((work, demand), grant) in work.iter().zip(&demands).zip(grants) {
            let most = grant.seats.saturating_sub(demand.in_flight);
            if most == 0 || work.pending == 0 {
                continue;
            }
            let claims = match self.store.claim(work.batch, &work.model, most).await {
                Ok(claims) => claims,
                Err(JobError::NoBatch | JobError::DiskBound) => continue,
                Err(error) => return Err(error),
            };
            for claim in claims {
                let task =
                    self.running.spawn(item::run(Arc::clone(&self.api), Arc::clone(&self.counts), claim, work.expires));
                self.tasks.insert(task.id(), ((work.batch, work.model.clone()), task));
            }
        }
        Ok(())
    }

    fn demand(&self, work: &Work) -> Demand {
        let line = (work.batch, work.model.clone());
        let in_flight = self.tasks.values().filter(|(of, _)| *of == line).count();
        Demand {
            pending: work.pending,
            in_flight: u32::try_from(in_flight).unwrap_or(u32::MAX),
            window: work.expires.since(work.created),
            left: work.expires.since(now()),
            item_time: self.means.get(&line).map(|seconds| Duration::from_secs_f64(*seconds)),
        }
    }

    /// Cancels the items of batches that were cancelled or have expired: they are given back.
    fn cancel_stopping(&self, work: &[Work]) {
        let is_stopping = |batch: BatchId| work.iter().any(|work| work.batch == batch && work.stopping);
        self.tasks.values().filter(|((batch, _), _)| is_stopping(*batch)).for_each(|(_, task)| task.abort());
    }

    fn on_end(&mut self, ended: Result<(Id, Attempted), tokio::task::JoinError>) {
        let (id, attempted) = match ended {
            Ok((id, attempted)) => (id, Some(attempted)),
            Err(error) => (error.id(), None), // cancelled, or panicked: its claim is given back
        };
        let Some((line, _)) = self.tasks.remove(&id) else { return };
        let Some(Attempted { took, pause }) = attempted else { return };
        if let Some(pause) = pause {
            self.pauses.insert(line.1.clone(), Instant::now() + pause);
        }
        if let Some(took) = took.map(|took| took.as_secs_f64()) {
            let mean = self.means.entry(line).or_insert(took);
            *mean += WEIGHT * (took - *mean);
        }
    }
}

/// Does what is due in the store, on time.
async fn tend(store: JobStore) {
    let mut changes = store.changes();
    loop {
        changes.mark_unchanged();
        let wait = match store.tend(now()).await {
            Ok(next) => next.map_or(REST, |next| next.since(now()).min(REST)),
            Err(JobError::Closed) => return,
            Err(error) => {
                tracing::error!("batch jobs: {}", omni_log::chain(&error));
                RETRY
            }
        };
        tokio::select! {
            changed = changes.changed(), if wait != RETRY => if changed.is_err() { return },
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Load of a name that is no model on this node.
fn unknown_model() -> Load {
    Load { waiting: 0, in_flight: 0, idle_for: Duration::MAX, seats: UNKNOWN_MODEL, free_seats: 0 }
}

fn model_load(model: &Model) -> ModelLoad {
    let (interactive, last_end) = model.interactive.load();
    let view = model.view();
    let ready = view.instances.iter().filter(|instance| instance.state == omni_control_api::State::Ready).count();
    let content = model.admission().content;
    let manifest = content.as_ref().map(|content| &content.manifest);
    let per_instance = manifest.map_or(1, |manifest| {
        manifest.batching.bounds().map_or(manifest.scaling.concurrency, |(requests, _)| requests)
    });
    ModelLoad {
        interactive,
        last_end,
        queued: u32::try_from(view.queued).unwrap_or(u32::MAX),
        per_instance,
        ready: u32::try_from(ready).unwrap_or(u32::MAX),
        most: manifest.map_or(1, |manifest| manifest.scaling.max_instances),
        has_card: manifest.is_some_and(|manifest| manifest.resources.gpu_memory.bytes() > 0),
    }
}
