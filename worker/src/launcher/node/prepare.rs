//! The main loop's part in making environments: who waits for which one, and what they are told.

use super::{Node, short};
use crate::launcher::environment::{BuildPlan, Failure, Plan, PlanJob};
use omni_ipc::id::{EnvironmentKey, SnapshotDigest};
use omni_ipc::launcher::FromLauncher;
use std::collections::{BTreeSet, VecDeque};

/// Lines of a build that are kept for those who ask for the same environment later.
const LINES: usize = 50;

/// An environment that is being built.
#[derive(Default)]
pub(super) struct Waiting {
    /// Who waits for it.
    pub(super) snapshots: BTreeSet<SnapshotDigest>,
    lines: VecDeque<String>,
}

impl Node {
    pub(super) fn prepare(
        &mut self,
        model: String,
        snapshot: SnapshotDigest,
        python: String,
        interpreter: Option<String>,
        require_hashes: bool,
    ) {
        let Some(dir) = self.store.find(&snapshot) else {
            let message = "the content has changed meanwhile: this snapshot is gone".to_owned();
            return self.link.tell(FromLauncher::PrepareFailed { snapshot, message, permanent: false });
        };
        let job = PlanJob { model, snapshot: snapshot.clone(), dir, python, interpreter, require_hashes };
        if self.plans.try_send(job).is_err() {
            let message = "too many environments are being asked for: try again".to_owned();
            return self.link.tell(FromLauncher::PrepareFailed { snapshot, message, permanent: false });
        }
        self.state.planning.insert(snapshot);
    }

    /// It is known which environment a snapshot needs.
    pub(super) fn on_planned(&mut self, snapshot: SnapshotDigest, plan: Result<Plan, Failure>) {
        self.state.planning.remove(&snapshot);
        match plan {
            Ok(Plan::Ready(environment)) => self.tell(FromLauncher::Prepared { snapshot, environment }),
            Ok(Plan::Build(plan)) => self.build(snapshot, plan),
            Err(failure) => self.prepare_failed(snapshot, failure),
        }
    }

    /// A build said something.
    pub(super) fn on_build_line(&mut self, key: &EnvironmentKey, line: &str) {
        let Some(waiting) = self.state.waiting.get_mut(key) else { return };
        waiting.lines.push_back(line.to_owned());
        waiting.lines.drain(..waiting.lines.len().saturating_sub(LINES));
        for snapshot in waiting.snapshots.clone() {
            self.tell(FromLauncher::Progress { snapshot, line: line.to_owned() });
        }
    }

    /// A build ended.
    pub(super) fn on_built(&mut self, key: &EnvironmentKey, result: &Result<(), Failure>) {
        for snapshot in self.state.waiting.remove(key).unwrap_or_default().snapshots {
            match result.clone() {
                Ok(()) => self.tell(FromLauncher::Prepared { snapshot, environment: key.clone() }),
                Err(failure) => self.prepare_failed(snapshot, failure),
            }
        }
    }

    fn build(&mut self, snapshot: SnapshotDigest, plan: Box<BuildPlan>) {
        let key = plan.key.clone();
        if let Some(waiting) = self.state.waiting.get_mut(&key) {
            waiting.snapshots.insert(snapshot.clone());
            for line in waiting.lines.clone() {
                self.tell(FromLauncher::Progress { snapshot: snapshot.clone(), line });
            }
        } else if self.builds.try_send(plan).is_ok() {
            let waiting = Waiting { snapshots: BTreeSet::from([snapshot]), lines: VecDeque::new() };
            self.state.waiting.insert(key, waiting);
        } else {
            let message = "too many environments wait to be built: try again later".to_owned();
            self.prepare_failed(snapshot, Failure { message, permanent: false });
        }
    }

    fn prepare_failed(&mut self, snapshot: SnapshotDigest, failure: Failure) {
        let Failure { message, permanent } = failure;
        self.tell(FromLauncher::PrepareFailed { snapshot, message: short(message), permanent });
    }
}
