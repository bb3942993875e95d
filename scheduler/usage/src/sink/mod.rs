//! Hand-over of the log's records to a sink, in batches, at least once each.
//!
//! ```text
//!   log file, from its cursor ──▶ batch of lines ──deliver──▶ acknowledged ──▶ cursor saved ──▶ next batch
//!                                      ▲                          │ refused
//!                                      └───────── pause ◀─────────┘
//! ```
//!
//! A sink tells what comes twice by the ids of the records: after a kill between the acknowledgement and the cursor the
//! batch comes again. One process hands over at a time, the one that holds the lock.

mod file;
mod http;

pub use http::HttpSink;

use crate::cursor::Cursors;
use crate::log::{is_locked, records_in};
use crate::record::UsageRecord;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Most bytes of a batch.
const BATCH_BYTES: u64 = 1 << 20;
/// First pause after a failure; each further failure doubles it...
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// ... up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Pause between looks whether another process still hands over.
const LOCK_PAUSE: Duration = Duration::from_secs(1);
const LOCK: &str = "sink.lock";

/// Where records go.
#[derive(Debug)]
pub enum UsageSink {
    /// A file that records are appended to.
    File(PathBuf),
    /// A server that takes batches.
    Http(HttpSink),
}

impl UsageSink {
    /// Checks that this process may write to a file; a server is asked with the first batch.
    ///
    /// # Errors
    /// The file, and why it cannot be written.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::File(path) => file::check(path).map_err(|error| format!("{}: {error}", path.display())),
            Self::Http(_) => Ok(()),
        }
    }

    /// Delivers lines of records. They are acknowledged when this returns.
    fn deliver(&self, lines: &[u8]) -> Result<(), String> {
        match self {
            Self::File(path) => file::append(path, lines).map_err(|error| format!("{}: {error}", path.display())),
            Self::Http(http) => http.post(lines),
        }
    }
}

/// Signal that the log has more records.
#[derive(Debug, Default)]
pub(crate) struct MoreRecords {
    state: Mutex<Signal>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct Signal {
    more: bool,
    ending: bool,
}

impl MoreRecords {
    pub(crate) fn notify(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).more = true;
        self.news.notify_one();
    }

    pub(crate) fn end(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).ending = true;
        self.news.notify_one();
    }

    /// Waits for more records, or for the end of `pause`, which more records do not cut short. Returns `false` at the end.
    fn wait(&self, pause: Option<Duration>) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = match pause {
            None => {
                let idle = |state: &mut Signal| !state.more && !state.ending;
                self.news.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner)
            }
            Some(pause) => {
                let waits = |state: &mut Signal| !state.ending;
                self.news.wait_timeout_while(state, pause, waits).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.more = false;
        !state.ending
    }
}

/// Thread that hands over.
#[derive(Debug)]
pub(crate) struct HandOver {
    pub(crate) dir: PathBuf,
    pub(crate) sink: UsageSink,
    pub(crate) more: Arc<MoreRecords>,
    /// Failed deliveries.
    pub(crate) failures: Arc<AtomicU64>,
}

impl HandOver {
    /// Hands over until the end of the process.
    pub(crate) fn run(&self) {
        let Some(_lock) = self.lock() else { return };
        let mut cursors = Cursors::load(&self.dir);
        let (mut in_a_row, mut is_behind) = (0, false);
        loop {
            let pause = match self.all(&mut cursors, &mut in_a_row) {
                Ok(()) => {
                    if std::mem::take(&mut is_behind) {
                        tracing::info!("the usage sink takes records again");
                    }
                    None
                }
                Err(error) => {
                    if !std::mem::replace(&mut is_behind, true) {
                        tracing::error!(error, "the usage sink does not take records: they are kept and sent again");
                    }
                    in_a_row += 1;
                    self.failures.fetch_add(1, Ordering::Relaxed);
                    Some(pause(in_a_row))
                }
            };
            if !self.more.wait(pause) {
                return;
            }
        }
    }

    /// Waits for the lock; `None` at the end of the process.
    fn lock(&self) -> Option<Flock<File>> {
        loop {
            let path = self.dir.join(LOCK);
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path).ok();
            let lock = file.and_then(|file| Flock::lock(file, FlockArg::LockExclusiveNonblock).ok());
            if lock.is_some() || !self.more.wait(Some(LOCK_PAUSE)) {
                return lock;
            }
        }
    }

    /// Hands over everything that is in the log. Each batch that is acknowledged ends a row of failures: a sink that fails
    /// now and then is not waited for as one that is away.
    fn all(&self, cursors: &mut Cursors, failures_in_a_row: &mut u32) -> Result<(), String> {
        let of_log = |error: io::Error| format!("{}: {error}", self.dir.display());
        for path in records_in(&self.dir).map_err(of_log)? {
            while let Some(batch) = Batch::read(&path, cursors.of(&path)).map_err(of_log)? {
                if !batch.lines.is_empty() {
                    self.sink.deliver(&batch.lines)?;
                }
                cursors.advance(&path, batch.end);
                cursors.save(&self.dir).map_err(of_log)?;
                *failures_in_a_row = 0;
            }
        }
        Ok(())
    }
}

/// Pause after so many failures in a row.
fn pause(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(LONGEST_PAUSE)
}

/// Records of a file that are handed over together.
#[derive(Debug, PartialEq, Eq)]
struct Batch {
    /// Whole lines, each a record. What is none is left out: it would cost the others their place.
    lines: Vec<u8>,
    /// Place in the file after them.
    end: u64,
}

impl Batch {
    /// The next batch of a file; `None` if there is none, or none yet.
    fn read(path: &Path, from: u64) -> io::Result<Option<Self>> {
        let mut file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None), // removed for room
            file => file?,
        };
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(BATCH_BYTES).read_to_end(&mut bytes)?;
        let end = match bytes.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            None if bytes.is_empty() || is_locked(path) => return Ok(None),
            None => bytes.len(), // nobody will end this line
        };
        let mut lines = Vec::with_capacity(end);
        for line in bytes[..end].split_inclusive(|byte| *byte == b'\n') {
            if line.ends_with(b"\n") && serde_json::from_slice::<UsageRecord<'_>>(line).is_ok() {
                lines.extend_from_slice(line);
            }
        }
        Ok(Some(Self { lines, end: from + end as u64 }))
    }
}

#[cfg(test)]
mod tests;
