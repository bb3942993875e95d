//! Frames that a client sends over HTTP/2, counted before hyper has them: what nobody reads and what has to be answered.
//!
//! Read by [`super::connection`], which ends a connection or leaves it unread for a while. Invariants:
//! - trailers of requests, which no handler gets and h2 keeps until the stream ends, have at most [`TRAILERS`] bytes of a
//!   connection on the wire, where a byte can be a field;
//! - frames that have to be answered are read no faster than [`ANSWERED`] a second.
//!
//! The framing is RFC 9113's, section 4.1. What breaks it is not judged here: hyper ends such a connection.

use std::time::{Duration, Instant};

/// Most bytes of all trailers of one connection.
const TRAILERS: u64 = 4 * 1024;
/// Frames that have to be answered: what is read of one connection in [`WINDOW`].
const ANSWERED: u32 = 1000;
const WINDOW: Duration = Duration::from_secs(1);
/// The connection's beginning, before its first frame.
const PREFACE: u32 = 24;

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
/// The flag of `SETTINGS` and `PING` that answer one.
const ACK: u8 = 1;
/// Length (24 bits), type, flags, stream.
const HEADER: usize = 9;

/// What a connection has sent so far.
#[derive(Debug)]
pub(crate) struct Frames {
    /// The header at hand, and how much of it is here.
    header: [u8; HEADER],
    known: usize,
    /// Bytes of the payload, or of the preface, that are still to come.
    left: u32,
    /// The newest stream: a second block of fields on an older one is that of its trailers.
    newest: u32,
    in_trailers: bool,
    trailers: u64,
    answered: u32,
    since: Option<Instant>,
}

/// What is to be done with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is read on.
    Go,
    /// It is not read before this moment.
    Wait(Instant),
    /// It ends: its trailers are too large.
    End,
}

impl Default for Frames {
    fn default() -> Self {
        Self {
            header: [0; HEADER],
            known: 0,
            left: PREFACE,
            newest: 0,
            in_trailers: false,
            trailers: 0,
            answered: 0,
            since: None,
        }
    }
}

impl Frames {
    /// Takes what was read.
    pub(crate) fn take(&mut self, mut bytes: &[u8], now: Instant) -> Verdict {
        let before = self.answered;
        while !bytes.is_empty() {
            if self.left > 0 {
                let part = bytes.len().min(self.left as usize);
                self.left -= u32::try_from(part).unwrap_or(self.left); // it is no more than that
                self.trailers += if self.in_trailers { part as u64 } else { 0 };
                bytes = bytes.get(part..).unwrap_or_default();
                continue;
            }
            let Some((byte, rest)) = bytes.split_first() else { break };
            if let Some(place) = self.header.get_mut(self.known) {
                *place = *byte;
            }
            self.known += 1;
            bytes = rest;
            if self.known == HEADER {
                self.known = 0;
                self.begin();
            }
        }
        if self.trailers > TRAILERS {
            return Verdict::End;
        }
        if self.answered > before { self.pace(now) } else { Verdict::Go }
    }

    /// A frame begins.
    fn begin(&mut self) {
        let [a, b, c, kind, flags, stream @ ..] = self.header;
        self.left = u32::from_be_bytes([0, a, b, c]);
        let stream = u32::from_be_bytes(stream) & (u32::MAX >> 1);
        match kind {
            HEADERS => {
                self.in_trailers = stream <= self.newest;
                self.newest = self.newest.max(stream);
            }
            CONTINUATION => {} // of the block before
            SETTINGS | PING if flags & ACK == 0 => {
                self.in_trailers = false;
                self.answered += 1;
            }
            _ => self.in_trailers = false,
        }
    }

    fn pace(&mut self, now: Instant) -> Verdict {
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since) >= WINDOW {
            (self.since, self.answered) = (Some(now), 0);
            return Verdict::Go;
        }
        if self.answered >= ANSWERED {
            return Verdict::Wait(since + WINDOW);
        }
        Verdict::Go
    }
}

#[cfg(test)]
mod tests;
