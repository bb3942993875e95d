//! Environments being made, as the main loop knows them: waiting models, running builds, timeouts. No effects:
//! [`super::preparation`] carries them out.

use omni_environment::queue::{Counts, Full, Kind, Queue};
use omni_environment::{BuildPlan, Ended};
use omni_node_protocol::id::{EnvironmentKey, SnapshotDigest};
use omni_node_protocol::launcher::{BuildCounts, BuildKind, BuildStage, FromLauncher, Holder};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Lines of a build that are kept for models that ask for the same environment later.
const LINES: usize = 50;
/// Builds that timed out, of which something is kept.
const LATE: usize = 32;
/// A build that times out again and again waits for so many times its limit at most.
const LONGEST_PAUSE: u32 = 8;

/// A model that waits, and the content whose environment it waits for.
pub(super) type Waiter = (String, SnapshotDigest);

/// An environment that is being built, or waits to be.
pub(super) struct Waiting {
    /// Models that wait; none while a build that is not wanted any more ends.
    waiters: Vec<Waiter>,
    pub(super) plan: Arc<BuildPlan>,
    /// The content whose directory the build reads.
    reads: SnapshotDigest,
    /// Beginning of the wait or of the build, in seconds of the Unix epoch.
    since_unix: u64,
    cancelled: Arc<AtomicBool>,
    /// Stage that its waiters were sent last.
    pub(super) told: Option<BuildStage>,
    pub(super) lines: VecDeque<String>,
}

impl Waiting {
    /// The contents that it is for.
    pub(super) fn snapshots(&self) -> BTreeSet<SnapshotDigest> {
        self.waiters.iter().map(|(_, snapshot)| snapshot.clone()).collect()
    }
}

/// All of them.
pub(super) struct Builds {
    pub(super) queue: Queue,
    waiting: BTreeMap<EnvironmentKey, Waiting>,
    /// Models and contents whose environment is being looked for.
    pub(super) planning: BTreeSet<Waiter>,
    pub(super) late: Late,
    told: (Counts, Counts),
}

impl Builds {
    pub(super) fn new(places: Counts) -> Self {
        Self {
            queue: Queue::new(places),
            waiting: BTreeMap::new(),
            planning: BTreeSet::new(),
            late: Late::default(),
            told: Default::default(),
        }
    }

    /// Contents that must stay on the disk.
    pub(super) fn snapshots(&self) -> impl Iterator<Item = &SnapshotDigest> {
        let building = self.waiting.values().flat_map(|waiting| {
            waiting.waiters.iter().map(|(_, snapshot)| snapshot).chain(std::iter::once(&waiting.reads))
        });
        building.chain(self.planning.iter().map(|(_, snapshot)| snapshot))
    }

    pub(super) fn has(&self, key: &EnvironmentKey) -> bool {
        self.waiting.contains_key(key)
    }

    /// Waits for an environment that is on its way already; `None` when it is not.
    pub(super) fn join(&mut self, key: &EnvironmentKey, waiter: &Waiter) -> Option<&Waiting> {
        let waiting = self.waiting.get_mut(key)?;
        if !waiting.waiters.contains(waiter) {
            waiting.waiters.push(waiter.clone());
        }
        Some(waiting)
    }

    /// An environment is to be built.
    pub(super) fn add(&mut self, plan: Box<BuildPlan>, waiter: Waiter) -> Result<(), Full> {
        let key = plan.key.clone();
        if !plan.is_bare() {
            self.queue.add(key.clone(), &waiter.0, plan.kind())?;
        }
        let waiting = Waiting {
            reads: waiter.1.clone(),
            waiters: vec![waiter],
            plan: Arc::from(plan),
            since_unix: unix(),
            cancelled: Arc::default(),
            told: None,
            lines: VecDeque::new(),
        };
        self.waiting.insert(key, waiting);
        Ok(())
    }

    /// A model does not wait for any environment of this content any more.
    pub(super) fn leave(&mut self, waiter: &Waiter) {
        let mut unwanted = Vec::new();
        for (key, waiting) in &mut self.waiting {
            let before = waiting.waiters.len();
            waiting.waiters.retain(|other| other != waiter);
            if waiting.waiters.len() == before {
                continue;
            }
            match waiting.waiters.first() {
                Some((next, _)) => self.queue.hand_over(key, next),
                // A bare one is there in a moment.
                None if self.queue.runs(key) == Some(false) => unwanted.push(key.clone()),
                None => waiting.cancelled.store(true, Ordering::Relaxed),
            }
        }
        for key in unwanted {
            self.queue.remove(&key);
            self.waiting.remove(&key);
        }
    }

    /// A build begins: what is built, and what says that it is not wanted any more.
    pub(super) fn begin(&mut self, key: &EnvironmentKey) -> Option<(Arc<BuildPlan>, Arc<AtomicBool>)> {
        let waiting = self.waiting.get_mut(key)?;
        waiting.since_unix = unix();
        Some((Arc::clone(&waiting.plan), Arc::clone(&waiting.cancelled)))
    }

    /// Records a line of a build; returns the contents whose models get it.
    pub(super) fn add_line(&mut self, key: &EnvironmentKey, line: &str) -> BTreeSet<SnapshotDigest> {
        let Some(waiting) = self.waiting.get_mut(key) else { return BTreeSet::new() };
        waiting.lines.push_back(line.to_owned());
        waiting.lines.drain(..waiting.lines.len().saturating_sub(LINES));
        waiting.snapshots()
    }

