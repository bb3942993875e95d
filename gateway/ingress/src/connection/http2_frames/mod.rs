//! Limits on HTTP/2 frames that hyper does not have: trailers, which are kept but not read, and frames that need an answer.
//!
//! The socket counts the frames before hyper reads them, and ends the connection or pauses its reads. Invariants:
//! - Trailers of requests, which no handler gets and h2 keeps until the stream ends, have at most [`TRAILERS`] bytes of a connection on
//!   the wire, where a byte can be a field.
//! - Frames that need an answer are read no faster than [`ANSWERED`] a second.
//!
//! Framing: RFC 9113, section 4.1. Errors in it are not handled here: hyper ends such a connection.

use std::time::{Duration, Instant};

/// Most bytes of all trailers of one connection.
const TRAILERS: u64 = 4 * 1024;
/// Frames with an answer that are read of one connection in [`WINDOW`].
const ANSWERED: u32 = 1000;
const WINDOW: Duration = Duration::from_secs(1);
/// Length of the preface, before the first frame.
const PREFACE: u32 = 24;

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
/// Flag of `SETTINGS` and `PING` that are answers themselves.
const ACK: u8 = 1;
/// Length (24 bits), type, flags, stream.
const HEADER: usize = 9;

/// Counter of the frames of one connection.
#[derive(Debug)]
pub(super) struct FrameCounter {
    /// The header of the current frame, and how many bytes of it have arrived.
    header: [u8; HEADER],
    header_len: usize,
    /// Bytes of the payload, or of the preface, that are still to come.
    left: u32,
    /// The newest stream: a second block of fields on an older stream is its trailers.
    newest: u32,
    in_trailers: bool,
    trailers: u64,
    answered: u32,
    since: Option<Instant>,
}

/// Decision about a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Reads go on.
    Continue,
    /// No read before this moment.
    Pause(Instant),
    /// The connection ends: its trailers are too large.
    LargeTrailers,
}

impl Default for FrameCounter {
    fn default() -> Self {
        Self {
            header: [0; HEADER],
            header_len: 0,
            left: PREFACE,
            newest: 0,
            in_trailers: false,
            trailers: 0,
            answered: 0,
            since: None,
        }
    }
}

impl FrameCounter {
    /// Counts the frames in bytes that were read.
    pub(super) fn count(&mut self, mut bytes: &[u8], now: Instant) -> Verdict {
        let before = self.answered;
        while !bytes.is_empty() {
            if self.left > 0 {
                let part = bytes.len().min(self.left as usize);
                self.left -= u32::try_from(part).unwrap_or(self.left); // not more than that
                self.trailers += if self.in_trailers { part as u64 } else { 0 };
                bytes = bytes.get(part..).unwrap_or_default();
                continue;
            }
            let Some((byte, rest)) = bytes.split_first() else { break };
            if let Some(place) = self.header.get_mut(self.header_len) {
                *place = *byte;
            }
            self.header_len += 1;
            bytes = rest;
            if self.header_len == HEADER {
                self.header_len = 0;
                self.begin();
            }
        }
        if self.trailers > TRAILERS {
            return Verdict::LargeTrailers;
        }
        if self.answered > before { self.pace(now) } else { Verdict::Continue }
    }

    /// Begins a frame.
    fn begin(&mut self) {
        let [a, b, c, kind, flags, stream @ ..] = self.header;
        self.left = u32::from_be_bytes([0, a, b, c]);
        let stream = u32::from_be_bytes(stream) & (u32::MAX >> 1);
        match kind {
            HEADERS => {
                self.in_trailers = stream <= self.newest;
                self.newest = self.newest.max(stream);
            }
            CONTINUATION => {} // continues the block before
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
            return Verdict::Continue;
        }
        if self.answered >= ANSWERED {
            return Verdict::Pause(since + WINDOW);
        }
        Verdict::Continue
    }
}

#[cfg(test)]
mod tests;
