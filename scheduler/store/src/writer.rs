//! The thread that writes: takes the newest of each model, writes it, flushes the folder once for all of them.

use super::{Lasting, file};
use omni_config::name::ModelName;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::sync::watch;

/// Between tries while the disk refuses.
const AGAIN: Duration = Duration::from_secs(5);
/// Longest wait for the disk of who asks whether all is written.
const PATIENCE: Duration = Duration::from_secs(2);

/// The newest of each model that is not written yet: bounded by the models.
type Pending = BTreeMap<ModelName, Option<Lasting>>;

#[derive(Debug, Default)]
struct Queue {
    pending: Pending,
    /// Puts so far, and questions whether all is written.
    asked: u64,
    /// Somebody wants to know whether what was refused can be written now.
    again: bool,
    ending: bool,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    news: Condvar,
    /// So many of what was asked were written, or failed.
    tried: watch::Sender<u64>,
    /// Some could not be written, the last time they were tried.
    refused: AtomicBool,
    /// Why, and which; none where the folder could not be flushed, which is all of them.
    why: Mutex<Option<(String, Vec<ModelName>)>>,
}

/// The thread, ended and waited for with this value.
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
            refused: AtomicBool::new(false),
            why: Mutex::default(),
        });
        let (work, dir) = (Arc::clone(&shared), dir.to_owned());
        let thread = thread::Builder::new().name("state".into()).spawn(move || work.run(&dir))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    pub(super) fn put(&self, model: &ModelName, lasting: Option<Lasting>) {
        let mut queue = self.shared.queue();
        if queue.ending {
            return; // another scheduler writes these files
        }
        queue.pending.insert(model.clone(), lasting);
        queue.asked += 1;
        self.shared.news.notify_one();
    }

    /// The last word: what is pending is written, what cannot be is dropped, and so is what comes later.
    pub(super) async fn close(&self) {
        let _ = self.settled().await; // the log has it
        self.shared.end();
    }

    pub(super) fn is_refused(&self) -> bool {
        self.shared.refused.load(Ordering::Acquire)
    }

    pub(super) async fn settled(&self) -> bool {
        let asked = self.shared.ask();
        let mut tried = self.shared.tried.subscribe();
        // A disk that hangs must not keep people from their answer.
        tokio::time::timeout(PATIENCE, tried.wait_for(|tried| *tried >= asked)).await.is_ok()
    }

    /// Returns why what was put of a model is not written, if so.
    pub(super) async fn kept(&self, model: &ModelName) -> Result<(), String> {
        if !self.settled().await {
            return Err(format!("the disk has not taken it within {} s", PATIENCE.as_secs()));
        }
        let why = self.shared.why.lock().unwrap_or_else(PoisonError::into_inner);
        let own = why.as_ref().filter(|(_, models)| models.is_empty() || models.contains(model));
        own.map_or(Ok(()), |(error, _)| Err(error.clone()))
    }
}

impl Drop for Writer {
    /// What is pending is still tried once.
    fn drop(&mut self) {
        self.shared.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it panics nowhere
        }
    }
}

impl Shared {
    fn run(&self, dir: &Path) {
        let (mut refused, mut told) = (Pending::new(), false);
        while let Some((pending, asked)) = self.next(&mut refused) {
            let (left, error) = write(dir, pending);
            match &error {
                Some(error) if !told => tracing::error!(
                    folder = %dir.display(), %error,
                    "what models remember cannot be written: the old files stay until it can"
                ),
                None if told => tracing::info!(folder = %dir.display(), "what models remember is written again"),
                Some(_) | None => {}
            }
            (refused, told) = (left, error.is_some());
            let why = error.as_ref().map(|error| (error.to_string(), refused.keys().cloned().collect()));
            *self.why.lock().unwrap_or_else(PoisonError::into_inner) = why;
            self.refused.store(!refused.is_empty(), Ordering::Release);
            self.tried.send_replace(asked);
        }
    }

    /// What was tried by then. What is refused is tried again.
    fn ask(&self) -> u64 {
        let mut queue = self.queue();
        if self.refused.load(Ordering::Acquire) {
            queue.asked += 1;
            queue.again = true;
            self.news.notify_one();
        }
        queue.asked
    }

    /// The thread ends once what is pending was tried.
    fn end(&self) {
        self.queue().ending = true;
        self.news.notify_one();
    }

    /// What is to be written, the refused with it; `None` at the end.
    fn next(&self, refused: &mut Pending) -> Option<(Pending, u64)> {
        let mut queue = self.queue();
        loop {
            if std::mem::take(&mut queue.again) || !queue.pending.is_empty() {
                let mut all = std::mem::take(refused);
                all.append(&mut queue.pending);
                return Some((all, queue.asked));
            }
            if queue.ending {
                return None;
            }
            if refused.is_empty() {
                queue = self.news.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let (again, waited) = self.news.wait_timeout(queue, AGAIN).unwrap_or_else(PoisonError::into_inner);
            queue = again;
            if waited.timed_out() {
                return Some((std::mem::take(refused), queue.asked));
            }
        }
    }

    /// The queue is whole after every change to it.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes each; what could not be written, and the first reason.
fn write(dir: &Path, pending: Pending) -> (Pending, Option<io::Error>) {
    let mut first = None;
    let left = pending.into_iter().filter(|(model, lasting)| {
        let result = file::write(dir, model, lasting.as_ref());
        let failed = result.is_err();
        first = first.take().or(result.err());
        failed
    });
    let left = left.collect();
    (left, first.or(file::flush(dir).err()))
}
