//! Contents of a model by generation: what each is, what became of its environment, and why it does not serve.
//!
//! Invariant: a digest has one number for as long as it is known, and a number is never given twice.

use crate::model::content::Content;
use omni_control_api::{Preparation, Prepared};
use omni_node_protocol::id::{EnvironmentKey, SnapshotDigest};
use omni_node_protocol::launcher::{BuildKind, BuildStage, WeightsStage};
use omni_policy::{Generation, Moment};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Lines of a build that are kept for `omnictl status`.
const BUILD_LOG: usize = 50;

/// A generation, beside what the policy knows of it.
#[derive(Debug)]
pub(super) struct GenerationInfo {
    pub(super) content: Arc<Content>,
    /// Environment, once it exists.
    pub(super) environment: Option<EnvironmentKey>,
    pub(super) prepare_requested_at: Moment,
    /// Request for the environment, and the moment at which it was there, if this scheduler has waited for it.
    pub(super) prepared: Option<(Moment, Moment)>,
    /// How the last request for it went.
    pub(super) preparation: Option<Preparation>,
    /// Reason why its instances do not do well.
    pub(super) message: Option<String>,
    /// Reason why its last instance got no capacity; `None` once one got some.
    pub(super) shortage: Option<String>,
    /// Stage of the build of its environment.
    pub(super) build: Option<BuildStage>,
    /// Stage of fetching its weights.
    pub(super) weights: Option<WeightsStage>,
    /// The environment was built for the last request for it.
    built: bool,
    /// Bytes of the weights that were on the node when that request began to fetch them, and that were in the end.
    fetched: Option<(u64, u64)>,
    /// Newest lines of that build.
    pub(super) build_log: VecDeque<String>,
}

/// All generations of a model.
#[derive(Debug, Default)]
pub(super) struct Generations {
    known: BTreeMap<Generation, GenerationInfo>,
    last: u32,
}

impl Generations {
    /// The generation of a content: the one that it has, or a new one.
    pub(super) fn register(&mut self, content: Content, now: Moment) -> (Generation, Arc<Content>) {
        if let Some((generation, info)) = self.iter().find(|(_, info)| info.content.snapshot == content.snapshot) {
            return (generation, Arc::clone(&info.content));
        }
        self.last += 1;
        let (generation, content) = (Generation(self.last), Arc::new(content));
        let info = GenerationInfo {
            content: Arc::clone(&content),
            environment: None,
            prepare_requested_at: now,
            prepared: None,
            preparation: None,
            message: None,
            shortage: None,
            build: None,
            weights: None,
            built: false,
            fetched: None,
            build_log: VecDeque::new(),
        };
        self.known.insert(generation, info);
        (generation, content)
    }

    /// The generation with this digest.
    pub(super) fn find(&self, snapshot: &SnapshotDigest) -> Option<Generation> {
        self.iter().find(|(_, info)| info.content.snapshot == *snapshot).map(|(generation, _)| generation)
    }

    pub(super) fn get(&self, generation: Generation) -> Option<&GenerationInfo> {
        self.known.get(&generation)
    }

    pub(super) fn get_mut(&mut self, generation: Generation) -> Option<&mut GenerationInfo> {
        self.known.get_mut(&generation)
    }

    /// All generations, the oldest first.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (Generation, &GenerationInfo)> {
        self.known.iter().map(|(generation, info)| (*generation, info))
    }

    pub(super) fn content(&self, generation: Generation) -> Option<&Arc<Content>> {
        self.known.get(&generation).map(|info| &info.content)
    }

    /// Sets the reason why a generation does not do well; `None`: it does.
    pub(super) fn set_message(&mut self, generation: Generation, message: Option<String>) {
        if let Some(info) = self.known.get_mut(&generation) {
            info.message = message;
        }
    }

    /// Ends preparations whose results will not come: the launcher is lost.
    pub(super) fn end_preparations(&mut self, reason: &str) {
        for info in self.known.values_mut() {
            (info.build, info.weights) = (None, None);
            if info.preparation == Some(Preparation::Underway) {
                info.preparation = Some(Preparation::Failed);
                info.message = Some(reason.to_owned());
            }
        }
    }

    /// Removes a generation of which nothing is left.
    pub(super) fn forget(&mut self, generation: Generation) {
        self.known.remove(&generation);
    }
}

