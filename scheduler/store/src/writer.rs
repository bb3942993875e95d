//! Writer thread: takes the newest state of each model, writes it, and flushes the folder once for all of them.

use super::{PersistedState, file};
use omni_config::name::ModelName;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::sync::watch;

/// Pause between tries while writes fail.
const RETRY: Duration = Duration::from_secs(5);
/// Longest wait of a caller for the disk.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Newest unwritten state of each model: bounded by the number of models.
type Pending = BTreeMap<ModelName, Option<PersistedState>>;

#[derive(Debug, Default)]
struct Queue {
    pending: Pending,
    /// Number of puts so far, and of flushes that retry failed writes.
    requested: u64,
    /// A flush asks to retry the failed writes now.
    retry: bool,
    ending: bool,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    news: Condvar,
    /// Number of requests that were written or failed.
    tried: watch::Sender<u64>,
    /// Some state could not be written at the last try.
    has_failed: AtomicBool,
    /// Error of the last try and the models it affects; an empty list (the folder could not be flushed) means all.
    failure: Mutex<Option<(String, Vec<ModelName>)>>,
}

/// Handle of the thread, which is ended and joined when this is dropped.
#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(dir: &Path) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            news: Condvar::new(),
            tried: watch::Sender::new(0),
            has_failed: AtomicBool::new(false),
            failure: Mutex::default(),
        });
        let (work, dir) = (Arc::clone(&shared), dir.to_owned());
        let thread = thread::Builder::new().name("state".into()).spawn(move || work.run(&dir))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    pub(super) fn put(&self, model: &ModelName, state: Option<PersistedState>) {
        let mut queue = self.shared.queue();
        if queue.ending {
            return; // the files belong to the next scheduler
        }
        queue.pending.insert(model.clone(), state);
        queue.requested += 1;
        self.shared.news.notify_one();
    }

    /// Writes what is pending; failed writes and later puts are dropped.
    pub(super) async fn close(&self) {
        let _ = self.flush().await; // failures are logged
        self.shared.end();
    }

    pub(super) fn has_failed_writes(&self) -> bool {
        self.shared.has_failed.load(Ordering::Acquire)
    }

    /// Returns whether everything queued was tried in time.
    pub(super) async fn flush(&self) -> bool {
        let requested = self.shared.request_flush();
        let mut tried = self.shared.tried.subscribe();
        // A hanging disk must not block the answer to an operator.
        tokio::time::timeout(FLUSH_TIMEOUT, tried.wait_for(|tried| *tried >= requested)).await.is_ok()
    }

    /// Checks that a model's state is written.
    pub(super) async fn persisted(&self, model: &ModelName) -> Result<(), String> {
        if !self.flush().await {
            return Err(format!("the disk has not taken it within {} s", FLUSH_TIMEOUT.as_secs()));
        }
        let failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let own = failure.as_ref().filter(|(_, models)| models.is_empty() || models.contains(model));
        own.map_or(Ok(()), |(error, _)| Err(error.clone()))
    }
}

impl Drop for Writer {
    /// Pending writes are tried once more.
    fn drop(&mut self) {
        self.shared.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it panics nowhere
        }
    }
}

impl Shared {
    fn run(&self, dir: &Path) {
        let (mut failed, mut logged) = (Pending::new(), false);
        while let Some((pending, requested)) = self.next(&mut failed) {
            let (left, error) = write(dir, pending);
            match &error {
                Some(error) if !logged => tracing::error!(
                    folder = %dir.display(), %error,
                    "the state of models cannot be written: the old files stay until it can"
                ),
                None if logged => tracing::info!(folder = %dir.display(), "the state of models is written again"),
                Some(_) | None => {}
            }
            (failed, logged) = (left, error.is_some());
            let failure = error.as_ref().map(|error| (error.to_string(), failed.keys().cloned().collect()));
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
            self.has_failed.store(!failed.is_empty(), Ordering::Release);
            self.tried.send_replace(requested);
        }
    }

    /// Number of requests that a flush has to wait for. Failed writes are retried.
    fn request_flush(&self) -> u64 {
        let mut queue = self.queue();
        if self.has_failed.load(Ordering::Acquire) {
            queue.requested += 1;
            queue.retry = true;
            self.news.notify_one();
        }
        queue.requested
    }

    /// Ends the thread once pending writes were tried.
    fn end(&self) {
        self.queue().ending = true;
        self.news.notify_one();
    }

    /// Next writes, failed ones included; `None` at the end.
    fn next(&self, failed: &mut Pending) -> Option<(Pending, u64)> {
        let mut queue = self.queue();
        loop {
            if std::mem::take(&mut queue.retry) || !queue.pending.is_empty() {
                let mut all = std::mem::take(failed);
                all.append(&mut queue.pending);
                return Some((all, queue.requested));
            }
            if queue.ending {
                return None;
            }
            if failed.is_empty() {
                queue = self.news.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let (woken, waited) = self.news.wait_timeout(queue, RETRY).unwrap_or_else(PoisonError::into_inner);
            queue = woken;
            if waited.timed_out() {
                return Some((std::mem::take(failed), queue.requested));
            }
        }
    }

    /// Locks the queue, which is consistent after every change: a panic elsewhere does not spoil it.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes each state. Returns those that could not be written, and the first error.
fn write(dir: &Path, pending: Pending) -> (Pending, Option<io::Error>) {
    let mut first = None;
    let left = pending.into_iter().filter(|(model, state)| {
        let result = file::write(dir, model, state.as_ref());
        let failed = result.is_err();
        first = first.take().or(result.err());
        failed
    });
    let left = left.collect();
    (left, first.or(file::flush(dir).err()))
}
