//! Log of the instance: bytes of its two pipes become numbered lines in a bounded ring. Pure.
//!
//! Called by the event loop, which reads the pipes and sends the lines. A model that floods its log loses lines, which
//! a line of the worker reports; text that is drawn again and again after a carriage return, as progress bars are, is
//! shown once a second and as it was last.
//!
//! Invariants: it never slows the worker's other work and never takes more memory than [`RING_BYTES`]. Once a line was
//! beyond the rate, all are dropped for [`DROP`] and only counted: the worker's processor time is not within the
//! model's limit, so a flood must cost little of it.

use omni_node_protocol::instance::{LogLine, LogStream};
use std::collections::VecDeque;
use std::time::Duration;

/// Bytes that the ring holds, with [`LINE_COST`] for each line.
const RING_BYTES: usize = 64 * 1024;
/// Memory of a line beside its text: its own struct.
const LINE_COST: usize = size_of::<LogLine>();
/// Bytes of the longest line; longer ones are cut into several.
const LINE_MAX: usize = 8 * 1024;

/// For how long lines are dropped once one was too many.
const DROP: Duration = Duration::from_millis(100);

/// A line that is drawn again and again is shown so often.
const REDRAW: Duration = Duration::from_secs(1);

/// When something happens, on both clocks that matter here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    /// Since the worker's start; never goes back.
    pub(super) monotonic: Duration,
    /// Milliseconds since the Unix epoch, for people.
    pub(super) unix_ms: u64,
}

/// The log of one instance.
#[derive(Debug)]
pub(super) struct Journal {
    ring: VecDeque<LogLine>,
    bytes: usize,
    next_seq: u64,
    rate: Rate,
    stdout: Partial,
    stderr: Partial,
}

/// The line of a stream that has not ended yet.
#[derive(Debug, Default)]
struct Partial {
    bytes: Vec<u8>,
    /// Part of the line was dropped and counted, and the rest will be.
    dropped: bool,
    /// Text of the line before it was begun again, not shown yet.
    redrawn: Vec<u8>,
    /// Shown as it is now.
    shown: bool,
    /// When a line that was begun again is to be shown next.
    show_at: Option<Duration>,
}

impl Journal {
    pub(super) fn new(lines_per_second: u32) -> Self {
        Self {
            ring: VecDeque::new(),
            bytes: 0,
            next_seq: 1,
            rate: Rate::new(lines_per_second),
            stdout: Partial::default(),
            stderr: Partial::default(),
        }
    }

