//! Export of spans: a bounded queue, and a thread that delivers them to a collector.
//!
//! ```text
//!   request ──send──▶ queue ──up to a batch, after a second at most──▶ collector
//!              │ full                                    │ refused, or not there after some attempts
//!              └──────────────▶ counted as lost ◀────────┘
//! ```
//!
//! Invariant: each span that is sent is delivered or counted as lost, once; nobody who sends one waits for the
//! collector.

use crate::otlp;
use crate::resource::Resource;
use crate::span::Span;
use omni_log::chain;
use omni_sink::{PostError, SinkClient};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use std::{fs, io};

/// Most spans that wait: some megabytes.
const MOST: usize = 8192;
/// Most spans of a delivery.
const BATCH: usize = 512;
/// Time in which further spans may join a delivery.
const LINGER: Duration = Duration::from_secs(1);
/// Attempts at a delivery before its spans are lost.
const ATTEMPTS: u32 = 4;
/// First pause after a failure; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause that a collector can ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Time at the end of the process for what still waits.
const LAST: Duration = Duration::from_secs(2);
/// Longest file of headers, in bytes, and most headers in it.
const LONGEST_HEADERS: (usize, usize) = (64 * 1024, 32);

/// Collector, and what it is told of this process.
#[derive(Debug)]
pub struct ExportSettings {
    /// Client of the collector.
    pub client: SinkClient,
    /// Headers that the collector wants.
    pub headers: Option<ExportHeaders>,
    /// Description of the process.
    pub resource: Resource,
}

/// File of headers for the collector, such as its token: lines of `name: value`, read for each delivery.
#[derive(Debug)]
pub struct ExportHeaders {
    path: PathBuf,
}

/// A file of headers that cannot be used. Its content is in no message.
#[derive(Debug, thiserror::Error)]
pub enum InvalidHeaders {
    /// The file cannot be read.
    #[error("{}: cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A line that is none, counted from 1.
    #[error("{}: line {line} is no header: write `name: value`", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
    },
    /// Too many of them.
    #[error("{}: there are too many headers, or they are too long", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
}

impl ExportHeaders {
    /// The headers of a file.
    ///
    /// # Errors
    /// The file cannot be read, or has a line that is no header.
    pub fn open(path: PathBuf) -> Result<Self, InvalidHeaders> {
        let headers = Self { path };
        headers.read().map(|_| headers)
    }

    fn read(&self) -> Result<Vec<(String, String)>, InvalidHeaders> {
        let path = || self.path.clone();
        let text = fs::read_to_string(&self.path).map_err(|source| InvalidHeaders::Read { path: path(), source })?;
        headers_of(&self.path, &text)
    }
}

fn headers_of(path: &Path, text: &str) -> Result<Vec<(String, String)>, InvalidHeaders> {
    let (longest, most) = LONGEST_HEADERS;
    let mut headers = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let parts = line.split_once(':').map(|(name, value)| (name.trim(), value.trim()));
        let is_name = |name: &str| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        };
        let is_value =
            |value: &str| !value.is_empty() && value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        let Some((name, value)) = parts.filter(|(name, value)| is_name(name) && is_value(value)) else {
            return Err(InvalidHeaders::Line { path: path.to_owned(), line: at + 1 });
        };
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    if text.len() > longest || headers.len() > most {
        return Err(InvalidHeaders::TooLong { path: path.to_owned() });
    }
    Ok(headers)
}

/// Counts of spans since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpanCounts {
    /// Spans that a collector has taken.
    pub exported: u64,
    /// Spans that were lost: the queue was full, or the collector did not take them.
    pub lost: u64,
}

/// Exporter of a process. When it is dropped, what waits is delivered if that is done at once.
#[derive(Debug)]
pub(crate) struct Exporter {
    shared: Arc<Shared>,
    /// Disconnected once the thread has ended.
    ended: Mutex<Receiver<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    news: Condvar,
    exported: AtomicU64,
    lost: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    spans: VecDeque<Span>,
    /// Since when the first of them waits.
    since: Option<Instant>,
    ending: bool,
}

