//! Loop of the executor: what the store has to do, what the models can take, and what runs.

use crate::deaths::Deaths;
use crate::item::{self, Attempted};
use crate::load::{Cards, Instances, Interactive, Span, load};
use crate::now;
use crate::work::{KnownWork, PAUSE, open};
use omni_inference::{DataApi, JobCounts};
use omni_jobs::{BatchId, Demand, JobError, JobStore, Load, Settings, Work, plan};
use omni_supervisor::model::Model;
use omni_supervisor::node::Node;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::{AbortHandle, Id, JoinSet};

/// Time between two looks at the load while there is work.
const LOOK: Duration = Duration::from_millis(100);
/// Longest time between them, if each takes long.
const LONGEST_LOOK: Duration = Duration::from_secs(2);
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
/// Values of lines, by model and batch.
type ByLine<T> = HashMap<String, HashMap<BatchId, T>>;

/// Executor of the items of a store.
#[derive(Debug)]
pub(crate) struct Executor {
    store: JobStore,
    api: Arc<DataApi>,
    settings: Settings,
    counts: Arc<JobCounts>,
    known: KnownWork,
    /// Time from which interactive requests are known of.
    since: Instant,
    running: JoinSet<Attempted>,
    /// Items in flight.
    tasks: HashMap<Id, (Line, AbortHandle)>,
    /// Mean times of items, in seconds.
    means: ByLine<f64>,
    /// Numbers of the last claims for each model, of each owner; names that are no models have one together.
    asked: HashMap<String, HashMap<String, u64>>,
    /// Number of the last claim.
    claims: u64,
    /// Models that get no item for a time.
    pauses: HashMap<String, Pause>,
    deaths: Deaths,
}

/// Time without items for a model.
#[derive(Debug, Clone, Copy)]
struct Pause {
    until: Instant,
    /// The model could not start: a start by another request, or by hand, ends the pause.
    until_ready: bool,
}

impl Pause {
    fn lasts(self, now: Instant, is_ready: impl FnOnce() -> bool) -> bool {
        self.until > now && !(self.until_ready && is_ready())
    }
}

