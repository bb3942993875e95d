//! Checks of the files of a content that the node itself reads, before the content reaches its model.
//!
//! ```text
//! report ──▶ running ──▶ finished: the content, or the reason why it is refused
//!               │
//!               └─ a newer report of the same directory ──▶ superseded: its result is dropped
//! ```
//!
//! A launcher that does not answer in time is no reason to refuse a content: the files are read again at its first request.

use crate::model::content::{Content, Unservable};
use omni_config::manifest::{Kind, Manifest};
use omni_config::name::ModelName;
use omni_launcher_client::{LauncherHandle, NodeFiles};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::{AbortHandle, JoinSet};

/// Time for the launcher to open the files.
const PATIENCE: Duration = Duration::from_secs(5);

/// Check of the files of a content with its manifest, on a thread of its own. The error is for the model's author.
pub type ContentCheck = fn(&NodeFiles, &Manifest) -> Result<(), String>;

/// Checks that run.
pub(super) struct ContentChecks {
    check: ContentCheck,
    running: JoinSet<Checked>,
    /// The newest check of each model, by the id of its task.
    newest: BTreeMap<ModelName, AbortHandle>,
}

/// Content that was checked.
pub(super) struct Checked {
    pub(super) name: ModelName,
    pub(super) content: Result<Box<Content>, Unservable>,
}

impl ContentChecks {
    pub(super) fn new(check: ContentCheck) -> Self {
        Self { check, running: JoinSet::new(), newest: BTreeMap::new() }
    }

    /// Tests that the node reads files of the content.
    pub(super) fn concerns(content: &Content) -> bool {
        content.manifest.model.kind == Kind::TextGeneration
    }

    /// Starts the check of a model's newest content.
    pub(super) fn start(&mut self, name: ModelName, content: Box<Content>, launcher: &LauncherHandle) {
        let files = launcher.open_files(&content.snapshot);
        let check = self.check;
        let of = name.clone();
        let task = self.running.spawn(async move {
            let files = match files {
                Ok(files) => tokio::time::timeout(PATIENCE, files).await.ok().and_then(Result::ok),
                Err(_) => None,
            };
            let Some(files) = files else { return Checked { name: of, content: Ok(content) } };
            let manifest = content.manifest.clone();
            let checked = tokio::task::spawn_blocking(move || check(&files, &manifest)).await;
            let content = match checked {
                Ok(Err(message)) => Err(Unservable { snapshot: Some(content.snapshot), message }),
                Ok(Ok(())) | Err(_) => Ok(content),
            };
            Checked { name: of, content }
        });
        self.supersede(&name);
        self.newest.insert(name, task);
    }

    /// Drops the result of a model's check, for something newer.
    pub(super) fn supersede(&mut self, name: &ModelName) {
        if let Some(task) = self.newest.remove(name) {
            task.abort();
        }
    }

    /// Drops the results of all checks.
    pub(super) fn clear(&mut self) {
        self.running.abort_all();
        self.newest.clear();
    }

    /// Tests that no check runs.
    pub(super) fn is_empty(&self) -> bool {
        self.newest.is_empty()
    }

    /// The next content that was checked; waits for ever while no check runs.
    pub(super) async fn next(&mut self) -> Checked {
        loop {
            match self.running.join_next_with_id().await {
                Some(Ok((id, checked))) => {
                    if self.newest.get(&checked.name).is_some_and(|task| task.id() == id) {
                        self.newest.remove(&checked.name);
                        return checked;
                    }
                }
                Some(Err(_)) => {} // superseded
                None => std::future::pending().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_config::node::NodeConfig;
    use omni_launcher_client::testing::launcher;
    use omni_node_protocol::id::SnapshotDigest;

    fn content(digit: &str, kind: &str) -> Box<Content> {
        let text = format!("[model]\nkind = \"{kind}\"\n");
        let snapshot = SnapshotDigest::parse(&digit.repeat(64)).unwrap();
        Box::new(Content::parse(&name(), snapshot, Some(text), &NodeConfig::default()).unwrap())
    }

    fn name() -> ModelName {
        "model".parse().unwrap()
    }

    #[test]
    fn contents_that_generate_text_are_checked() {
        assert!(ContentChecks::concerns(&content("0", "text-generation")));
        assert!(!ContentChecks::concerns(&content("0", "embeddings")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_launcher_that_does_not_answer_refuses_nothing() {
        let (handle, messages) = launcher();
        let mut checks = ContentChecks::new(|_, _| Err("never called".to_owned()));
        checks.start(name(), content("0", "text-generation"), &handle);
        assert!(!checks.is_empty());
        assert!(checks.next().await.content.is_ok() && checks.is_empty());
        drop(messages);
        checks.start(name(), content("1", "text-generation"), &handle);
        assert!(checks.next().await.content.is_ok() && checks.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_result_of_an_older_content_is_dropped() {
        let (handle, _messages) = launcher();
        let mut checks = ContentChecks::new(|_, _| Ok(()));
        checks.start(name(), content("0", "text-generation"), &handle);
        checks.start(name(), content("1", "text-generation"), &handle);
        let newest = checks.next().await.content.unwrap();
        assert!(newest.snapshot.as_str().starts_with('1') && checks.is_empty());
        checks.start(name(), content("2", "text-generation"), &handle);
        checks.supersede(&name());
        assert!(checks.is_empty());
        assert!(tokio::time::timeout(2 * PATIENCE, checks.next()).await.is_err());
    }
}
