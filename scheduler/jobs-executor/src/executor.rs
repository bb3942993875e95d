//! Loop of the executor: what the store has to do, what the models can take, and what runs.

use crate::item::{self, Attempted};
use crate::load::{ModelLoad, load};
use crate::now;
use omni_inference::{DataApi, JobCounts};
use omni_jobs::{BatchId, Demand, JobError, JobStore, Load, Settings, Work, plan};
use omni_supervisor::model::Model;
use std::collections::{HashMap, HashSet};
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
/// Seats of all names that are no models: their items fail at once.
const UNKNOWN_MODELS: u32 = 8;
/// Items in flight, of all models.
const MAX_IN_FLIGHT: usize = 1024;
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
            let looked = self.step().await.map(|has_work| if has_work { LOOK } else { REST });
            let Some(wait) = until_next(looked) else { return };
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
        let lines: HashSet<(BatchId, &str)> = work.iter().map(|work| (work.batch, work.model.as_str())).collect();
        self.means.retain(|(batch, model), _| lines.contains(&(*batch, model.as_str())));
        let now = Instant::now();
        self.pauses.retain(|_, until| *until > now);
        let node = Arc::clone(self.api.run.node());
        if node.is_handed_over() || node.draining() || !node.scanned() {
            return Ok(!work.is_empty());
        }
        let models = node.models();
        let loads: Vec<ModelLoad> = models.iter().map(|model| model_load(model)).collect();
        let positions: HashMap<&str, usize> =
            models.iter().enumerate().map(|(at, model)| (model.name.as_str(), at)).collect();
        let in_flight = self.in_flight();
        for (at, work) in by_model(&work, &positions, &self.pauses) {
            let load = match at {
                Some(at) => load(&loads, at, self.since, now),
                None => Some(unknown_models()),
            };
            if let Some(load) = load {
                self.claim(&load, &work, &in_flight).await?;
            }
        }
        Ok(!work.is_empty())
    }

    /// Number of items in flight of each line.
    fn in_flight(&self) -> HashMap<Line, u32> {
        let mut in_flight = HashMap::new();
        for (line, _) in self.tasks.values() {
            *in_flight.entry(line.clone()).or_default() += 1;
        }
        in_flight
    }

    /// Claims and starts the items of one model, or of all names that are none.
    async fn claim(&mut self, load: &Load, work: &[&Work], in_flight: &HashMap<Line, u32>) -> Result<(), JobError> {
        let demands: Vec<Demand> = work.iter().map(|work| self.demand(work, in_flight)).collect();
        let grants = plan(load, &demands, &self.settings);
        for ((work, demand), grant) in work.iter().zip(&demands).zip(grants) {
            let most = most(grant.seats, demand.in_flight, self.tasks.len());
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

    fn demand(&self, work: &Work, in_flight: &HashMap<Line, u32>) -> Demand {
        let line = (work.batch, work.model.clone());
        Demand {
            pending: work.pending,
            in_flight: in_flight.get(&line).copied().unwrap_or_default(),
            window: work.expires.since(work.created),
            left: work.expires.since(now()),
            item_time: self.means.get(&line).map(|seconds| Duration::from_secs_f64(*seconds)),
        }
    }

    /// Cancels the items of batches that were cancelled or have expired: they are given back.
    fn cancel_stopping(&self, work: &[Work]) {
        let stopping: HashSet<BatchId> = work.iter().filter(|work| work.stopping).map(|work| work.batch).collect();
        self.tasks.values().filter(|((batch, _), _)| stopping.contains(batch)).for_each(|(_, task)| task.abort());
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
        let tended = store.tend(now()).await.map(|next| next.map_or(REST, |next| next.since(now()).min(REST)));
        let Some(wait) = until_next(tended) else { return };
        tokio::select! {
            changed = changes.changed(), if wait != RETRY => if changed.is_err() { return },
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Time until the store is asked again, after a failure too; `None`: it is closed.
fn until_next(asked: Result<Duration, JobError>) -> Option<Duration> {
    match asked {
        Ok(wait) => Some(wait),
        Err(JobError::Closed) => None,
        Err(error) => {
            tracing::error!("batch jobs: {}", omni_log::chain(&error));
            Some(RETRY)
        }
    }
}

/// Work by the position of its model; that of all names that are no models together. Work of paused models is left out.
fn by_model<'a>(
    work: &'a [Work],
    positions: &HashMap<&str, usize>,
    pauses: &HashMap<String, Instant>,
) -> HashMap<Option<usize>, Vec<&'a Work>> {
    let mut by_model: HashMap<Option<usize>, Vec<&Work>> = HashMap::new();
    let open =
        |work: &&Work| !work.stopping && (work.pending > 0 || work.in_flight > 0) && !pauses.contains_key(&work.model);
    for work in work.iter().filter(open) {
        by_model.entry(positions.get(work.model.as_str()).copied()).or_default().push(work);
    }
    by_model
}

/// Number of items that a line may claim, with so many of its own and of all lines in flight.
fn most(seats: u32, in_flight: u32, all: usize) -> u32 {
    let left = u32::try_from(MAX_IN_FLIGHT.saturating_sub(all)).unwrap_or(u32::MAX);
    seats.saturating_sub(in_flight).min(left)
}

/// Load of all names that are no models on this node.
fn unknown_models() -> Load {
    Load { waiting: 0, in_flight: 0, idle_for: Duration::MAX, seats: UNKNOWN_MODELS, free_seats: 0 }
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

#[cfg(test)]
mod tests {
    use super::*;
    use omni_jobs::UnixMillis;

    #[test]
    fn unknown_names_share_their_seats() {
        let of = |model: &str, pending| Work {
            batch: BatchId::parse(&format!("batch_{}", "0".repeat(32))).unwrap(),
            owner: String::new(),
            model: model.to_owned(),
            pending,
            suspects: 0,
            in_flight: 0,
            created: UnixMillis(0),
            expires: UnixMillis(1000),
            stopping: false,
        };
        let work = [of("known", 1), of("a", 9), of("b", 9), of("paused", 1), of("none", 0)];
        let positions = HashMap::from([("known", 3), ("paused", 4)]);
        let pauses = HashMap::from([("paused".to_owned(), Instant::now())]);
        let by_model = by_model(&work, &positions, &pauses);
        assert_eq!(by_model.len(), 2);
        assert_eq!((by_model[&Some(3)].len(), by_model[&None].len()), (1, 2));
        let demand = |work: &&Work| Demand {
            pending: work.pending,
            in_flight: 0,
            window: Duration::from_secs(1),
            left: Duration::from_secs(1),
            item_time: None,
        };
        let demands: Vec<Demand> = by_model[&None].iter().map(demand).collect();
        let grants = plan(&unknown_models(), &demands, &Settings { idle: Duration::ZERO });
        assert_eq!(grants.iter().map(|grant| grant.seats).sum::<u32>(), UNKNOWN_MODELS);
    }

    #[test]
    fn items_in_flight_are_bounded() {
        assert_eq!((most(9, 4, 100), most(9, 4, MAX_IN_FLIGHT - 2), most(9, 4, 2 * MAX_IN_FLIGHT)), (5, 2, 0));
        assert_eq!(most(3, 4, 0), 0);
    }
}