impl GenerationInfo {
    /// Reason why it does not do well: the wait of its build, the progress of its weights, or else its message.
    pub(super) fn reason(&self) -> Option<String> {
        let wait = self.build.as_ref().and_then(build_wait);
        wait.or_else(|| self.weights.map(weights_progress)).or_else(|| self.message.clone())
    }

    /// Begins its preparation: nothing is known of its build and its weights yet.
    pub(super) fn begin_preparation(&mut self, now: Moment) {
        (self.build, self.weights, self.preparation) = (None, None, Some(Preparation::Underway));
        (self.built, self.fetched) = (false, None);
        self.prepare_requested_at = now;
        self.build_log.clear();
    }

    /// Takes the stage of its build.
    pub(super) fn on_build(&mut self, stage: BuildStage) {
        self.built |= matches!(stage, BuildStage::Runs { .. });
        self.build = Some(stage);
    }

    /// Takes the stage of fetching its weights.
    pub(super) fn on_weights(&mut self, stage: WeightsStage) {
        if let WeightsStage::Fetches { done, .. } = stage {
            let (before, until) = self.fetched.unwrap_or((done, done));
            self.fetched = Some((before, until.max(done)));
        }
        self.weights = Some(stage);
    }

    /// Work of its last preparation, once it is done.
    pub(super) fn work(&self) -> Option<Prepared> {
        let (from, until) = self.prepared.filter(|_| self.preparation == Some(Preparation::Done))?;
        let fetched_bytes = self.fetched.map_or(0, |(before, until)| until.saturating_sub(before));
        Some(Prepared { seconds: until.saturating_sub(from).as_secs_f64(), fetched_bytes, built: self.built })
    }

    /// Ends its preparation.
    pub(super) fn end_preparation(&mut self, end: Preparation) {
        (self.build, self.weights, self.preparation) = (None, None, Some(end));
    }

    /// Gives its preparation up: nothing needs it any more.
    pub(super) fn give_up_preparation(&mut self) {
        (self.build, self.weights, self.preparation) = (None, None, None);
    }

    /// Appends a line of its build; the oldest are dropped.
    pub(super) fn push_build_line(&mut self, line: String) {
        if self.build_log.len() == BUILD_LOG {
            self.build_log.pop_front();
        }
        self.build_log.push_back(line);
    }
}