    /// Takes bytes as they came from a pipe.
    pub(super) fn write(&mut self, stream: LogStream, mut bytes: &[u8], now: Moment) {
        self.tick(now);
        while !bytes.is_empty() {
            if self.rate.is_dropping() {
                return self.drop_lines(stream, bytes);
            }
            let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                return self.extend(stream, bytes, now);
            };
            let (line, rest) = bytes.split_at(end);
            self.extend(stream, line, now);
            if rest.first() == Some(&b'\r') {
                self.redraw(stream, now);
            } else {
                self.end_line(stream, now);
            }
            bytes = rest.get(1..).unwrap_or_default();
        }
    }

    /// Counts lines, each where it begins, and keeps nothing of them.
    fn drop_lines(&mut self, stream: LogStream, bytes: &[u8]) {
        // Chunks small enough that one byte holds the count, which lets the compiler look at many at once.
        let count = |part: &[u8]| u64::from(part.iter().map(|byte| u8::from(*byte == b'\n')).sum::<u8>());
        let ends: u64 = bytes.chunks(usize::from(u8::MAX)).map(count).sum();
        let goes_on = bytes.last() != Some(&b'\n');
        let partial = self.partial(stream);
        let is_counted = partial.dropped;
        *partial = Partial { dropped: goes_on, ..Partial::default() };
        self.rate.dropped += ends + u64::from(goes_on) - u64::from(is_counted);
    }

    /// Adds a line of the worker itself; not under the rate.
    pub(super) fn note(&mut self, text: String, now: Moment) {
        self.push(LogStream::Worker, text, now);
    }

    /// Says how many lines were dropped, once [`DROP`] has passed since the first of them; from then on they are taken.
    pub(super) fn tick(&mut self, now: Moment) {
        let is_due = |at: Option<Duration>| at.is_some_and(|at| at <= now.monotonic);
        if is_due(self.rate.dropped_until()) {
            self.note_dropped(now);
        }
        for stream in [LogStream::Stdout, LogStream::Stderr] {
            if is_due(self.partial(stream).wakes_at()) {
                self.show(stream, now);
            }
        }
    }

    /// When [`Journal::tick`] has something to do.
    pub(super) fn deadline(&self) -> Option<Duration> {
        [self.rate.dropped_until(), self.stdout.wakes_at(), self.stderr.wakes_at()].into_iter().flatten().min()
    }

    /// Both pipes have ended: what is left is the last line of each.
    pub(super) fn finish(&mut self, now: Moment) {
        for stream in [LogStream::Stdout, LogStream::Stderr] {
            let partial = self.partial(stream);
            if !partial.bytes.is_empty() || !partial.redrawn.is_empty() {
                self.end_line(stream, now);
            }
        }
        self.note_dropped(now);
    }

    /// The first line after number `seen` that the ring still has.
    pub(super) fn after(&self, seen: u64) -> Option<&LogLine> {
        let oldest = self.ring.front()?.seq;
        let index = seen.saturating_add(1).saturating_sub(oldest);
        self.ring.get(usize::try_from(index).ok()?)
    }

    fn partial(&mut self, stream: LogStream) -> &mut Partial {
        match stream {
            LogStream::Stdout => &mut self.stdout,
            LogStream::Stderr | LogStream::Worker => &mut self.stderr,
        }
    }

    fn extend(&mut self, stream: LogStream, bytes: &[u8], now: Moment) {
        let mut rest = bytes;
        while !rest.is_empty() && !self.partial(stream).dropped {
            let partial = self.partial(stream);
            partial.shown = false;
            let (fits, more) = rest.split_at((LINE_MAX - partial.bytes.len()).min(rest.len()));
            partial.bytes.extend_from_slice(fits);
            rest = more;
            if partial.bytes.len() == LINE_MAX && !rest.is_empty() {
                self.cut_line(stream, now);
            }
        }
    }

    /// Ends a full line early, between two characters.
    fn cut_line(&mut self, stream: LogStream, now: Moment) {
        let partial = &mut self.partial(stream).bytes;
        let is_inside = |byte: &u8| *byte & 0xC0 == 0x80; // continuation bytes of UTF-8
        let tail = partial.iter().rev().take(4).position(|byte| !is_inside(byte));
        let tail = match tail {
            Some(inside) if partial.iter().rev().nth(inside).is_some_and(|lead| lead & 0x80 != 0) => inside + 1,
            Some(_) | None => 0,
        };
        let carry = partial.split_off(partial.len() - tail);
        self.end_line(stream, now);
        self.partial(stream).bytes = carry;
    }

    fn end_line(&mut self, stream: LogStream, now: Moment) {
        let Partial { bytes, dropped, redrawn, shown, show_at } = std::mem::take(self.partial(stream));
        let line = if bytes.is_empty() && show_at.is_some() { redrawn } else { bytes };
        // The end of a line that was drawn again and again is no line of its own.
        let is_nothing = show_at.is_some() && (shown || line.is_empty());
        if !dropped && !is_nothing && self.rate.admits(now.monotonic) {
            self.push(stream, String::from_utf8_lossy(&line).into_owned(), now);
        }
    }

    /// A carriage return: the line is begun again.
    fn redraw(&mut self, stream: LogStream, now: Moment) {
        let partial = self.partial(stream);
        if !partial.bytes.is_empty() && !std::mem::take(&mut partial.shown) {
            partial.redrawn = std::mem::take(&mut partial.bytes);
        }
        partial.bytes.clear();
        partial.show_at.get_or_insert(now.monotonic);
        if partial.wakes_at().is_some_and(|at| at <= now.monotonic) {
            self.show(stream, now);
        }
    }

    /// Shows a line that is drawn again and again, as it is now.
    fn show(&mut self, stream: LogStream, now: Moment) {
        let partial = self.partial(stream);
        partial.show_at = Some(now.monotonic + REDRAW);
        let before = std::mem::take(&mut partial.redrawn);
        let line = if partial.bytes.is_empty() { before } else { partial.bytes.clone() };
        partial.shown = !partial.bytes.is_empty();
        if self.rate.admits(now.monotonic) {
            self.push(stream, String::from_utf8_lossy(&line).into_owned(), now);
        }
    }

    fn note_dropped(&mut self, now: Moment) {
        let dropped = self.rate.take_dropped();
        if dropped > 0 {
            let rate = self.rate.per_second;
            self.note(format!("{dropped} lines dropped: more than {rate} lines a second"), now);
        }
    }

    fn push(&mut self, stream: LogStream, text: String, now: Moment) {
        self.bytes += text.len() + LINE_COST;
        self.ring.push_back(LogLine { seq: self.next_seq, unix_ms: now.unix_ms, stream, text });
        self.next_seq += 1;
        while self.bytes > RING_BYTES {
            let Some(old) = self.ring.pop_front() else { break };
            self.bytes -= old.text.len() + LINE_COST;
        }
    }
}

impl Partial {
    /// When there is something to show of a line that is drawn again and again.
    fn wakes_at(&self) -> Option<Duration> {
        let is_new = !self.redrawn.is_empty() || (!self.bytes.is_empty() && !self.shown);
        self.show_at.filter(|_| is_new && !self.dropped)
    }
}

/// A token bucket that holds one second's lines.
#[derive(Debug)]
struct Rate {
    per_second: u32,
    /// Thousandths of a line.
    tokens: u64,
    filled_at: Duration,
    dropped: u64,
    dropped_since: Option<Duration>,
}

impl Rate {
    fn new(per_second: u32) -> Self {
        let tokens = u64::from(per_second) * 1000;
        Self { per_second, tokens, filled_at: Duration::ZERO, dropped: 0, dropped_since: None }
    }

    fn admits(&mut self, now: Duration) -> bool {
        let per_second = u64::from(self.per_second);
        let elapsed = u64::try_from(now.saturating_sub(self.filled_at).as_millis()).unwrap_or(u64::MAX);
        if elapsed > 0 {
            self.tokens = self.tokens.saturating_add(elapsed.saturating_mul(per_second)).min(per_second * 1000);
            self.filled_at = now;
        }
        if self.tokens >= 1000 {
            self.tokens -= 1000;
            return true;
        }
        self.dropped += 1;
        self.dropped_since.get_or_insert(now);
        false
    }

    /// When [`DROP`] has passed since the first line that was dropped.
    fn dropped_until(&self) -> Option<Duration> {
        self.dropped_since.map(|since| since + DROP)
    }

    fn is_dropping(&self) -> bool {
        self.dropped_since.is_some()
    }

    fn take_dropped(&mut self) -> u64 {
        self.dropped_since = None;
        std::mem::take(&mut self.dropped)
    }
}

#[cfg(test)]
mod tests;
