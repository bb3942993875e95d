//! Ranges on their way from the server to the disk: a request, its response, its body, and what failed tried again.

use crate::client::{Answer, Connections, Get, SILENCE, Traffic, chain};
use crate::failure::Failure;
use crate::part::{Part, Validator};
use crate::range::{self, Asked, Head, Verdict, judge};
use crate::retry;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, LAST_MODIFIED, RETRY_AFTER};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Progress that counts as such: attempts are counted anew after it.
const PROGRESS: u64 = 1 << 20;

/// Time for a range: a server that is slower is one that cuts off, and does not keep the place of others for a day.
const SLOWEST: Duration = if cfg!(test) { Duration::from_secs(5) } else { Duration::from_mins(5) };

/// Bytes of a file that are written at a time, and where such a block may begin.
const BLOCK: u64 = 256 << 10;

/// Ranges that the time for a whole file is counted by: a run is ended after a day anyway.
const MOST_RANGES: u32 = 1 << 17;

/// How far an attempt came.
enum Attempt {
    /// All of it is on the disk.
    Done,
    /// The server sends the whole file only.
    Whole,
    /// Cut off; why, and when the server may be asked again.
    Cut { why: Failure, after: Option<Duration> },
}

/// Fetches ranges of a part that follow each other. A part that can only be had as a whole is left for [`whole`].
pub(crate) async fn ranges(connections: &mut Connections, part: &Part, numbers: Range<u64>) -> Result<(), Failure> {
    let size = part.remote.size;
    let mut bytes = range::bytes(size, numbers.start).start..range::bytes(size, numbers.end).start;
    let limit = time_for(numbers.end - numbers.start);
    let mut attempts = 0;
    part.near(&numbers).await;
    while !part.is_whole() {
        let before = bytes.start;
        let begun = Instant::now();
        match attempt(connections, part, &mut bytes, limit).await? {
            Attempt::Done => return Ok(()),
            Attempt::Whole => part.leave_whole(),
            Attempt::Cut { why, after } => {
                connections.close();
                attempts = counted(attempts, bytes.start - before, begun.elapsed() >= limit);
                pause(attempts, after, why).await?;
            }
        }
    }
    connections.close();
    Ok(())
}

/// Fetches a part as a whole, whatever ranges of it are there. One that is cut off begins anew: nothing says that the rest
/// would be of the same content.
pub(crate) async fn whole(connections: &mut Connections, part: &Part) -> Result<(), Failure> {
    let limit = time_for(range::count(part.remote.size));
    let mut attempts = 0;
    loop {
        part.begin_anew();
        let mut bytes = 0..part.remote.size;
        match attempt(connections, part, &mut bytes, limit).await? {
            Attempt::Done => return part.finish(0..range::count(part.remote.size)),
            Attempt::Whole => {
                return Err(Failure::odd(&part.remote.url, "a part of the file, where all of it was asked for"));
            }
            Attempt::Cut { why, after } => {
                connections.close();
                attempts += 1;
                pause(attempts, after, why).await?;
            }
        }
    }
}

/// Time for the body of a response with so many ranges.
fn time_for(ranges: u64) -> Duration {
    SLOWEST.saturating_mul(u32::try_from(ranges).unwrap_or(MOST_RANGES).clamp(1, MOST_RANGES))
}

/// Attempts at a range after one that was cut off: progress counts them anew, unless it is too slow.
fn counted(attempts: u32, progress: u64, is_slow: bool) -> u32 {
    if progress >= PROGRESS && !is_slow { 1 } else { attempts + 1 }
}

async fn pause(attempts: u32, after: Option<Duration>, why: Failure) -> Result<(), Failure> {
    match retry::pause(attempts, after) {
        Some(pause) => {
            sleep(pause).await;
            Ok(())
        }
        None => Err(why),
    }
}

/// Asks once for `bytes`, whose start moves on with what is on the disk. `limit`: time for the body.
async fn attempt(
    connections: &mut Connections,
    part: &Part,
    bytes: &mut Range<u64>,
    limit: Duration,
) -> Result<Attempt, Failure> {
    let (url, size) = (&part.remote.url, part.remote.size);
    let is_all = *bytes == (0..size);
    let validator = part.validator();
    let if_match = validator.as_ref().and_then(|known| {
        let origin = known.origin.as_ref()?;
        // A weak validator matches nothing.
        (!known.text.starts_with("W/")).then_some((origin, known.text.as_str()))
    });
    let range = (!is_all).then(|| format!("bytes={}-{}", bytes.start, bytes.end - 1));
    let answer = match connections.get(&Get { url, range, if_match }).await {
        Ok(answer) => answer,
        Err(why @ Failure::Network { .. }) => return Ok(Attempt::Cut { why, after: None }),
        Err(why) => return Err(why),
    };
    let head = head(&answer);
    let asked = Asked { bytes: bytes.clone(), size, etag: validator.as_ref().map(|known| known.text.as_str()) };
    match judge(&asked, &head) {
        Verdict::Take => {}
        Verdict::Whole => return Ok(Attempt::Whole),
        Verdict::Changed => return Err(Failure::Changed { path: part.remote.path.clone() }),
        Verdict::Forbidden | Verdict::Missing => return Err(connections.failure(url, &answer)),
        Verdict::Odd => return Err(Failure::odd(url, format!("{head:?}"))),
        Verdict::Later => {
            let after = answer.field(&RETRY_AFTER).and_then(|text| text.parse().ok()).map(Duration::from_secs);
            return Ok(Attempt::Cut { why: Failure::status(url, head.status), after });
        }
    }
    match head.etag {
        Some(text) => {
            let origin = answer.field(&ETAG).map(|_| answer.origin.clone());
            if !part.learn(Validator { text, origin })? {
                return Err(Failure::Changed { path: part.remote.path.clone() });
            }
        }
        // Nothing would tell ranges of two contents apart.
        None if !is_all && part.remote.sha256.is_none() && validator.is_none() => return Ok(Attempt::Whole),
        None => {}
    }
    body(answer, connections.traffic(), part, bytes, limit).await
}

