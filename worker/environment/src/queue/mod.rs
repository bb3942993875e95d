//! Order in which environments are built: how many at a time, and which comes next. Pure.
//!
//! Installations of wheels and builds from source have places of their own, since the code of a package may take any
//! time. Models that wait take turns, each with at most one place of a kind: a model that has had its turn goes behind
//! all others, and so does a new one.
//!
//! Invariants: no more run than there are places, a place that a waiting model may have is never free, and a model
//! waits for no more turns than there are other models.

use omni_node_protocol::id::EnvironmentKey;
use std::collections::{BTreeMap, VecDeque};

/// Environments of one model that may wait or be built.
const PER_MODEL: usize = 8;
/// Bound over all models.
const IN_ALL: usize = 1024;

/// The kind of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Wheels are fetched and unpacked: no foreign code runs.
    Wheels,
    /// Packages' own build steps run.
    Source,
}

impl Kind {
    /// Every kind, in the order of a build.
    pub const ALL: [Self; 2] = [Self::Wheels, Self::Source];
}

/// Numbers by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Number of [`Kind::Wheels`].
    pub wheels: u32,
    /// Number of [`Kind::Source`].
    pub source: u32,
}

impl Counts {
    /// The number of one kind.
    pub const fn of(self, kind: Kind) -> u32 {
        match kind {
            Kind::Wheels => self.wheels,
            Kind::Source => self.source,
        }
    }
}

/// A place that a build has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Decides whether packages' build steps may run in it.
    pub kind: Kind,
    /// Which of them, from 0 on: no other build has it meanwhile.
    pub number: u32,
}

#[derive(Debug)]
struct Job {
    model: String,
    kind: Kind,
    place: Option<u32>,
}

/// There are too many already; whose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// Too many of this model.
    #[error("{PER_MODEL} environments of this model are being built or wait for it: try again later")]
    Model,
    /// Too many of all models.
    #[error("too many environments wait to be built: try again later")]
    All,
}

/// Environments that are built or wait for a place.
#[derive(Debug)]
pub struct Queue {
    places: Counts,
    jobs: BTreeMap<EnvironmentKey, Job>,
    /// Waiting models of each kind, in the order of their turns, each with its environments in the order in which they came.
    rounds: BTreeMap<Kind, VecDeque<(String, VecDeque<EnvironmentKey>)>>,
}

impl Queue {
    /// An empty queue for these places.
    pub fn new(places: Counts) -> Self {
        Self { places, jobs: BTreeMap::new(), rounds: BTreeMap::new() }
    }

    /// An environment is to be built for a model.
    pub fn add(&mut self, key: EnvironmentKey, model: &str, kind: Kind) -> Result<(), Full> {
        if self.jobs.len() >= IN_ALL {
            return Err(Full::All);
        }
        if self.jobs.values().filter(|job| job.model == model).count() >= PER_MODEL {
            return Err(Full::Model);
        }
        self.jobs.insert(key.clone(), Job { model: model.to_owned(), kind, place: None });
        self.wait(key);
        Ok(())
    }

    /// Takes the next environment to be built, with its place, while there is one.
    pub fn begin_next(&mut self) -> Option<(EnvironmentKey, Place)> {
        Kind::ALL.into_iter().find_map(|kind| self.next_of(kind))
    }

    fn next_of(&mut self, kind: Kind) -> Option<(EnvironmentKey, Place)> {
        let number = (0..self.places.of(kind)).find(|number| self.holder(kind, *number).is_none())?;
        let at = self.rounds.get(&kind)?.iter().position(|(model, _)| !self.builds(model, kind))?;
        let round = self.rounds.get_mut(&kind)?;
        let (model, mut keys) = round.remove(at)?;
        let key = keys.pop_front()?;
        if !keys.is_empty() {
            round.push_back((model, keys));
        }
        self.jobs.get_mut(&key)?.place = Some(number);
        Some((key, Place { kind, number }))
    }

    /// Puts an environment back into the queue, for this model and perhaps for a place of the other kind; its own place is free.
    pub fn again(&mut self, key: &EnvironmentKey, model: &str, kind: Kind) {
        self.remove(key);
        self.jobs.insert(key.clone(), Job { model: model.to_owned(), kind, place: None });
        self.wait(key.clone());
    }

