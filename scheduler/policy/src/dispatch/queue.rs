//! Order of queued requests: earliest virtual arrival first.
//!
//! The virtual arrival of a request is its arrival less one second per level of its priority. It never changes while
//! the request is queued, so a request that arrives more than [`HIGHEST_PRIORITY`] seconds later stays behind it:
//! nothing starves. Invariant: within a level, requests leave in the order of their arrival, requeued ones included.

use super::{RequestId, Ticket};
use crate::batching::Candidate;
use crate::{Moment, nanos};
use std::collections::VecDeque;
use std::num::NonZeroU64;

/// Highest priority; 0 is the lowest.
pub const HIGHEST_PRIORITY: u8 = 9;
/// Head start of each level over the one below, in nanoseconds.
const HEAD_START: u64 = 1_000_000_000;
const LEVELS: usize = HIGHEST_PRIORITY as usize + 1;

/// A request that is queued, or was queued and is in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub(super) id: RequestId,
    /// Hash of its session's name.
    pub(super) session: Option<NonZeroU64>,
    /// Virtual arrival in nanoseconds, plus [`HIGHEST_PRIORITY`] seconds so that it is never negative.
    rank: u64,
    level: u8,
    /// Properties as a member of a batch.
    pub(super) candidate: Option<Candidate>,
}

/// All queued requests.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Queues of the levels, each sorted by rank.
    levels: [VecDeque<Waiting>; LEVELS],
    /// Bit for each level that is not empty.
    filled: u16,
    len: usize,
    /// Latest arrival. Arrivals are made distinct, so that the rank within a level is an order.
    newest: u64,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Appends a new request.
    pub(super) fn push(&mut self, ticket: Ticket, now: Moment) {
        let arrival = nanos(now).max(self.newest + 1);
        self.newest = arrival;
        let level = ticket.priority.min(HIGHEST_PRIORITY);
        let rank = arrival + u64::from(HIGHEST_PRIORITY - level) * HEAD_START;
        let session = ticket.session.and_then(|session| NonZeroU64::new(session.max(1)));
        let waiting = Waiting { id: ticket.id, session, rank, level, candidate: ticket.candidate };
        self.insert(level, |line| line.push_back(waiting));
    }

    /// Inserts a request again, in its old place.
    pub(super) fn requeue(&mut self, waiting: Waiting) {
        self.insert(waiting.level, |line| {
            let at = line.partition_point(|other| other.rank < waiting.rank);
            line.insert(at, waiting);
        });
    }

    fn insert(&mut self, level: u8, insert: impl FnOnce(&mut VecDeque<Waiting>)) {
        if let Some(line) = self.levels.get_mut(usize::from(level)) {
            insert(line);
            self.filled |= 1 << level;
            self.len += 1;
        }
    }

    /// Request with the earliest virtual arrival.
    pub(super) fn first(&self) -> Option<&Waiting> {
        self.levels.get(self.first_level()?)?.front()
    }

    /// All requests, the earliest virtual arrival first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiting> {
        let mut levels = self.levels.each_ref().map(|line| line.iter().peekable());
        std::iter::from_fn(move || {
            let fronts = levels.iter_mut().enumerate().filter_map(|(level, line)| Some((line.peek()?.rank, level)));
            let (_, level) = fronts.min()?;
            levels.get_mut(level)?.next()
        })
    }

    /// Removes the request that [`Queue::first`] returned.
    pub(super) fn remove_first(&mut self, first: Waiting) {
        if let Some(line) = self.levels.get_mut(usize::from(first.level))
            && line.pop_front().is_some()
        {
            self.len -= 1;
            if line.is_empty() {
                self.filled &= !(1 << first.level);
            }
        }
    }

    fn first_level(&self) -> Option<usize> {
        if self.filled == 0 {
            return None;
        }
        if self.filled.is_power_of_two() {
            return Some(self.filled.trailing_zeros() as usize); // usually only one level is used
        }
        let fronts = self.levels.iter().enumerate().filter_map(|(level, line)| Some((line.front()?.rank, level)));
        fronts.min().map(|(_, level)| level)
    }

    /// Removes a request. Returns whether it was queued.
    pub(super) fn remove(&mut self, id: RequestId) -> bool {
        for (level, line) in self.levels.iter_mut().enumerate() {
            if let Some(at) = line.iter().position(|waiting| waiting.id == id) {
                line.remove(at);
                self.len -= 1;
                if line.is_empty() {
                    self.filled &= !(1 << level);
                }
                return true;
            }
        }
        false
    }

    /// Removes and returns all requests.
    pub(super) fn drain(&mut self) -> Vec<RequestId> {
        (self.filled, self.len) = (0, 0);
        self.levels.iter_mut().flat_map(|line| line.drain(..)).map(|waiting| waiting.id).collect()
    }
}