async fn body(
    answer: Answer,
    traffic: &Traffic,
    part: &Part,
    bytes: &mut Range<u64>,
    limit: Duration,
) -> Result<Attempt, Failure> {
    let mut pieces = Pieces::new(bytes.start);
    let ended = receive(answer, traffic, part, &mut pieces, bytes.end, limit).await;
    pieces.write(part, pieces.end)?;
    bytes.start = pieces.end;
    ended
}

/// Receives a body up to `end`, has it written in blocks, and records the ranges that are complete.
async fn receive(
    answer: Answer,
    traffic: &Traffic,
    part: &Part,
    pieces: &mut Pieces,
    end: u64,
    limit: Duration,
) -> Result<Attempt, Failure> {
    let url = &part.remote.url;
    let (mut body, deadline) = (answer.response.into_body(), Instant::now() + limit);
    let mut next = pieces.end / range::RANGE;
    while pieces.end < end {
        let cut = |what: String| Ok(Attempt::Cut { why: Failure::network(url, what), after: None });
        if Instant::now() >= deadline {
            return cut(format!("slower than {} MiB in {} s", range::RANGE >> 20, SLOWEST.as_secs()));
        }
        let frame = match timeout(SILENCE, body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) => return cut(chain(&error)),
            Ok(None) => return cut("the response ends too early".to_owned()),
            Err(_) => return cut("no more comes".to_owned()),
        };
        let Ok(data) = frame.into_data() else { continue };
        if data.len() as u64 > end - pieces.end {
            return Err(Failure::odd(url, "more than was asked for"));
        }
        traffic.receive(data.len());
        pieces.push(data);
        pieces.write(part, if pieces.end == end { end } else { pieces.end / BLOCK * BLOCK })?;
        let complete = range::complete(part.remote.size, pieces.start);
        // A cut makes nothing of a whole file worth anything.
        if complete > next && !part.is_whole() {
            part.finish(next..complete)?;
            next = complete;
        }
    }
    // The end of the body makes the connection free for the next request.
    let _ = timeout(SILENCE, body.frame()).await;
    Ok(Attempt::Done)
}

/// Pieces of a body that are not written yet. The kernel keeps whole blocks with much less work than pieces that begin and
/// end anywhere.
struct Pieces {
    held: VecDeque<Bytes>,
    /// Where the held pieces begin in the file.
    start: u64,
    /// Where they end.
    end: u64,
}

impl Pieces {
    fn new(at: u64) -> Self {
        Self { held: VecDeque::new(), start: at, end: at }
    }

    fn push(&mut self, piece: Bytes) {
        self.end += piece.len() as u64;
        self.held.push_back(piece);
    }

    /// Writes what lies before `end`.
    fn write(&mut self, part: &Part, end: u64) -> Result<(), Failure> {
        if end <= self.start {
            return Ok(());
        }
        let mut whole = Vec::with_capacity(self.held.len());
        let mut rest = usize::try_from(end - self.start).unwrap_or(usize::MAX);
        while let Some(mut piece) = self.held.pop_front() {
            if piece.len() > rest {
                whole.push(piece.split_to(rest));
                self.held.push_front(piece);
                break;
            }
            rest -= piece.len();
            whole.push(piece);
        }
        part.write(&whole, self.start)?;
        self.start = end;
        Ok(())
    }
}

fn head(answer: &Answer) -> Head {
    let encoding = answer.field(&CONTENT_ENCODING);
    Head {
        status: answer.status(),
        content_range: answer.field(&CONTENT_RANGE).map(str::to_owned),
        content_length: answer.field(&CONTENT_LENGTH).and_then(|text| text.parse().ok()),
        etag: answer.field(&ETAG).or_else(|| answer.field(&LAST_MODIFIED)).map(str::to_owned),
        is_encoded: encoding.is_some_and(|encoding| !encoding.eq_ignore_ascii_case("identity")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_progress_is_none() {
        let table = [(3, 0, false, 4), (3, PROGRESS, false, 1), (3, PROGRESS, true, 4), (0, PROGRESS - 1, false, 1)];
        for (attempts, progress, is_slow, expected) in table {
            assert_eq!(counted(attempts, progress, is_slow), expected, "{attempts} {progress} {is_slow}");
        }
    }
}
