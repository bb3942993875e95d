//! The requests that a model's task holds: what to send, and where the answer goes.

use super::content::Content;
use crate::policy::InstanceNumber;
use crate::policy::dispatch::{RequestId, Ticket};
use crate::wire::connection::DataConnection;
use crate::wire::reply::{Answer, Body, ReplyTo, Swap, Unanswered};
use crate::wire::stream::{BadChunk, End, Filler, Shape, stream};
use bytes::Bytes;
use omni_body::{BodyKind, BodyPermit, BodyReader, BodySocket, BudgetShare, RequestBody};
use omni_engine_protocol::frame::{
    AnswerHead, ErrorBody, ErrorOrigin, FrameError, HEADER, Header, INITIAL_CREDIT, Kind, MAX_SMALL, flags, split_head,
};
use omni_request_error::Failure;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// A request on its way to a model.
#[derive(Debug)]
pub struct Submission {
    /// Which, and whose turn it is when. Its id is unique for the life of the scheduler.
    pub ticket: Ticket,
    /// JSON of a `RequestHead` without its closing brace and without `timeout_ms`, which is known when it is sent.
    pub head: Vec<u8>,
    /// The body.
    pub body: RequestBody,
    /// The client waits until then.
    pub deadline: Instant,
    /// Where the answer goes.
    pub reply: ReplyTo,
}

#[derive(Debug)]
enum Reply {
    /// Nothing was answered yet.
    Open(ReplyTo),
    /// The answer is being streamed.
    Streaming(Filler),
    /// Answered; the last frame is still to come. Chunks of a stream may follow until the model has heard that its client
    /// is gone: as many bytes, headers included, as it may still have credit for.
    Done { credit: usize },
}

impl Reply {
    const DONE: Self = Self::Done { credit: INITIAL_CREDIT + HEADER };
}

#[derive(Debug)]
struct Entry {
    head: Vec<u8>,
    body: RequestBody,
    deadline: Instant,
    sent: Option<Sent>,
    has_usage: bool,
    reply: Reply,
    /// For an answer of which a part is here.
    room: Option<BodyPermit>,
}

#[derive(Debug, Clone)]
struct Sent {
    at: Instant,
    to: Recipient,
}

/// Which instance gets a request.
#[derive(Debug, Clone)]
pub struct Recipient {
    /// It alone may answer.
    pub instance: InstanceNumber,
    /// What it runs.
    pub content: Arc<Content>,
    /// The last wait for its GPU memory.
    pub swap: Option<Swap>,
}

/// A frame that the model may not send at this point.
#[derive(Debug, thiserror::Error)]
pub enum BrokenWire {
    /// See [`FrameError`].
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// See [`BadChunk`].
    #[error(transparent)]
    Chunk(#[from] BadChunk),
    /// An answer to a request that it does not have.
    #[error("the model answered a request that it does not have")]
    Stranger,
    /// Usage of a request is one frame: each costs the scheduler more than the model.
    #[error("the model reported the usage of a request twice")]
    SecondUsage,
    /// A head or error that is not what it should be.
    #[error("the model sent a frame whose content is not as agreed")]
    Content,
}

/// What a frame was.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// The last frame of this request.
    Last(RequestId),
    /// More will follow.
    More,
    /// Usage to be counted.
    Usage(Vec<(String, u64)>),
}

/// All requests of one model.
#[derive(Debug, Default)]
pub struct Requests {
    entries: HashMap<RequestId, Entry>,
}

impl Requests {
    /// Takes a request; it is not sent yet.
    pub fn add(&mut self, submission: Submission) {
        let Submission { ticket, head, body, deadline, reply } = submission;
        let reply = Reply::Open(reply);
        let entry = Entry { head, body, deadline, sent: None, has_usage: false, reply, room: None };
        self.entries.insert(ticket.id, entry);
    }

