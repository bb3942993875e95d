//! Texts of models, read from their files once for each content.
//!
//! ```text
//!  of ──▶ kept?  ──▶ read: the directory's files, then those of the weights ──▶ kept
//!                              │
//!                              └─ the weights are not on the node yet: nothing is kept
//! ```
//!
//! A content is read by one thread at a time, whoever asks for it: a folder whose file system does not answer takes no more than
//! that. What could not be used is not read again for [`PAUSE`].

use crate::text_model::{OwnFiles, TextModel, TextModelError};
use omni_launcher_client::{LauncherHandle, NodeFiles};
use omni_node_protocol::id::SnapshotDigest;
use omni_request_error::Failure;
use omni_supervisor::model::content::Content;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex as Turns, OwnedMutexGuard, oneshot};
use tokio::time::timeout_at;

/// Most contents whose texts are kept. Templates take some hundred kilobytes each.
const MOST: usize = 256;
/// Advice of a refusal while the launcher does not answer.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Time for which files that cannot be used are not read again.
const PAUSE: Duration = Duration::from_secs(5);

/// Contents whose files were read.
#[derive(Debug)]
pub(crate) struct Templates {
    launcher: LauncherHandle,
    contents: Mutex<HashMap<SnapshotDigest, Slot>>,
}

/// State of a content.
#[derive(Debug, Clone, Default)]
struct Slot {
    loaded: Option<Arc<TextModel>>,
    /// Held while its files are read; the end of the pause after files that could not be used.
    turns: Arc<Turns<Option<Instant>>>,
}

/// Result of a thread that has read.
type Read = Result<TextModel, TextModelError>;

impl Templates {
    pub(crate) fn new(launcher: LauncherHandle) -> Self {
        Self { launcher, contents: Mutex::default() }
    }

    /// Texts of a content, read at its first request; `None`: they are in its weights, and those are not on the node, or have no
    /// template. Whether they are weights at all is known when an instance has loaded them (`is_loaded`). `on_fault` gets a
    /// message for the model's author when the files cannot be used.
    ///
    /// # Errors
    /// The launcher does not answer, or the files cannot be used.
    pub(crate) async fn of(
        &self,
        content: &Content,
        (deadline, is_loaded): (Instant, bool),
        on_fault: impl FnOnce(String),
    ) -> Result<Option<Arc<TextModel>>, Failure> {
        let slot = self.slot(&content.snapshot);
        if let Some(loaded) = slot.loaded {
            return Ok(Some(loaded));
        }
        let paused = timeout_at(deadline.into(), slot.turns.lock_owned()).await.map_err(|_| Failure::Deadline)?;
        // Another request may have read them meanwhile.
        if let Some(loaded) = self.slot(&content.snapshot).loaded {
            return Ok(Some(loaded));
        }
        if paused.is_some_and(|until| until > Instant::now()) {
            return Err(Failure::Raised);
        }
        let own = timeout_at(deadline.into(), self.own_files(content)).await.map_err(|_| Failure::Deadline)??;
        let manifest = content.manifest.clone();
        let (own, paused) = aside(paused, move || OwnFiles::read(&own, &manifest)).await?;
        let (read, paused) = match own {
            Ok(OwnFiles::Complete(texts)) => (TextModel::new(texts, &content.manifest), paused),
            Ok(OwnFiles::Incomplete(texts)) => {
                let weights = timeout_at(deadline.into(), self.weights_files(content)).await;
                let Some(weights) = weights.map_err(|_| Failure::Deadline)?? else { return Ok(None) };
                let manifest = content.manifest.clone();
                let read = aside(paused, move || TextModel::new(texts.with_weights(&weights)?, &manifest)).await?;
                if !is_loaded && read.0.as_ref().is_ok_and(|model| model.template.is_none()) {
                    return Ok(None);
                }
                read
            }
            Err(error) => (Err(error), paused),
        };
        self.keep(content, read, paused, on_fault).map(Some)
    }

    fn keep(
        &self,
        content: &Content,
        read: Read,
        mut paused: OwnedMutexGuard<Option<Instant>>,
        on_fault: impl FnOnce(String),
    ) -> Result<Arc<TextModel>, Failure> {
        match read {
            Ok(model) => {
                let model = Arc::new(model);
                let slot = Slot { loaded: Some(Arc::clone(&model)), ..Slot::default() };
                self.with_contents(|contents| contents.insert(content.snapshot.clone(), slot));
                Ok(model)
            }
            Err(error) => {
                let error = omni_log::chain(&error).to_string();
                tracing::warn!(snapshot = %content.snapshot, error, "the chat template cannot be used");
                *paused = Some(Instant::now() + PAUSE);
                on_fault(error);
                Err(Failure::Raised)
            }
        }
    }

    async fn own_files(&self, content: &Content) -> Result<NodeFiles, Failure> {
        let files = self.launcher.open_files(&content.snapshot).map_err(|_| unavailable())?;
        files.await.map_err(|_| unavailable())
    }

    async fn weights_files(&self, content: &Content) -> Result<Option<NodeFiles>, Failure> {
        let Some(place) = content.weights_place() else { return Ok(None) };
        let files = self.launcher.open_weights(&content.snapshot, place).map_err(|_| unavailable())?;
        files.await.map_err(|_| unavailable())
    }

    fn slot(&self, snapshot: &SnapshotDigest) -> Slot {
        self.with_contents(|contents| {
            if let Some(slot) = contents.get(snapshot) {
                return slot.clone();
            }
            if contents.len() >= MOST {
                contents.clear(); // read again by their next requests
            }
            contents.entry(snapshot.clone()).or_default().clone()
        })
    }

    fn with_contents<T>(&self, with: impl FnOnce(&mut HashMap<SnapshotDigest, Slot>) -> T) -> T {
        with(&mut self.contents.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Advice to come back.
pub(crate) fn unavailable() -> Failure {
    Failure::CannotStart { retry_after: RETRY_AFTER }
}

/// Reads and compiles on a thread of its own, which takes milliseconds, or for ever where a file system does not answer: the
/// threads of the runtime are not to wait for that, nor is its end. The turn is held until it ends, whether its request still
/// waits or not.
async fn aside<T: Send + 'static>(
    turn: OwnedMutexGuard<Option<Instant>>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<(T, OwnedMutexGuard<Option<Instant>>), Failure> {
    let (sender, done) = oneshot::channel();
    let run = move || drop(sender.send((work(), turn))); // or its request is gone
    thread::Builder::new().name("template".to_owned()).spawn(run).map_err(|_| unavailable())?;
    done.await.map_err(|_| unavailable())
}
