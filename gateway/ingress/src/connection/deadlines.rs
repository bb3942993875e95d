//! Deadlines for a client to read its responses.

use crate::response::ReadDeadline;
use omni_body::SlowReader;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Context;
use std::time::{Duration, Instant};

/// Time beyond a request's deadline for its client to read the end of the response; then the connection is cut.
const GRACE: Duration = Duration::from_secs(5);

/// Deadlines of the responses of one connection.
#[derive(Debug, Default)]
pub(super) struct ReadDeadlines {
    /// Length of [`Deadlines::open`], which is asked for in every turn of the connection.
    open: AtomicUsize,
    deadlines: Mutex<Deadlines>,
    /// The connection as the reader of the large responses that hyper has, in part or whole.
    reader: Arc<SlowReader>,
}

#[derive(Debug, Default)]
struct Deadlines {
    /// Deadlines of incomplete responses without reserved memory: streams, and small ones over HTTP/2.
    open: Vec<Open>,
    /// The latest of the whole responses in memory.
    whole: Option<Instant>,
    /// End of the listener.
    end: Option<Instant>,
    /// Responses so far.
    count: u64,
}

/// Deadline of an incomplete response.
#[derive(Debug)]
struct Open {
    number: u64,
    at: Instant,
    /// Time from the end of the listener.
    after_end: Option<Duration>,
}

impl Open {
    fn end(&mut self, end: Instant) {
        self.at = self.after_end.map_or(self.at, |after| self.at.min(end + after));
    }
}

impl ReadDeadlines {
    /// Moment at which the client has to have read something; `None` while there is nothing for it to read.
    pub(super) fn next(&self) -> Option<Instant> {
        if self.open.load(Ordering::Relaxed) == 0 && !self.reader.has_unread() {
            return None;
        }
        let deadlines = self.deadlines.lock().unwrap_or_else(PoisonError::into_inner);
        // A response that is read ends by itself at its deadline: only an unread one stays beyond it.
        let whole = deadlines.whole.filter(|_| self.reader.has_unread());
        deadlines.open.iter().map(|open| open.at).chain(whole).min()
    }

    /// Returns true while a large response to this client is in memory.
    pub(super) fn has_unread_response(&self) -> bool {
        self.reader.has_unread()
    }

    /// Returns true if the memory of this client's responses is needed for others. Otherwise the task of the latest call is woken
    /// once it is.
    pub(super) fn is_evicted(&self, context: &Context<'_>) -> bool {
        self.reader.is_evicted(context)
    }

    /// Brings deadlines forward that depend on the end of the listener.
    pub(super) fn end(&self, now: Instant) {
        let mut deadlines = self.deadlines.lock().unwrap_or_else(PoisonError::into_inner);
        let end = *deadlines.end.get_or_insert(now);
        deadlines.open.iter_mut().for_each(|open| open.end(end));
    }

    /// Adds the deadline of a response. Returns its number when it is to be removed with the response's body.
    pub(super) fn add(&self, ReadDeadline { at, after_end, permit }: ReadDeadline) -> Option<u64> {
        let mut deadlines = self.deadlines.lock().unwrap_or_else(PoisonError::into_inner);
        let at = at + GRACE;
        if let Some(permit) = permit {
            let before = deadlines.whole.filter(|_| self.reader.has_unread());
            deadlines.whole = before.max(Some(at)); // of several at a time, over HTTP/2, the latest
            permit.assign(&self.reader);
            None
        } else {
            deadlines.count += 1;
            let number = deadlines.count;
            let mut open = Open { number, at, after_end };
            deadlines.end.inspect(|end| open.end(*end));
            deadlines.open.push(open);
            self.open.fetch_add(1, Ordering::Relaxed);
            Some(number)
        }
    }

    pub(super) fn remove(&self, number: u64) {
        let mut deadlines = self.deadlines.lock().unwrap_or_else(PoisonError::into_inner);
        let position = deadlines.open.iter().position(|open| open.number == number);
        position.map(|position| deadlines.open.swap_remove(position));
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}
