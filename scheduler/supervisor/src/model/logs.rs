//! The last lines that a model's instances wrote, for `omnictl logs`. Bounded in bytes; readers follow by number.

use omni_control_api::LogEntry;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use tokio::sync::watch;

/// Bookkeeping that an entry costs beside its text.
const ENTRY: usize = 96;

/// A ring of log lines.
#[derive(Debug)]
pub struct LogRing {
    lines: Mutex<Lines>,
    newest: watch::Sender<u64>,
    limit: usize,
}

#[derive(Debug, Default)]
struct Lines {
    entries: VecDeque<LogEntry>,
    bytes: usize,
    /// Number of the first entry that is kept.
    first: u64,
}

impl LogRing {
    /// Keeps about `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { lines: Mutex::default(), newest: watch::Sender::new(0), limit }
    }

    /// Adds a line; the oldest go.
    pub fn push(&self, entry: LogEntry) {
        let mut guard = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = &mut *guard;
        lines.bytes += entry.text.len() + ENTRY;
        lines.entries.push_back(entry);
        while lines.bytes > self.limit && lines.entries.len() > 1 {
            if let Some(gone) = lines.entries.pop_front() {
                lines.bytes -= gone.text.len() + ENTRY;
                lines.first += 1;
            }
        }
        let newest = lines.first + lines.entries.len() as u64;
        drop(guard);
        self.newest.send_replace(newest);
    }

    /// The last `count` lines, and the number to go on from.
    #[must_use]
    pub fn last(&self, count: usize) -> (Vec<LogEntry>, u64) {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let skip = lines.entries.len().saturating_sub(count);
        (lines.entries.iter().skip(skip).cloned().collect(), lines.first + lines.entries.len() as u64)
    }

    /// The lines from number `from` on, and the number to go on from.
    #[must_use]
    pub fn since(&self, from: u64) -> (Vec<LogEntry>, u64) {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let skip = usize::try_from(from.saturating_sub(lines.first)).unwrap_or(usize::MAX);
        (lines.entries.iter().skip(skip).cloned().collect(), lines.first + lines.entries.len() as u64)
    }

    /// A receiver that changes with every line.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> LogEntry {
        LogEntry { unix_ms: 0, instance: "i".into(), stream: "stdout".into(), request_id: None, text: text.into() }
    }

    #[test]
    fn old_lines_go_and_numbers_stay() {
        let ring = LogRing::new(3 * (ENTRY + 1));
        for text in ["a", "b", "c", "d", "e"] {
            ring.push(line(text));
        }
        let texts = |entries: Vec<LogEntry>| entries.into_iter().map(|entry| entry.text).collect::<String>();
        assert_eq!(texts(ring.last(2).0), "de");
        let (all, next) = ring.since(0);
        assert_eq!((texts(all), next), ("cde".to_owned(), 5));
        ring.push(line("f"));
        assert_eq!(texts(ring.since(5).0), "f");
        assert_eq!(texts(ring.since(99).0), "");
    }
}
