//! Recorder: takes records from requests, and moves them from the spool to the log.
//!
//! ```text
//!   request ──record──▶ spool (memory) ──a thread, five times a second──▶ log (disk) ──▶ sink
//! ```
//!
//! Invariants:
//! - a record is in the spool when [`UsageRecorder::record`] returns: it survives the process, not the machine;
//! - a record that was moved is flushed to the disk within [`FLUSH_AFTER`];
//! - a record is lost only where the node may lose records, and is counted then.

use crate::cursor::Cursors;
use crate::log::Log;
use crate::record::UsageRecord;
use crate::segment::Segment;
use crate::sink::{HandOver, MoreRecords, UsageSink};
use crate::spool::{Appended, MOST_BYTES, Spool};
use omni_log::chain;
use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time that a record lies in the spool before it is moved.
const MOVE_AFTER: Duration = Duration::from_millis(200);
/// Pause after a failure of the disk.
const RETRY: Duration = Duration::from_secs(1);
/// Longest time from the move of a record to its flush.
pub const FLUSH_AFTER: Duration = Duration::from_secs(1);
/// Pause between looks for the room that the log takes, and for what other processes have left.
const HOUSEKEEPING: Duration = Duration::from_secs(10);
/// Bytes in the spool from which on requests are refused, where they are: those that run still have room.
const REFUSE_BYTES: usize = MOST_BYTES / 2;

/// Behaviour when no record can be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// Requests are refused.
    Refuse,
    /// Records are lost, and counted.
    Lose,
}

/// Folders and bounds of usage records.
#[derive(Debug)]
pub struct UsageSettings {
    /// Folder of the spool, in memory.
    pub spool: PathBuf,
    /// Folder of the log, on the disk.
    pub log: PathBuf,
    /// Most bytes of the log.
    pub keep: u64,
    /// Behaviour when no record can be kept.
    pub when_full: WhenFull,
    /// Where the records go; they are not removed before they are there.
    pub sink: Option<UsageSink>,
}

/// Counts of records since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UsageCounts {
    /// Records that were written.
    pub written: u64,
    /// Records that were lost.
    pub lost: u64,
    /// Bytes that wait for the disk.
    pub waiting_bytes: u64,
    /// Deliveries that the sink did not acknowledge.
    pub sink_failures: u64,
}

