//! Order of the steps that are due: owners take turns, and a batch of which a step has failed waits.

use crate::error::JobError;
use crate::lifecycle::{Due, Facts, due};
use crate::table::batches::Stored;
use crate::time::UnixMillis;
use std::collections::HashMap;
use std::time::Duration;

/// Pause after a step that failed.
pub(crate) const RETRY: Duration = Duration::from_secs(30);

/// Steps so far.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Batches of which a step has failed, and when.
    failed: HashMap<i64, UnixMillis>,
    /// Number of the last step of each owner that has more.
    served: HashMap<String, u64>,
    /// Number of the last step.
    steps: u64,
}

impl Progress {
    /// Steps that are due, the next first, and the times at which others are. Of owners with equally many steps before
    /// them, that comes first whose last step is longest ago.
    pub(crate) fn steps(
        &mut self,
        stored: Vec<(Stored, Facts)>,
        now: UnixMillis,
    ) -> (Vec<(Stored, Due)>, Vec<UnixMillis>) {
        self.failed.retain(|_, failed| *failed <= now && now.since(*failed) < RETRY);
        let (mut steps, mut next) = (Vec::new(), Vec::new());
        let mut of_owner: HashMap<String, u64> = HashMap::new();
        for (stored, facts) in stored.into_iter().filter(|(stored, _)| !self.failed.contains_key(&stored.no)) {
            match due(&facts, now) {
                Due::Wait(until) => next.push(until),
                due => {
                    let owner = &stored.batch.owner;
                    let turn = of_owner.entry(owner.clone()).or_default();
                    *turn += 1;
                    let served = self.served.get(owner).copied().unwrap_or_default();
                    steps.push(((*turn, served), stored, due));
                }
            }
        }
        self.served.retain(|owner, _| of_owner.contains_key(owner));
        steps.sort_by_key(|(turn, ..)| *turn);
        (steps.into_iter().map(|(_, stored, due)| (stored, due)).collect(), next)
    }

    /// Notes the end of a step. Returns whether it was done.
    pub(crate) fn record(
        &mut self,
        stored: &Stored,
        result: Result<(), JobError>,
        now: UnixMillis,
    ) -> Result<bool, JobError> {
        self.steps += 1;
        self.served.insert(stored.batch.owner.clone(), self.steps);
        match result {
            Ok(()) => Ok(true),
            Err(JobError::Closed) => Err(JobError::Closed),
            Err(error) => {
                let batch = stored.batch.id;
                tracing::error!(%batch, error = &error as &dyn std::error::Error, "a step of a batch job failed");
                self.failed.insert(stored.no, now);
                Ok(false)
            }
        }
    }

    /// Time at which a step that failed is tried again.
    pub(crate) fn next_retry(&self) -> Option<UnixMillis> {
        self.failed.values().min().map(|failed| failed.after(RETRY))
    }
}
