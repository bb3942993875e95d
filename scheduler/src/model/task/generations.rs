//! The contents of a model, by generation: what each is, what came of its environment, and why it does not serve.
//!
//! The model's task numbers contents as it first sees them, by their digest. What always holds: a digest has one number
//! for as long as it is known, and a number is never given twice.

use super::environment::wait_in_words;
use crate::model::content::Content;
use omni_node_protocol::id::{EnvironmentKey, SnapshotDigest};
use omni_node_protocol::launcher::BuildStage;
use omni_policy::Generation;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// Lines of a build that are kept for `omnictl status`.
const BUILD_LOG: usize = 50;

/// What is known of a generation beside the policy.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) content: Arc<Content>,
    /// Once it was made.
    pub(super) environment: Option<EnvironmentKey>,
    pub(super) prepare_asked: Instant,
    /// Why its instances do not do well, in words.
    pub(super) message: Option<String>,
    /// Why the last of its instances that asked for room got none; `None` once one got some.
    pub(super) no_room: Option<String>,
    /// The stage of its environment's build, while there is one.
    pub(super) build: Option<BuildStage>,
    /// The newest lines of its environment's build.
    pub(super) build_log: VecDeque<String>,
}

/// All that the task knows.
#[derive(Debug, Default)]
pub(super) struct Generations {
    known: BTreeMap<Generation, Known>,
    given: u32,
}

impl Generations {
    /// The generation of this content, the one that it has or a new one, and what is kept of it.
    pub(super) fn of(&mut self, content: Content) -> (Generation, Arc<Content>) {
        let known = self.iter().find(|(_, known)| known.content.snapshot == content.snapshot);
        if let Some((generation, known)) = known {
            return (generation, Arc::clone(&known.content));
        }
        self.given += 1;
        let (generation, content) = (Generation(self.given), Arc::new(content));
        let known = Known {
            content: Arc::clone(&content),
            environment: None,
            prepare_asked: Instant::now(),
            message: None,
            no_room: None,
            build: None,
            build_log: VecDeque::new(),
        };
        self.known.insert(generation, known);
        (generation, content)
    }

    /// The generation with this digest.
    pub(super) fn find(&self, snapshot: &SnapshotDigest) -> Option<Generation> {
        self.known.iter().find(|(_, known)| known.content.snapshot == *snapshot).map(|(generation, _)| *generation)
    }

    pub(super) fn get(&self, generation: Generation) -> Option<&Known> {
        self.known.get(&generation)
    }

    pub(super) fn get_mut(&mut self, generation: Generation) -> Option<&mut Known> {
        self.known.get_mut(&generation)
    }

    /// All, the oldest first.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (Generation, &Known)> {
        self.known.iter().map(|(generation, known)| (*generation, known))
    }

    pub(super) fn content(&self, generation: Generation) -> Option<&Arc<Content>> {
        self.known.get(&generation).map(|known| &known.content)
    }

    /// Says why a generation does not do well, or (`None`) that it does.
    pub(super) fn say(&mut self, generation: Generation, message: Option<String>) {
        if let Some(known) = self.known.get_mut(&generation) {
            known.message = message;
        }
    }

    /// The launcher is lost: nothing is known of builds.
    pub(super) fn forget_builds(&mut self) {
        self.known.values_mut().for_each(|known| known.build = None);
    }

    /// Nothing of it is left.
    pub(super) fn forget(&mut self, generation: Generation) {
        self.known.remove(&generation);
    }
}

impl Known {
    /// Why it does not do well: what its environment waits for, else what was said last.
    pub(super) fn told(&self) -> Option<String> {
        self.build.as_ref().and_then(wait_in_words).or_else(|| self.message.clone())
    }

    /// A line of the environment's build; the oldest go.
    pub(super) fn built(&mut self, line: String) {
        if self.build_log.len() == BUILD_LOG {
            self.build_log.pop_front();
        }
        self.build_log.push_back(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_config::name::ModelName;
    use omni_config::node::NodeConfig;

    fn content(digit: &str) -> Content {
        let name = ModelName::try_from("m".to_owned()).unwrap();
        let snapshot = SnapshotDigest::parse(&digit.repeat(64)).unwrap();
        Content::parse(&name, snapshot, None, &NodeConfig::default()).unwrap()
    }

    #[test]
    fn a_content_keeps_its_number_and_a_number_is_given_once() {
        let mut generations = Generations::default();
        let (first, kept) = generations.of(content("1"));
        let (second, _) = generations.of(content("2"));
        let (again, same) = generations.of(content("1"));
        assert_eq!((first, second, again), (Generation(1), Generation(2), Generation(1)));
        assert!(Arc::ptr_eq(&kept, &same));
        assert_eq!(generations.find(&content("2").snapshot), Some(second));
        generations.forget(second);
        assert_eq!(generations.find(&content("2").snapshot), None);
        assert_eq!(generations.of(content("2")).0, Generation(3));
    }

    #[test]
    fn a_build_keeps_its_newest_lines() {
        let mut generations = Generations::default();
        let (generation, _) = generations.of(content("1"));
        let known = generations.get_mut(generation).unwrap();
        (0..BUILD_LOG + 2).for_each(|line| known.built(line.to_string()));
        assert_eq!((known.build_log.len(), known.build_log.front().map(String::as_str)), (BUILD_LOG, Some("2")));
    }
}