    /// Writes a request to an instance, `at` this moment. Returns `false` when it cannot be sent (any more).
    pub fn send(&mut self, id: RequestId, connection: &mut DataConnection, to: Recipient, at: Instant) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else { return false };
        let timeout = entry.deadline.saturating_duration_since(at);
        let mut head = Vec::with_capacity(entry.head.len() + 40);
        head.extend_from_slice(&entry.head);
        head.extend_from_slice(format!(",\"timeout_ms\":{}}}", timeout.as_millis()).as_bytes());
        match &mut entry.body {
            RequestBody::Collected(kind, body) => {
                let content = match kind {
                    BodyKind::Json => flags::JSON,
                    BodyKind::Bytes => flags::BYTES,
                };
                connection.request(id.0, content, &head, body.clone(), None);
            }
            RequestBody::Streamed(body) => {
                let Some(BodySocket { socket, sent }) = body.take() else { return false };
                connection.request(id.0, flags::BODY_STREAM | flags::BYTES, &head, Bytes::new(), Some(socket));
                let _ = sent.send(BodyReader::Model); // nobody uploads any more: the model reads to the cut
            }
        }
        entry.sent = Some(Sent { at, to });
        true
    }

    /// The instance that was sent this request.
    #[must_use]
    pub fn recipient(&self, id: RequestId) -> Option<InstanceNumber> {
        Some(self.entries.get(&id)?.sent.as_ref()?.to.instance)
    }

    /// The id of a request as its client knows it.
    #[must_use]
    pub fn id_of(&self, id: RequestId) -> Option<String> {
        #[derive(serde::Deserialize)]
        struct Named {
            id: String,
        }
        let whole = [self.entries.get(&id)?.head.as_slice(), b"}"].concat();
        serde_json::from_slice(&whole).ok().map(|Named { id }| id)
    }

    /// Whether a request that was to be sent can be sent again: the whole of it is still here.
    #[must_use]
    pub fn can_be_sent_again(&self, id: RequestId) -> bool {
        self.entries.get(&id).is_some_and(|entry| !matches!(entry.body, RequestBody::Streamed(None)))
    }

    /// Ends a request with a failure; a stream that has begun ends with an error event.
    pub fn fail(&mut self, id: RequestId, failure: &Failure) {
        if let Some(entry) = self.entries.remove(&id) {
            match entry.reply {
                Reply::Open(reply) => drop(reply.send(Err(failure.clone().into()))),
                Reply::Streaming(filler) => filler.end(End::Failed(failure.stream_message())),
                Reply::Done { .. } => {}
            }
        }
    }

    /// Gives a request back that no instance had.
    pub fn hand_back(&mut self, id: RequestId) {
        if let Some(Entry { body, reply: Reply::Open(reply), .. }) = self.entries.remove(&id) {
            let _ = reply.send(Err(Unanswered::Unsent(body))); // or nobody waits for it
        }
    }

    /// Forgets a request that nobody waits for.
    pub fn forget(&mut self, id: RequestId) {
        self.entries.remove(&id);
    }

    /// Lends room for a large answer of an instance, whose beginning is here. Returns `false` when there is none, or nobody waits
    /// for it: what comes of it is of no use.
    ///
    /// # Errors
    /// It does not have this request.
    pub fn begins(
        &mut self,
        from: InstanceNumber,
        header: &Header,
        share: &Arc<BudgetShare>,
        now: Instant,
    ) -> Result<bool, BrokenWire> {
        let entry = self.entries.get_mut(&RequestId(header.id)).ok_or(BrokenWire::Stranger)?;
        if entry.sent.as_ref().is_none_or(|sent| sent.to.instance != from) {
            return Err(BrokenWire::Stranger);
        }
        let waits = matches!(&entry.reply, Reply::Open(reply) if !reply.is_closed());
        entry.room = if waits { share.incoming_response(header.length.into(), now) } else { None };
        Ok(entry.room.is_some())
    }

    /// Takes one frame of an instance.
    ///
    /// # Errors
    /// [`BrokenWire`]: the connection is not to be used further.
    pub fn take(&mut self, from: InstanceNumber, header: &Header, payload: Bytes) -> Result<Taken, BrokenWire> {
        let entry = self.entries.get_mut(&RequestId(header.id)).ok_or(BrokenWire::Stranger)?;
        let sent = entry.sent.as_ref().filter(|sent| sent.to.instance == from).ok_or(BrokenWire::Stranger)?;
        match header.kind {
            Kind::Response => {
                let answer = whole_answer(header, payload, sent)?;
                let answer = answer.map(|answer| Answer { room: entry.room.take(), ..answer });
                let answer = answer.ok_or(Unanswered::Failed(Failure::Raised));
                match std::mem::replace(&mut entry.reply, Reply::DONE) {
                    Reply::Open(reply) => drop(reply.send(answer)),
                    Reply::Streaming(_) => return Err(BrokenWire::Content),
                    Reply::Done { .. } => {}
                }
                self.entries.remove(&RequestId(header.id));
                Ok(Taken::Last(RequestId(header.id)))
            }
            Kind::Stream => {
                let head = if payload.is_empty() { None } else { Some(answer_head(&payload)?) };
                let shape = match header.flags & flags::CONTENT {
                    flags::EVENTS => Shape::Events,
                    flags::BYTES => Shape::Bytes,
                    _ => return Err(BrokenWire::Content),
                };
                let Reply::Open(reply) = std::mem::replace(&mut entry.reply, Reply::DONE) else {
                    return Err(BrokenWire::Content);
                };
                let (filler, reader) = stream(shape);
                let answer = answer(status(header)?, head, Body::Stream(reader), sent);
                if reply.send(Ok(answer)).is_ok() {
                    entry.reply = Reply::Streaming(filler);
                }
                Ok(Taken::More)
            }
            Kind::Chunk => {
                match &mut entry.reply {
                    Reply::Streaming(filler) => filler.chunk(header.flags, &payload)?,
                    Reply::Done { credit } => {
                        *credit = credit.checked_sub(payload.len() + HEADER).ok_or(BadChunk::OverCredit)?;
                    }
                    Reply::Open(_) => return Err(BrokenWire::Content),
                }
                Ok(Taken::More)
            }
            Kind::End => {
                match std::mem::replace(&mut entry.reply, Reply::DONE) {
                    Reply::Streaming(filler) => filler.end(End::Complete),
                    Reply::Done { .. } => {}
                    Reply::Open(_) => return Err(BrokenWire::Content),
                }
                self.entries.remove(&RequestId(header.id));
                Ok(Taken::Last(RequestId(header.id)))
            }
            Kind::Error => {
                let origin = ErrorOrigin::from_byte(header.flags).ok_or(BrokenWire::Content)?;
                let body: ErrorBody = serde_json::from_slice(&payload).map_err(|_| BrokenWire::Content)?;
                let failure = match origin {
                    ErrorOrigin::Handler if (400..600).contains(&header.code) => {
                        Failure::Handler { status: header.code, message: body.message }
                    }
                    ErrorOrigin::Handler => return Err(BrokenWire::Content),
                    ErrorOrigin::Raised | ErrorOrigin::Unserialisable => Failure::Raised,
                    ErrorOrigin::Cancelled => Failure::Cancelled,
                };
                self.fail(RequestId(header.id), &failure);
                Ok(Taken::Last(RequestId(header.id)))
            }
            Kind::Usage => {
                if std::mem::replace(&mut entry.has_usage, true) {
                    return Err(BrokenWire::SecondUsage);
                }
                let usage: HashMap<String, f64> = serde_json::from_slice(&payload).map_err(|_| BrokenWire::Content)?;
                Ok(Taken::Usage(usage.into_iter().filter_map(counted).collect()))
            }
            // Health is no matter of a request's: the model's task has taken it.
            Kind::Request | Kind::Credit | Kind::Cancel | Kind::Check | Kind::Health => Err(BrokenWire::Content),
        }
    }
}