impl Executor {
    pub(crate) fn new(store: JobStore, api: Arc<DataApi>, settings: Settings, counts: Arc<JobCounts>) -> Self {
        let (running, tasks) = (JoinSet::new(), HashMap::new());
        let (means, asked, pauses) = (HashMap::new(), HashMap::new(), HashMap::new());
        let since = Instant::now();
        let (known, deaths) = (KnownWork::default(), Deaths::default());
        Self { store, api, settings, counts, known, since, running, tasks, means, asked, claims: 0, pauses, deaths }
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
            let version = *changes.borrow_and_update();
            let begun = Instant::now();
            let looked = self.step(version).await;
            let is_rest = |has_work: bool| !has_work && !self.known.is_behind(version);
            let looked = looked.map(|has_work| if is_rest(has_work) { REST } else { until_look(begun.elapsed()) });
            let Some(wait) = until_next(looked) else { return };
            tokio::select! {
                Some(ended) = self.running.join_next_with_id() => {
                    self.on_end(ended);
                    while let Some(ended) = self.running.try_join_next_with_id() {
                        self.on_end(ended);
                    }
                }
                () = wait.over(&mut changes) => {}
            }
        }
    }

    /// Claims what may run now, and cancels what should not. Returns whether there is work.
    async fn step(&mut self, version: u64) -> Result<bool, JobError> {
        if self.known.read(&self.store, version).await? {
            self.on_read();
        }
        self.counts.in_flight.store(self.tasks.len() as u64, Ordering::Relaxed);
        let (known, now) = (self.known.work(), Instant::now());
        let node = Arc::clone(self.api.run.node());
        self.pauses.retain(|name, pause| pause.lasts(now, || is_ready(&node, name)));
        if node.is_handed_over() || node.draining() || !node.scanned() {
            return Ok(!known.is_empty());
        }
        let models = node.models();
        let interactive = interactive(&node, &models);
        let span = Span { since: self.since, now, idle: self.settings.idle };
        let positions: HashMap<&str, usize> =
            models.iter().enumerate().map(|(at, model)| (model.name.as_str(), at)).collect();
        let in_flight = self.in_flight();
        let is_paused = |work: &Work| self.deaths.pauses(&work.model, &work.owner, now);
        for (at, work) in open(&known, &positions, |model| self.pauses.contains_key(model), is_paused) {
            let load = match at {
                Some(at) => load(&interactive, at, instances(&models[at]), span),
                None => Some(unknown_models()),
            };
            if let Some(load) = load {
                let model = at.map_or("", |at| models[at].name.as_str());
                self.claim(&load, model, &work, &in_flight).await?;
            }
        }
        Ok(!known.is_empty())
    }

    /// Forgets what has no work any more, and cancels the items of batches that were cancelled or have expired: they are given back.
    fn on_read(&mut self) {
        let known = self.known.work();
        let work = || known.values().flatten();
        self.counts.waiting.store(work().map(|work| work.pending).sum(), Ordering::Relaxed);
        let stopping: HashSet<BatchId> = work().filter(|work| work.stopping).map(|work| work.batch).collect();
        self.tasks.values().filter(|((batch, _), _)| stopping.contains(batch)).for_each(|(_, task)| task.abort());
        for (model, means) in &mut self.means {
            let batches: HashSet<BatchId> = known.get(model).into_iter().flatten().map(|work| work.batch).collect();
            means.retain(|batch, _| batches.contains(batch));
        }
        self.means.retain(|_, means| !means.is_empty());
        let owners: HashSet<&str> = work().map(|work| work.owner.as_str()).collect();
        self.asked.values_mut().for_each(|asked| asked.retain(|owner, _| owners.contains(owner.as_str())));
        self.asked.retain(|_, asked| !asked.is_empty());
    }

    /// Number of items in flight of each line.
    fn in_flight(&self) -> ByLine<u32> {
        let mut in_flight = ByLine::new();
        for ((batch, model), _) in self.tasks.values() {
            let of_model: &mut HashMap<BatchId, u32> = in_flight.entry(model.clone()).or_default();
            *of_model.entry(*batch).or_default() += 1;
        }
        in_flight
    }

    /// Claims and starts the items of one model, or of all names that are none, which together are the model without a name.
    async fn claim(
        &mut self,
        load: &Load,
        model: &str,
        work: &[&Work],
        in_flight: &ByLine<u32>,
    ) -> Result<(), JobError> {
        let demands = self.demands(model, work, in_flight);
        let grants = plan(load, &demands, &self.settings);
        for ((work, demand), grant) in work.iter().zip(&demands).zip(grants) {
            let most = most(grant.seats, demand.in_flight, self.tasks.len());
            if most == 0 || work.pending == 0 {
                continue;
            }
            // Also without an item for it, so that no other owner waits for one whose space is used up.
            self.claims += 1;
            self.asked.entry(model.to_owned()).or_default().insert(work.owner.clone(), self.claims);
            self.known.change();
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

    /// Demands of the work of one model, or of all names that are none.
    fn demands(&self, model: &str, work: &[&Work], in_flight: &ByLine<u32>) -> Vec<Demand> {
        let asked = self.asked.get(model);
        let owners: BTreeSet<&str> = work.iter().map(|work| work.owner.as_str()).collect();
        let of_owner = |(number, owner)| (owner, (number, asked.and_then(|asked| asked.get(owner)).copied()));
        let owners: HashMap<&str, (u64, Option<u64>)> = (0..).zip(owners).map(of_owner).collect();
        let now = now();
        let demand = |work: &&Work| {
            let (owner, asked) = owners.get(work.owner.as_str()).copied().unwrap_or_default();
            let mean = self.means.get(&work.model).and_then(|means| means.get(&work.batch));
            let in_flight = in_flight.get(&work.model).and_then(|of_model| of_model.get(&work.batch));
            Demand {
                owner,
                asked: asked.unwrap_or_default(),
                pending: work.pending,
                in_flight: in_flight.copied().unwrap_or_default(),
                window: work.expires.since(work.created),
                left: work.expires.since(now),
                item_time: mean.map(|seconds| Duration::from_secs_f64(*seconds)),
            }
        };
        work.iter().map(demand).collect()
    }

    fn on_end(&mut self, ended: Result<(Id, Attempted), tokio::task::JoinError>) {
        let (id, attempted) = match ended {
            Ok((id, attempted)) => (id, Some(attempted)),
            Err(error) => (error.id(), None), // cancelled, or panicked: its claim is given back
        };
        self.known.change();
        let Some((line, _)) = self.tasks.remove(&id) else { return };
        let Some(Attempted { took, pause, until_ready, died_alone }) = attempted else { return };
        if let Some(owner) = died_alone {
            let pause = self.deaths.record(&line.1, &owner, Instant::now());
            tracing::warn!(
                model = line.1, batch = %line.0, %owner,
                "an item of a batch ran alone when its instance died: its owner gets no further item for this model for {} s",
                pause.as_secs()
            );
        }
        if let Some(pause) = pause {
            self.pauses.insert(line.1.clone(), Pause { until: Instant::now() + pause, until_ready });
        }
        if let Some(took) = took.map(|took| took.as_secs_f64()) {
            let mean = self.means.entry(line.1).or_default().entry(line.0).or_insert(took);
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
        wait.over(&mut changes).await;
    }
}

/// Wait until the store is asked again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// For this time at most, or until something changes in the store.
    ForChange(Duration),
    /// After a failure, which every change may repeat: the whole of [`RETRY`].
    Retry,
}

impl Wait {
    async fn over(self, changes: &mut watch::Receiver<u64>) {
        match self {
            // The sender is there as long as the store, of which the caller has a handle.
            Self::ForChange(time) => drop(tokio::time::timeout(time, changes.changed()).await),
            Self::Retry => tokio::time::sleep(RETRY).await,
        }
    }
}

/// Time until the next look at the load, after one that took this time: looks at much work take a part of a processor.
fn until_look(took: Duration) -> Duration {
    (took * PAUSE).clamp(LOOK, LONGEST_LOOK)
}

/// Wait until the store is asked again, after a failure too; `None`: it is closed.
fn until_next(asked: Result<Duration, JobError>) -> Option<Wait> {
    match asked {
        Ok(time) => Some(Wait::ForChange(time)),
        Err(JobError::Closed) => None,
        Err(error) => {
            tracing::error!("batch jobs: {}", omni_log::chain(&error));
            Some(Wait::Retry)
        }
    }
}

/// Number of items that a line may claim, with so many of its own and of all lines in flight.
fn most(seats: u32, in_flight: u32, all: usize) -> u32 {
    let left = u32::try_from(MAX_IN_FLIGHT.saturating_sub(all)).unwrap_or(u32::MAX);
    seats.saturating_sub(in_flight).min(left)
}

fn is_ready(node: &Node, name: &str) -> bool {
    node.find(name).is_some_and(|model| model.view().state == omni_control_api::State::Ready)
}

/// Load of all names that are no models on this node.
fn unknown_models() -> Load {
    let (seats, idle_seats) = (UNKNOWN_MODELS, UNKNOWN_MODELS);
    Load { waiting: 0, in_flight: 0, idle_for: Duration::MAX, seats, ready_seats: seats, idle_seats, free_seats: 0 }
}

/// Requests that clients wait for, of each model.
fn interactive(node: &Node, models: &[Arc<Model>]) -> Vec<Interactive> {
    let mut placed: HashMap<String, BTreeSet<u32>> = HashMap::new();
    for gpu in node.gpus().gpus {
        for instance in gpu.instances {
            placed.entry(instance.model).or_default().insert(gpu.index);
        }
    }
    let of = |model: &Arc<Model>| {
        let (open, last_end) = model.interactive.load();
        let content = model.admission().content;
        let uses_card = content.is_some_and(|content| content.manifest.resources.gpu_memory.bytes() > 0);
        Interactive { open, last_end, cards: Cards::new(uses_card, placed.get(model.name.as_str())) }
    };
    models.iter().map(of).collect()
}

fn instances(model: &Model) -> Instances {
    let view = model.view();
    let ready = view.instances.iter().filter(|instance| instance.state == omni_control_api::State::Ready).count();
    let content = model.admission().content;
    let manifest = content.as_ref().map(|content| &content.manifest);
    let per_instance = manifest.map_or(1, |manifest| {
        manifest.batching.bounds().map_or(manifest.scaling.concurrency, |(requests, _)| requests)
    });
    Instances {
        queued: u32::try_from(view.queued).unwrap_or(u32::MAX),
        per_instance,
        ready: u32::try_from(ready).unwrap_or(u32::MAX),
        most: manifest.map_or(1, |manifest| manifest.scaling.max_instances),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_share_their_seats() {
        let demand = |pending| Demand {
            owner: 0,
            asked: 0,
            pending,
            in_flight: 0,
            window: Duration::from_secs(1),
            left: Duration::from_secs(1),
            item_time: None,
        };
        let grants = plan(&unknown_models(), &[demand(9), demand(9)], &Settings { idle: Duration::ZERO });
        assert_eq!(grants.iter().map(|grant| grant.seats).sum::<u32>(), UNKNOWN_MODELS);
    }

    #[test]
    fn a_model_that_is_ready_ends_the_pause_of_one_that_could_not_start() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let lasts = |until_ready, is_ready| Pause { until: now + second, until_ready }.lasts(now, || is_ready);
        assert!(lasts(false, false) && lasts(false, true) && lasts(true, false) && !lasts(true, true));
        assert!(!Pause { until: now, until_ready: true }.lasts(now, || false));
    }

    #[test]
    fn looks_that_take_long_are_rare() {
        let looks = [0, 11, 20, 1000].map(|took| until_look(Duration::from_millis(took)).as_millis());
        assert_eq!(looks, [100, 100, 180, 2000]);
    }

    #[test]
    fn items_in_flight_are_bounded() {
        assert_eq!((most(9, 4, 100), most(9, 4, MAX_IN_FLIGHT - 2), most(9, 4, 2 * MAX_IN_FLIGHT)), (5, 2, 0));
        assert_eq!(most(3, 4, 0), 0);
    }
}