    /// A build ended, or its environment is not wanted any more and does not run: it has no place and waits for none.
    pub fn remove(&mut self, key: &EnvironmentKey) {
        self.jobs.remove(key);
        for round in self.rounds.values_mut() {
            round.iter_mut().for_each(|(_, keys)| keys.retain(|other| other != key));
            round.retain(|(_, keys)| !keys.is_empty());
        }
    }

    /// The model that an environment was built for does not want it any more, and this one does.
    pub fn hand_over(&mut self, key: &EnvironmentKey, model: &str) {
        let Some(job) = self.jobs.get(key).filter(|job| job.model != model) else { return };
        let (kind, place) = (job.kind, job.place);
        self.remove(key);
        self.jobs.insert(key.clone(), Job { model: model.to_owned(), kind, place });
        if place.is_none() {
            self.wait(key.clone());
        }
    }

    /// Returns `Some(true)` for an environment that is being built, `Some(false)` for a waiting one, `None` for an
    /// unknown one.
    pub fn runs(&self, key: &EnvironmentKey) -> Option<bool> {
        self.jobs.get(key).map(|job| job.place.is_some())
    }

    /// The kind of place that an environment has or waits for.
    pub fn kind(&self, key: &EnvironmentKey) -> Option<Kind> {
        self.jobs.get(key).map(|job| job.kind)
    }

    /// The environments that have a place of this kind.
    pub fn running(&self, kind: Kind) -> impl Iterator<Item = (&EnvironmentKey, &str)> {
        let has = move |job: &&Job| job.kind == kind && job.place.is_some();
        self.jobs.iter().filter(move |(_, job)| has(job)).map(|(key, job)| (key, job.model.as_str()))
    }

    /// Numbers of environments that run and that wait.
    pub fn counts(&self) -> (Counts, Counts) {
        let count = |runs: bool, kind: Kind| {
            let jobs = self.jobs.values().filter(|job| job.kind == kind && job.place.is_some() == runs);
            u32::try_from(jobs.count()).unwrap_or(u32::MAX)
        };
        let both = |runs| Counts { wheels: count(runs, Kind::Wheels), source: count(runs, Kind::Source) };
        (both(true), both(false))
    }

    fn holder(&self, kind: Kind, number: u32) -> Option<&Job> {
        self.jobs.values().find(|job| job.kind == kind && job.place == Some(number))
    }

    fn builds(&self, model: &str, kind: Kind) -> bool {
        self.running(kind).any(|(_, other)| other == model)
    }

    fn wait(&mut self, key: EnvironmentKey) {
        let Some(job) = self.jobs.get(&key) else { return };
        let round = self.rounds.entry(job.kind).or_default();
        match round.iter_mut().find(|(model, _)| *model == job.model) {
            Some((_, keys)) => keys.push_back(key),
            None => round.push_back((job.model.clone(), VecDeque::from([key]))),
        }
    }
}

/// A machine that builds run on.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// Processors that the launcher may use.
    pub processors: u32,
    /// In bytes.
    pub memory: u64,
    /// User ids of the node.
    pub uids: u32,
}

/// Places for builds, at most as many as the node's configuration has: for each build from source the machine has two
/// processors, twice its memory and two user ids.
pub fn places(builds: u32, build_memory: u64, machine: Machine) -> Counts {
    let by_memory = u32::try_from(machine.memory / build_memory.max(1)).unwrap_or(u32::MAX);
    let most = machine.processors.min(by_memory).min(machine.uids) / 2;
    Counts { wheels: builds.max(1), source: builds.min(most).max(1) }
}

/// Processor time of one build, in thousandths of a core: what the configuration says, else a quarter of the machine's, and
/// half a core at least.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the configuration has it between 0.01 and 1024"
)]
pub fn cpu_millis(configured: Option<f64>, processors: u32) -> u32 {
    configured.map_or_else(|| processors.saturating_mul(250).max(500), |cpus| (cpus * 1000.0).round() as u32)
}

#[cfg(test)]
mod tests;