/// Usage is counted in whole units; what is not a sensible amount is left out.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range was checked")]
fn counted((unit, amount): (String, f64)) -> Option<(String, u64)> {
    let name_fits =
        !unit.is_empty() && unit.len() <= 32 && unit.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    (name_fits && (0.0..1e15).contains(&amount)).then(|| (unit, amount.round() as u64))
}

fn status(header: &Header) -> Result<u16, BrokenWire> {
    if (200..600).contains(&header.code) { Ok(header.code) } else { Err(BrokenWire::Content) }
}

fn answer_head(json: &[u8]) -> Result<AnswerHead, BrokenWire> {
    serde_json::from_slice(json).map_err(|_| BrokenWire::Content)
}

/// `None` when the content is not the JSON that it claims to be: that request failed, the wire is whole.
fn whole_answer(header: &Header, payload: Bytes, sent: &Sent) -> Result<Option<Answer>, BrokenWire> {
    let (head, content) = if header.flags & flags::HEAD == 0 {
        (None, payload)
    } else {
        let (head, rest) = split_head(&payload)?;
        if head.len() > MAX_SMALL {
            return Err(BrokenWire::Content);
        }
        (Some(answer_head(head)?), payload.slice_ref(rest))
    };
    let body = match header.flags & flags::CONTENT {
        flags::JSON if serde_json::from_slice::<&RawValue>(&content).is_ok() => Body::Json(content),
        flags::JSON => return Ok(None),
        flags::BYTES => Body::Bytes(content),
        _ => return Err(BrokenWire::Content),
    };
    Ok(Some(answer(status(header)?, head, body, sent)))
}

fn answer(status: u16, head: Option<AnswerHead>, body: Body, sent: &Sent) -> Answer {
    Answer {
        status,
        head,
        body,
        room: None,
        sent_at: sent.at,
        swap: sent.to.swap,
        content: Arc::clone(&sent.to.content),
    }
}