/// Recorder of a process. When it is dropped, what lies in the spool is moved and flushed.
#[derive(Debug)]
pub struct UsageRecorder {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    spool: Spool,
    log_dir: PathBuf,
    when_full: WhenFull,
    /// Signal to the sink's thread, where there is a sink.
    more: Option<Arc<MoreRecords>>,
    sink_failures: Arc<AtomicU64>,
    lost: AtomicU64,
    /// The disk takes nothing now.
    fails: AtomicBool,
    waits: Mutex<Waits>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct Waits {
    /// There are records to move.
    records: bool,
    /// Records fill a segment.
    many: bool,
    ending: bool,
}

impl UsageRecorder {
    /// Opens spool and log, and begins to move what earlier processes have left.
    ///
    /// # Errors
    /// A folder cannot be created.
    pub fn open(settings: UsageSettings) -> io::Result<Self> {
        let UsageSettings { spool, log: log_dir, keep, when_full, sink } = settings;
        let spool = Spool::open(&spool)?;
        let log = Log::open(&log_dir, keep)?;
        let more = sink.is_some().then(Arc::<MoreRecords>::default);
        let sink_failures = Arc::<AtomicU64>::default();
        if let (Some(sink), Some(more)) = (sink, &more) {
            let (more, failures) = (Arc::clone(more), Arc::clone(&sink_failures));
            let hand_over = HandOver { dir: log_dir.clone(), sink, more, failures };
            // Not joined: a delivery may take long, and what it leaves is handed over by the next process.
            thread::Builder::new().name("usage-sink".into()).spawn(move || hand_over.run())?;
        }
        let waits = Mutex::new(Waits { records: true, many: true, ending: false });
        let shared = Arc::new(Shared {
            spool,
            log_dir,
            when_full,
            more,
            sink_failures,
            lost: AtomicU64::new(0),
            fails: AtomicBool::new(false),
            waits,
            news: Condvar::new(),
        });
        let mover = Mover { shared: Arc::clone(&shared), log, pending: None, unflushed_since: None, kept: None };
        let thread = thread::Builder::new().name("usage".into()).spawn(move || mover.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Writes the record of an attempt, before the last byte of its answer leaves.
    pub fn record(&self, record: &UsageRecord<'_>) {
        thread_local! {
            static LINE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        LINE.with_borrow_mut(|line| {
            line.clear();
            record.write_line(line);
            let shared = &self.shared;
            match shared.spool.append(line) {
                Ok(Appended::Beside) => {}
                Ok(appended) => shared.on_record(appended == Appended::Filled),
                Err(error) => {
                    if shared.lost.fetch_add(1, Ordering::Relaxed) == 0 {
                        let model = &*record.model;
                        tracing::error!(model, error = chain(&error), "a usage record is lost; more are only counted");
                    }
                }
            }
        });
    }

    /// Returns whether requests have to be refused, as their records could not be kept.
    #[must_use]
    pub fn refuses(&self) -> bool {
        self.shared.when_full == WhenFull::Refuse
            && self.shared.fails.load(Ordering::Relaxed)
            && self.shared.spool.counts().1 >= REFUSE_BYTES
    }

    /// Folder of the log.
    #[must_use]
    pub fn log_dir(&self) -> &Path {
        &self.shared.log_dir
    }

    /// Counts since the start.
    #[must_use]
    pub fn counts(&self) -> UsageCounts {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (written, waiting_bytes) = self.shared.spool.counts();
        UsageCounts {
            written,
            lost: load(&self.shared.lost),
            waiting_bytes: waiting_bytes as u64,
            sink_failures: load(&self.shared.sink_failures),
        }
    }
}

impl Drop for UsageRecorder {
    fn drop(&mut self) {
        self.shared.waits().ending = true;
        self.shared.news.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it panics nowhere
        }
        if let Some(more) = &self.shared.more {
            more.end();
        }
    }
}

impl Shared {
    /// Wakes the mover for the first record, and when there are many.
    fn on_record(&self, many: bool) {
        let mut waits = self.waits();
        (waits.records, waits.many) = (true, waits.many || many);
        drop(waits);
        self.news.notify_one();
    }

    fn on_moved(&self) {
        if let Some(more) = &self.more {
            more.notify();
        }
    }

    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Thread that moves records from the spool to the log.
#[derive(Debug)]
struct Mover {
    shared: Arc<Shared>,
    log: Log,
    /// Segment that was taken and not moved, as the disk did not take it.
    pending: Option<Segment>,
    unflushed_since: Option<Instant>,
    /// Last look for room and for what others have left.
    kept: Option<Instant>,
}

impl Mover {
    fn run(mut self) {
        loop {
            let ending = self.wait();
            let tried = self.step(ending);
            let failed = tried.is_err();
            if failed != self.shared.fails.swap(failed, Ordering::Relaxed) {
                let folder = self.shared.log_dir.display();
                match tried {
                    Err(error) => tracing::error!(%folder, error = chain(&error), "usage records cannot be kept"),
                    Ok(()) => tracing::info!(%folder, "usage records are kept again"),
                }
            }
            if ending {
                return;
            }
        }
    }

    /// Waits for records, or for the time of a flush. Returns whether this is the last step.
    fn wait(&self) -> bool {
        let shared = &self.shared;
        let mut waits = shared.waits();
        let began = Instant::now();
        loop {
            let fails = shared.fails.load(Ordering::Relaxed);
            let pause = match () {
                () if fails => Some(RETRY),
                () if waits.many => Some(Duration::ZERO),
                () if waits.records => Some(MOVE_AFTER),
                () if self.unflushed_since.is_some() => Some(FLUSH_AFTER),
                () => None,
            };
            let left = pause.map(|pause| pause.saturating_sub(began.elapsed()));
            if waits.ending || left == Some(Duration::ZERO) {
                (waits.records, waits.many) = (false, false);
                return waits.ending;
            }
            waits = match left {
                None => shared.news.wait(waits).unwrap_or_else(PoisonError::into_inner),
                Some(left) => shared.news.wait_timeout(waits, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    fn step(&mut self, ending: bool) -> io::Result<()> {
        if self.kept.is_none_or(|at| at.elapsed() >= HOUSEKEEPING) {
            self.kept = Some(Instant::now());
            self.take_left()?;
            self.make_room()?;
        }
        // Not those that are begun meanwhile: small ones would be moved one after the other.
        for _ in 0..self.shared.spool.unmoved() {
            let Some(segment) = self.pending.take().or_else(|| self.shared.spool.take()) else { break };
            if let Err(error) = self.log.append(segment.records()) {
                self.pending = Some(segment);
                return Err(error);
            }
            self.shared.spool.on_moved(segment)?;
            self.unflushed_since.get_or_insert_with(Instant::now);
            self.shared.on_moved();
        }
        if ending {
            return self.log.end();
        }
        if self.unflushed_since.is_some_and(|since| since.elapsed() >= FLUSH_AFTER) {
            self.log.flush()?;
            self.unflushed_since = None;
        }
        Ok(())
    }

    /// Moves what processes that are gone have left.
    fn take_left(&mut self) -> io::Result<()> {
        for left in self.shared.spool.take_left()? {
            for records in left.records()?.iter().filter(|records| !records.is_empty()) {
                self.log.append(records)?;
                self.shared.on_moved();
            }
            self.log.flush()?;
            left.on_moved()?;
        }
        Ok(())
    }

    /// Keeps the log within its bound.
    fn make_room(&self) -> io::Result<()> {
        let shared = &self.shared;
        if shared.more.is_none() {
            return self.log.make_room(None).map(drop);
        }
        let cursors = Cursors::load(&shared.log_dir);
        if self.log.make_room(Some(&cursors))? {
            return Ok(());
        }
        match shared.when_full {
            WhenFull::Refuse => Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "the log has as many bytes as it may, and the sink has not taken them",
            )),
            WhenFull::Lose => {
                let lost = self.log.lose(&cursors)?;
                shared.lost.fetch_add(lost, Ordering::Relaxed);
                if lost > 0 {
                    tracing::error!(lost, "usage records are lost: the log is full, and the sink has not taken them");
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::records_in;
    use crate::read_since;
    use crate::record::tests::record;
    use std::collections::BTreeSet;
    use std::fs;

    fn settings(dir: &Path, when_full: WhenFull) -> UsageSettings {
        let (spool, log) = (dir.join("spool"), dir.join("log"));
        UsageSettings { spool, log, keep: 1 << 30, when_full, sink: None }
    }

    fn numbers(dir: &Path, since: u64) -> Vec<u64> {
        let mut found = Vec::new();
        read_since(&dir.join("log"), since, |record| found.push(record.units.bytes_in)).unwrap();
        found
    }

    /// Waits, bounded, for what another thread does.
    fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
        let began = Instant::now();
        while !holds() {
            assert!(began.elapsed() < Duration::from_secs(20), "{what}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn records_are_moved_in_their_order_and_read_since_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let recorder = UsageRecorder::open(settings(dir.path(), WhenFull::Lose)).unwrap();
        (0..500).for_each(|number| recorder.record(&record(number)));
        wait_until("the mover moves them", || recorder.counts().waiting_bytes == 0);
        assert_eq!(numbers(dir.path(), 0), (0..500).collect::<Vec<_>>());
        assert_eq!(recorder.counts(), UsageCounts { written: 500, lost: 0, waiting_bytes: 0, sink_failures: 0 });
        (500..600).for_each(|number| recorder.record(&record(number)));
        drop(recorder);
        assert_eq!(numbers(dir.path(), 1_700_000_000_550), (550..600).collect::<Vec<_>>(), "moved at the end");
        assert!(!dir.path().join("spool").exists());
    }

    #[test]
    fn what_a_killed_process_has_left_is_moved() {
        let dir = tempfile::tempdir().unwrap();
        let killed = Spool::open(&dir.path().join("spool")).unwrap();
        let mut line = Vec::new();
        record(1).write_line(&mut line);
        killed.append(&line).unwrap();
        drop(killed); // its lock is gone, its records are not
        let recorder = UsageRecorder::open(settings(dir.path(), WhenFull::Lose)).unwrap();
        recorder.record(&record(2));
        drop(recorder);
        assert_eq!(numbers(dir.path(), 0).into_iter().collect::<BTreeSet<_>>(), BTreeSet::from([1, 2]));
    }

    #[test]
    fn a_line_that_is_no_record_costs_itself() {
        let dir = tempfile::tempdir().unwrap();
        let recorder = UsageRecorder::open(settings(dir.path(), WhenFull::Lose)).unwrap();
        (0..3).for_each(|number| recorder.record(&record(number)));
        drop(recorder);
        let file = records_in(&dir.path().join("log")).unwrap().remove(0);
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replacen("\"request_id\"", "\0\"", 1)).unwrap();
        assert_eq!(numbers(dir.path(), 0), [1, 2]);
    }

    /// The log's folder cannot be written, until the test gives it back.
    fn disk_fails(dir: &Path, when_full: WhenFull) {
        let recorder = UsageRecorder::open(settings(dir, when_full)).unwrap();
        let (log, aside) = (dir.join("log"), dir.join("aside"));
        fs::rename(&log, &aside).unwrap();
        fs::write(&log, "no folder").unwrap();
        let mut given = 0;
        wait_until("the spool fills", || {
            for _ in 0..1000 {
                recorder.record(&record(given));
                given += 1;
            }
            recorder.counts().lost > 0
        });
        let UsageCounts { written, lost, waiting_bytes, sink_failures: _ } = recorder.counts();
        assert_eq!(written + lost, given);
        assert!(waiting_bytes <= MOST_BYTES as u64);
        assert_eq!(recorder.refuses(), when_full == WhenFull::Refuse);
        fs::remove_file(&log).unwrap();
        fs::rename(&aside, &log).unwrap();
        wait_until("the mover moves them", || recorder.counts().waiting_bytes == 0);
        assert!(!recorder.refuses());
        assert_eq!(numbers(dir, 0).len() as u64, written, "nothing is lost that was not counted");
    }

    #[test]
    fn records_beyond_the_spool_are_counted_as_lost_while_the_disk_fails() {
        let dir = tempfile::tempdir().unwrap();
        disk_fails(dir.path(), WhenFull::Lose);
    }

    #[test]
    fn requests_are_refused_while_the_disk_fails_where_no_record_may_be_lost() {
        let dir = tempfile::tempdir().unwrap();
        disk_fails(dir.path(), WhenFull::Refuse);
    }
}