impl Exporter {
    /// Begins to deliver to a collector.
    pub(crate) fn start(settings: ExportSettings) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let (ends, ended) = sync_channel(1);
        let delivery = Delivery { settings, shared: Arc::clone(&shared), failed: false, _ends: ends };
        thread::Builder::new().name("traces".into()).spawn(move || delivery.run())?;
        Ok(Self { shared, ended: Mutex::new(ended) })
    }

    /// Queues a span; without room it is lost.
    pub(crate) fn send(&self, span: Span) {
        let mut queue = self.shared.queue();
        if queue.spans.len() >= MOST || queue.ending {
            drop(queue);
            self.shared.lose(1);
            return;
        }
        queue.spans.push_back(span);
        let count = queue.spans.len();
        if count == 1 {
            queue.since = Some(Instant::now());
        }
        drop(queue);
        if count == 1 || count == BATCH {
            self.shared.news.notify_one();
        }
    }

    pub(crate) fn counts(&self) -> SpanCounts {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        SpanCounts { exported: load(&self.shared.exported), lost: load(&self.shared.lost) }
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.shared.queue().ending = true;
        self.shared.news.notify_one();
        // The end is the sender's drop. A collector that does not answer is left alone.
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = ended.recv_timeout(LAST);
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lose(&self, count: u64) {
        self.lost.fetch_add(count, Ordering::Relaxed);
    }

    /// Waits for a batch; `None`: nothing is left at the end.
    fn next_batch(&self) -> Option<Vec<Span>> {
        let mut queue = self.queue();
        loop {
            let left = queue.since.map(|since| LINGER.saturating_sub(since.elapsed()));
            let is_due = queue.spans.len() >= BATCH || left == Some(Duration::ZERO);
            queue = match left {
                None if queue.ending => return None,
                Some(_) if is_due || queue.ending => break,
                None => self.news.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(left) => self.news.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
        let count = queue.spans.len().min(BATCH);
        let batch = queue.spans.drain(..count).collect();
        if queue.spans.is_empty() {
            queue.since = None;
        }
        Some(batch)
    }

    /// Waits for this time. Returns `false` at the end of the process, which comes first.
    fn pause(&self, time: Duration) -> bool {
        let waits = |queue: &mut Queue| !queue.ending;
        let (queue, _) =
            self.news.wait_timeout_while(self.queue(), time, waits).unwrap_or_else(PoisonError::into_inner);
        !queue.ending
    }
}

/// Thread that delivers.
struct Delivery {
    settings: ExportSettings,
    shared: Arc<Shared>,
    /// The last delivery failed.
    failed: bool,
    /// Held until the end.
    _ends: SyncSender<()>,
}

/// Failure of a delivery.
struct Refusal {
    why: String,
    /// Pause before the next attempt; `None`: another attempt is of no use.
    retry: Option<Duration>,
}

impl Delivery {
    fn run(mut self) {
        while let Some(batch) = self.shared.next_batch() {
            self.deliver(&batch);
        }
    }

    fn deliver(&mut self, batch: &[Span]) {
        let count = batch.len() as u64;
        let body = otlp::request(&self.settings.resource, batch);
        for attempt in 1.. {
            let refusal = match self.post(&body, attempt) {
                Ok(rejected) => {
                    let rejected = rejected.min(count);
                    self.shared.exported.fetch_add(count - rejected, Ordering::Relaxed);
                    self.shared.lose(rejected);
                    if std::mem::take(&mut self.failed) {
                        tracing::info!("the collector of traces takes spans again");
                    }
                    return;
                }
                Err(refusal) => refusal,
            };
            if !std::mem::replace(&mut self.failed, true) {
                tracing::warn!(error = refusal.why, "the collector does not take spans: those without room are lost");
            }
            let again = refusal.retry.filter(|_| attempt < ATTEMPTS);
            if !again.is_some_and(|pause| self.shared.pause(pause)) {
                break;
            }
        }
        self.shared.lose(count);
    }

    /// Sends a delivery. Returns the number of spans that the collector has refused.
    fn post(&self, body: &[u8], attempt: u32) -> Result<u64, Refusal> {
        let pause = FIRST_PAUSE.saturating_mul(1 << (attempt - 1).min(10)).min(LONGEST_PAUSE);
        let later = |why| Refusal { why, retry: Some(pause) };
        let headers = self.settings.headers.as_ref().map_or(Ok(Vec::new()), ExportHeaders::read);
        let headers = headers.map_err(|error| later(chain(&error)))?;
        let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        match self.settings.client.post("application/json", &headers, body) {
            Ok(answer) => Ok(otlp::rejected(&answer)),
            Err(error) => {
                let retry = match &error {
                    PostError::Unreachable { .. } => Some(pause),
                    PostError::Status { status, retry_after, .. } => {
                        matches!(status, 429 | 502 | 503 | 504).then(|| retry_after.unwrap_or(pause).min(LONGEST_PAUSE))
                    }
                };
                Err(Refusal { why: chain(&error), retry })
            }
        }
    }
}

#[cfg(test)]
#[path = "exporter_tests.rs"]
mod tests;