    /// Ends a build. Returns its waiters, unless it goes on: from source, or anew for a model that came while it was
    /// being ended.
    pub(super) fn ended(&mut self, key: &EnvironmentKey, ended: &Ended) -> Option<Waiting> {
        let waiting = self.waiting.get_mut(key)?;
        let kind = match ended {
            Ended::NeedsSource => Some(Kind::Source),
            Ended::Cancelled => Some(waiting.plan.kind()),
            Ended::Built | Ended::TimedOut(_) | Ended::Failed(_) => None,
        };
        if let (Some((model, _)), Some(kind)) = (waiting.waiters.first(), kind) {
            self.queue.again(key, model, kind);
            waiting.cancelled = Arc::default();
            waiting.since_unix = unix();
            return None;
        }
        self.queue.remove(key);
        self.waiting.remove(key)
    }

    /// Messages for the scheduler: all that changed since the last call.
    pub(super) fn take_changes(&mut self) -> Vec<FromLauncher> {
        let mut changes = Vec::new();
        let counts = self.queue.counts();
        if self.told != counts {
            self.told = counts;
            let of = |kind| BuildCounts { running: counts.0.of(kind), waiting: counts.1.of(kind) };
            changes.push(FromLauncher::Builds { wheels: of(Kind::Wheels), source: of(Kind::Source) });
        }
        let stages: Vec<_> = self.waiting.keys().filter_map(|key| Some((key.clone(), self.stage(key)?))).collect();
        for (key, stage) in stages {
            let Some(waiting) = self.waiting.get_mut(&key).filter(|waiting| waiting.told.as_ref() != Some(&stage))
            else {
                continue;
            };
            waiting.told = Some(stage.clone());
            let tell = |snapshot| FromLauncher::Build { snapshot, stage: stage.clone() };
            changes.extend(waiting.snapshots().into_iter().map(tell));
        }
        changes
    }

    /// Resets the sent counts: a new scheduler assumes that nothing is built.
    pub(super) fn reset_sent(&mut self) {
        self.told = Default::default();
    }

    /// The stage of a build; `None` for a bare environment, which has none.
    fn stage(&self, key: &EnvironmentKey) -> Option<BuildStage> {
        let kind = self.queue.kind(key)?;
        let shown = match kind {
            Kind::Wheels => BuildKind::Wheels,
            Kind::Source => BuildKind::Source,
        };
        if self.queue.runs(key)? {
            return Some(BuildStage::Runs { kind: shown });
        }
        let holder = |(key, model): (&EnvironmentKey, &str)| {
            let since_unix = self.waiting.get(key).map_or(0, |waiting| waiting.since_unix);
            Holder { model: model.to_owned(), since_unix }
        };
        let holders = self.queue.running(kind).map(holder).collect();
        Some(BuildStage::Waits { kind: shown, since_unix: self.waiting.get(key)?.since_unix, holders })
    }
}

/// Builds that timed out: how often in a row, and for which model, whose new content is another matter. The last ones.
#[derive(Default)]
pub(super) struct Late(VecDeque<(EnvironmentKey, String, u32)>);

impl Late {
    /// A build timed out: how long its model waits, longer each time, and of which builds nothing is kept any more.
    pub(super) fn add(
        &mut self,
        key: &EnvironmentKey,
        model: &str,
        limit: Duration,
    ) -> (Duration, Vec<EnvironmentKey>) {
        let before = self.0.iter().find(|(other, ..)| other == key).map_or(0, |(.., times)| *times);
        self.0.retain(|(other, ..)| other != key);
        self.0.push_back((key.clone(), model.to_owned(), before.saturating_add(1)));
        let over = self.0.len().saturating_sub(LATE);
        let evicted = self.0.drain(..over).map(|(key, ..)| key).collect();
        (limit * 2_u32.saturating_pow(before).min(LONGEST_PAUSE), evicted)
    }

    /// Forgets a build; whether it had timed out.
    pub(super) fn forget(&mut self, key: &EnvironmentKey) -> bool {
        let before = self.0.len();
        self.0.retain(|(other, ..)| other != key);
        self.0.len() < before
    }

    /// Forgets the builds of a model; which they were.
    pub(super) fn forget_model(&mut self, model: &str) -> Vec<EnvironmentKey> {
        let (gone, kept) =
            std::mem::take(&mut self.0).into_iter().partition::<VecDeque<_>, _>(|(_, of, _)| of == model);
        self.0 = kept;
        gone.into_iter().map(|(key, ..)| key).collect()
    }
}

fn unix() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> EnvironmentKey {
        EnvironmentKey::parse(&format!("{number:064x}")).unwrap()
    }

    #[test]
    fn repeated_timeouts_double_the_pause_until_the_content_changes() {
        const LIMIT: Duration = Duration::from_secs(60);
        let mut late = Late::default();
        let pauses: Vec<_> = (0..6).map(|_| late.add(&key(1), "slow", LIMIT).0.as_secs() / 60).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 8, 8]);
        assert_eq!(late.forget_model("other"), []);
        assert_eq!(late.forget_model("slow"), [key(1)]);
        assert_eq!(late.add(&key(1), "slow", LIMIT).0, LIMIT);
        assert!(late.forget(&key(1)) && !late.forget(&key(1)));
        let evicted: Vec<_> = (0..40).flat_map(|number| late.add(&key(number), "m", LIMIT).1).collect();
        assert_eq!(evicted, (0..8).map(key).collect::<Vec<_>>());
    }
}
