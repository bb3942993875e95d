//! The environments of the model's contents: asked of the launcher, and what is heard of their builds.

use super::ModelTask;
use crate::clock::unix_ms;
use omni_config::Foreign;
use omni_control_api as api;
use omni_node_protocol::id::{EnvironmentKey, SnapshotDigest};
use omni_node_protocol::launcher::{BuildKind, BuildStage, Holder};
use omni_policy::Generation;
use omni_policy::fleet::{Event, StartState};
use omni_request_error::BuildProgress;
use std::time::{Duration, Instant};

impl ModelTask {
    /// Asks for the environment of a generation.
    pub(super) fn prepare(&mut self, generation: Generation) {
        let Some(known) = self.generations.get_mut(generation) else { return };
        known.prepare_asked = Instant::now();
        known.build_log.clear();
        known.build = None;
        let Some(inbox) = self.own_inbox.upgrade() else { return };
        if let Err(away) = self.launcher.prepare(&self.model.name, &known.content, &inbox) {
            known.message = Some(away.to_string());
            self.event(&Event::LauncherUnavailable { generation, instance: None });
        }
    }

    /// The environment of a generation is not needed any more.
    pub(super) fn unprepare(&mut self, generation: Generation) {
        let Some(known) = self.generations.get_mut(generation) else { return };
        known.build = None;
        if let Some(inbox) = self.own_inbox.upgrade() {
            self.launcher.unprepare(&self.model.name, &known.content, &inbox);
        }
    }

    /// The environment is there.
    pub(super) fn prepared(&mut self, snapshot: &SnapshotDigest, environment: EnvironmentKey) {
        let Some(generation) = self.generations.find(snapshot) else { return };
        if let Some(known) = self.generations.get_mut(generation) {
            self.model.metrics.prepare.observe(known.prepare_asked.elapsed().as_secs_f64());
            known.environment = Some(environment);
            known.build = None;
        }
        self.event(&Event::Prepared(generation));
    }

    /// A failed build; `after` is the least pause of one that timed out.
    pub(super) fn prepare_failed(
        &mut self,
        snapshot: &SnapshotDigest,
        message: String,
        permanent: bool,
        after: Option<Duration>,
    ) {
        let Some(generation) = self.generations.find(snapshot) else { return };
        if let Some(known) = self.generations.get_mut(generation) {
            (known.message, known.build) = (Some(message), None);
        }
        self.event(&match after {
            Some(after) => Event::PrepareTimedOut { generation, after },
            None => Event::PrepareFailed { generation, permanent },
        });
    }

    /// The build of an environment is there now.
    pub(super) fn build_is_at(&mut self, snapshot: &SnapshotDigest, stage: BuildStage) {
        let Some(generation) = self.generations.find(snapshot) else { return };
        let Some(known) = self.generations.get_mut(generation) else { return };
        if let BuildStage::Waits { kind, holders, .. } = &stage {
            tracing::info!(model = %self.model.name, ?kind, holders = names(holders), "waits for a place to build its environment");
        }
        known.build = Some(stage);
        self.publish();
    }

    /// A line of an environment's build: the newest are shown with the model's state, and its log has them all.
    pub(super) fn built(&mut self, snapshot: &SnapshotDigest, text: String) {
        let Some(generation) = self.generations.find(snapshot) else { return };
        let Some(known) = self.generations.get_mut(generation) else { return };
        known.built(text.clone());
        self.publish();
        let unix_ms = unix_ms();
        tracing::info!(target: omni_log::MODEL, model = %self.model.name, stream = "build", "{}", Foreign(&text));
        let (instance, stream, request_id) = (String::new(), "build".to_owned(), None);
        self.model.logs.push(api::LogEntry { unix_ms, instance, stream, request_id, text });
    }

    /// The stage of the build that requests wait for.
    pub(super) fn build(&self) -> Option<BuildProgress> {
        let serving =
            self.fleet.serving().filter(|serving| self.fleet.start_state(*serving) == Some(StartState::Preparing));
        match self.generations.get(serving?)?.build.as_ref()? {
            BuildStage::Waits { .. } => Some(BuildProgress::Queued),
            BuildStage::Runs { .. } => Some(BuildProgress::Running),
        }
    }
}

/// The wait of a build in words; `None` for one that runs.
pub(super) fn wait_in_words(stage: &BuildStage) -> Option<String> {
    let BuildStage::Waits { kind, since_unix, holders } = stage else { return None };
    let what = match kind {
        BuildKind::Wheels => "install packages",
        BuildKind::Source => "build packages from source",
    };
    let taken: Vec<String> =
        holders.iter().map(|holder| format!("{} since {}", holder.model, time_of_day(holder.since_unix))).collect();
    let taken = if taken.is_empty() { "other models".to_owned() } else { taken.join(", ") };
    Some(format!("waits for a place to {what} since {}; the places are taken by {taken}", time_of_day(*since_unix)))
}

fn names(holders: &[Holder]) -> String {
    holders.iter().map(|holder| holder.model.as_str()).collect::<Vec<_>>().join(", ")
}

/// "23:12:05 UTC".
fn time_of_day(unix: u64) -> String {
    let second = unix % 86_400;
    format!("{:02}:{:02}:{:02} UTC", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_build_waits_for_is_said_with_its_holders() {
        let holder = |model: &str, since_unix| Holder { model: model.to_owned(), since_unix };
        let waits = |holders| BuildStage::Waits { kind: BuildKind::Source, since_unix: 86_400 * 3 + 3_725, holders };
        assert_eq!(
            wait_in_words(&waits(vec![holder("slow", 60), holder("@cf/a/b", 86_399)])).unwrap(),
            "waits for a place to build packages from source since 01:02:05 UTC; the places are taken by slow since \
             00:01:00 UTC, @cf/a/b since 23:59:59 UTC"
        );
        assert!(wait_in_words(&waits(Vec::new())).unwrap().ends_with("taken by other models"));
        assert_eq!(wait_in_words(&BuildStage::Runs { kind: BuildKind::Wheels }), None);
    }
}