/// Message about a build that waits; `None` for one that runs.
fn build_wait(stage: &BuildStage) -> Option<String> {
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

/// "fetching weights: 1.2 of 4.0 GiB".
fn weights_progress(stage: WeightsStage) -> String {
    match stage {
        WeightsStage::Waits => "fetching weights: waits for the source, or for other models' weights".to_owned(),
        WeightsStage::Fetches { done, total } => {
            let (unit, shift) = if total >= 1 << 30 { ("GiB", 30) } else { ("MiB", 20) };
            // Tenths, rounded down: what is not there yet is not shown.
            let tenths = |bytes: u64| (u128::from(bytes) * 10) >> shift;
            let (done, total) = (tenths(done), tenths(total));
            format!("fetching weights: {}.{} of {}.{} {unit}", done / 10, done % 10, total / 10, total % 10)
        }
    }
}

/// "23:12:05 UTC".
fn time_of_day(unix: u64) -> String {
    let second = unix % 86_400;
    format!("{:02}:{:02}:{:02} UTC", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_config::name::ModelName;
    use omni_config::node::NodeConfig;
    use omni_node_protocol::launcher::Holder;

    fn content(digit: &str) -> Content {
        let name = ModelName::try_from("m".to_owned()).unwrap();
        let snapshot = SnapshotDigest::parse(&digit.repeat(64)).unwrap();
        Content::parse(&name, snapshot, None, &NodeConfig::default()).unwrap()
    }

    #[test]
    fn a_content_keeps_its_number_and_a_number_is_given_once() {
        let mut generations = Generations::default();
        let mut register = |digit| generations.register(content(digit), Moment::ZERO);
        let ((first, kept), (second, _), (again, same)) = (register("1"), register("2"), register("1"));
        assert_eq!((first, second, again), (Generation(1), Generation(2), Generation(1)));
        assert!(Arc::ptr_eq(&kept, &same));
        assert_eq!(generations.find(&content("2").snapshot), Some(second));
        generations.forget(second);
        assert_eq!(generations.find(&content("2").snapshot), None);
        assert_eq!(generations.register(content("2"), Moment::ZERO).0, Generation(3));
    }

    #[test]
    fn the_work_of_a_preparation_is_its_own() {
        let mut generations = Generations::default();
        let (generation, _) = generations.register(content("1"), Moment::ZERO);
        let info = generations.get_mut(generation).unwrap();
        let at = Moment::from_secs;
        let end = |info: &mut GenerationInfo, end| {
            info.prepared = Some((info.prepare_requested_at, at(end)));
            info.end_preparation(Preparation::Done);
        };
        info.begin_preparation(at(10));
        for done in [30, 50, 20, 100] {
            info.on_weights(WeightsStage::Fetches { done, total: 100 });
        }
        info.on_build(BuildStage::Runs { kind: BuildKind::Wheels });
        assert_eq!(info.work(), None, "it is not done");
        end(info, 14);
        assert_eq!(info.work(), Some(Prepared { seconds: 4.0, fetched_bytes: 70, built: true }));
        info.begin_preparation(at(20));
        assert_eq!(info.work(), None);
        info.on_weights(WeightsStage::Waits);
        end(info, 20);
        assert_eq!(info.work(), Some(Prepared { seconds: 0.0, fetched_bytes: 0, built: false }));
    }

    #[test]
    fn the_newest_lines_of_a_build_are_kept() {
        let mut generations = Generations::default();
        let (generation, _) = generations.register(content("1"), Moment::ZERO);
        let info = generations.get_mut(generation).unwrap();
        (0..BUILD_LOG + 2).for_each(|line| info.push_build_line(line.to_string()));
        assert_eq!((info.build_log.len(), info.build_log.front().map(String::as_str)), (BUILD_LOG, Some("2")));
    }

    #[test]
    fn progress_of_weights_is_shown_in_the_unit_of_the_whole() {
        let shown = |done, total| weights_progress(WeightsStage::Fetches { done, total });
        assert_eq!(shown((12 << 30) / 10, 4 << 30), "fetching weights: 1.1 of 4.0 GiB");
        assert_eq!(shown(0, 300 << 20), "fetching weights: 0.0 of 300.0 MiB");
        assert_eq!(shown((1 << 40) - 1, 1 << 40), "fetching weights: 1023.9 of 1024.0 GiB");
        assert!(shown(u64::MAX, u64::MAX).ends_with("GiB"));
    }

    #[test]
    fn a_waiting_build_is_explained_by_the_models_that_have_the_places() {
        let holder = |model: &str, since_unix| Holder { model: model.to_owned(), since_unix };
        let waits = |holders| BuildStage::Waits { kind: BuildKind::Source, since_unix: 86_400 * 3 + 3_725, holders };
        assert_eq!(
            build_wait(&waits(vec![holder("slow", 60), holder("@cf/a/b", 86_399)])).unwrap(),
            "waits for a place to build packages from source since 01:02:05 UTC; the places are taken by slow since \
             00:01:00 UTC, @cf/a/b since 23:59:59 UTC"
        );
        assert!(build_wait(&waits(Vec::new())).unwrap().ends_with("taken by other models"));
        assert_eq!(build_wait(&BuildStage::Runs { kind: BuildKind::Wheels }), None);
    }
}
