//! Requests of one model, from their submission to their last frame.
//!
//! ```text
//!   insert ──▶ waiting ──send──▶ sent ──▶ streaming ──▶ (finished)
//!                 │                │  answer               ▲
//!                 └─ return_unsent └───────────────────────┘
//! ```
//!
//! Invariant: each client gets one answer, or one failure; after the answer has begun, a failure ends its stream. Only the
//! instance that a request was sent to may answer it.

use super::answer::{Answer, AnswerContent, ReplySender, Unanswered};
use super::connection::DataConnection;
use super::execution::{Execution, InstanceName, SentTo};
use super::request::{NewerParameter, Request};
use super::stream::{StreamEnd, StreamReader, StreamWriter, stream};
use super::violation::ProtocolViolation;
use super::waits::{StartTimes, Swap};
use bytes::Bytes;
use omni_body::{BodyKind, BodyPermit, BodyReader, BodySocket, RequestBody, StreamKind};
use omni_engine_protocol::frame::{
    AnswerHead, CONTEXT_LENGTH, ErrorBody, ErrorOrigin, HEADER, Header, INITIAL_CREDIT, Kind, MAX_CHUNK, MAX_SMALL,
    RequestHead, flags, split_head,
};
use omni_policy::InstanceNumber;
use omni_policy::dispatch::RequestId;
use omni_request_error::{Failure, InvalidCode, InvalidRequest};
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

#[derive(Debug)]
enum Reply {
    /// Nothing was answered yet.
    Open(ReplySender),
    /// The answer is being streamed.
    Streaming(StreamWriter),
    /// Answered, or the client is gone; the last frame is still to come. Chunks may follow until the engine has read the
    /// cancellation: as many bytes, headers included, as it may still have credit for.
    Done { credit: usize },
}

impl Reply {
    const DONE: Self = Self::Done { credit: INITIAL_CREDIT + HEADER };
}

#[derive(Debug)]
struct Entry {
    head: RequestHead,
    body: RequestBody,
    awaits_turn: bool,
    newer: Option<NewerParameter>,
    deadline: Instant,
    sent: Option<Sent>,
    has_usage: bool,
    reply: Reply,
    /// For a large answer that is arriving.
    permit: Option<BodyPermit>,
    execution: Execution,
    /// The deadline has passed: whatever the engine reports, this is why the request fails.
    is_expired: bool,
}

#[derive(Debug, Clone)]
struct Sent {
    at: Instant,
    to: Recipient,
}

/// Instance that a request is sent to.
#[derive(Debug, Clone)]
pub struct Recipient {
    /// Instance.
    pub instance: InstanceNumber,
    /// Name of the instance.
    pub name: Arc<InstanceName>,
    /// Last wait of the request for GPU memory.
    pub swap: Option<Swap>,
    /// Start of the instance.
    pub start: StartTimes,
}

/// Effect of a frame.
#[derive(Debug, PartialEq, Eq)]
pub enum FrameOutcome {
    /// The request is finished: this was its last frame.
    Finished(RequestId),
    /// More frames will follow.
    Continues,
    /// Units that the handler used, to be counted.
    Usage(Vec<(String, u64)>),
}

/// Requests of one model.
#[derive(Debug, Default)]
pub struct RequestTable {
    entries: HashMap<RequestId, Entry>,
}

impl RequestTable {
    /// Adds a request, which is not sent yet.
    pub fn insert(&mut self, id: RequestId, request: Request) {
        let Request { head, body, awaits_turn, newer, deadline, reply, execution } = request;
        let reply = Reply::Open(reply);
        let (sent, permit, has_usage, is_expired) = (None, None, false, false);
        let entry =
            Entry { head, body, awaits_turn, newer, deadline, sent, has_usage, reply, permit, execution, is_expired };
        self.entries.insert(id, entry);
    }

    /// Returns a request that waits for its turn to its submitter, now that an instance has a place for it. Returns `false`
    /// for one that is to be sent.
    pub fn return_turn(&mut self, id: RequestId) -> bool {
        if !self.entries.get(&id).is_some_and(|entry| entry.awaits_turn) {
            return false;
        }
        if let Some(Entry { reply: Reply::Open(reply), .. }) = self.entries.remove(&id) {
            let _ = reply.send(Err(Unanswered::Turn)); // or its client is gone
        }
        true
    }

    /// Refuses a request with a parameter that an instance of this version of its protocol does not know. Returns `false` for
    /// one that the instance knows all of.
    pub fn refuse_newer(&mut self, id: RequestId, version: u32) -> bool {
        let newer = self.entries.get(&id).and_then(|entry| entry.newer).filter(|newer| newer.since > version);
        if let Some(newer) = newer {
            self.fail(id, &newer.refusal().into());
        }
        newer.is_some()
    }

    /// Queues a request on an instance's connection. Returns `false` when it is gone, or its body was read already.
    pub fn send(&mut self, id: RequestId, connection: &mut DataConnection, to: Recipient, now: Instant) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else { return false };
        let timeout = entry.deadline.saturating_duration_since(now);
        entry.head.timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let Ok(head) = serde_json::to_vec(&entry.head) else { return false }; // a head is always JSON
        match &mut entry.body {
            RequestBody::Collected(kind, body) => {
                let flags = match kind {
                    BodyKind::Json => flags::JSON,
                    BodyKind::Bytes => flags::BYTES,
                };
                connection.send_request(id.0, flags, &head, body.clone(), None);
            }
            RequestBody::Streamed(body) => {
                let Some(BodySocket { socket, sent }) = body.take() else { return false };
                let flags = flags::BODY_STREAM | flags::BYTES;
                connection.send_request(id.0, flags, &head, Bytes::new(), Some(socket));
                let _ = sent.send(BodyReader::Model); // without an upload the engine reads to the cut
            }
        }
        let (instance, swap, start) = (Arc::clone(&to.name), to.swap, to.start);
        entry.execution.on_sent(SentTo { at: now, instance, swap, start });
        entry.sent = Some(Sent { at: now, to });
        true
    }

    /// Instance that a request was sent to.
    #[must_use]
    pub fn recipient(&self, id: RequestId) -> Option<InstanceNumber> {
        Some(self.entries.get(&id)?.sent.as_ref()?.to.instance)
    }

    /// Id of a request as its client knows it.
    #[must_use]
    pub fn client_id(&self, id: RequestId) -> Option<&str> {
        self.entries.get(&id).map(|entry| entry.head.id.as_str())
    }

    /// Returns true if the request can be sent, or sent again: its whole body is still here.
    #[must_use]
    pub fn can_be_sent(&self, id: RequestId) -> bool {
        self.entries.get(&id).is_some_and(|entry| !matches!(entry.body, RequestBody::Streamed(None)))
    }

    /// Fails a request, or breaks its stream off.
    pub fn fail(&mut self, id: RequestId, failure: &Failure) {
        if let Some(entry) = self.entries.remove(&id) {
            let failure = if entry.is_expired { Failure::Deadline } else { failure.clone() };
            match entry.reply {
                Reply::Open(reply) => drop(reply.send(Err(failure.into()))),
                Reply::Streaming(writer) => writer.end(StreamEnd::Failed(failure)),
                Reply::Done { .. } => {}
            }
        }
    }

    /// Breaks the stream of a request off whose deadline has passed. The engine's last frame is still to come.
    pub fn expire(&mut self, id: RequestId) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.is_expired = true;
        if let Reply::Streaming(writer) = &entry.reply {
            writer.end(StreamEnd::Failed(Failure::Deadline));
        }
    }

    /// Returns a request that no instance got to its submitter.
    pub fn return_unsent(&mut self, id: RequestId) {
        if let Some(Entry { body, reply: Reply::Open(reply), .. }) = self.entries.remove(&id) {
            let _ = reply.send(Err(Unanswered::NotSent(body))); // or its client is gone
        }
    }

    /// Drops a request whose client is gone.
    pub fn forget(&mut self, id: RequestId) {
        self.entries.remove(&id);
    }

    /// Returns true if the client still waits for the answer whose header has arrived.
    ///
    /// # Errors
    /// The instance does not have this request.
    pub fn awaits_answer(&self, from: InstanceNumber, header: &Header) -> Result<bool, ProtocolViolation> {
        let entry = self.entries.get(&RequestId(header.id)).ok_or(ProtocolViolation::UnknownRequest)?;
        if entry.sent.as_ref().is_none_or(|sent| sent.to.instance != from) {
            return Err(ProtocolViolation::UnknownRequest);
        }
        Ok(matches!(&entry.reply, Reply::Open(reply) if !reply.is_closed()))
    }

    /// Attaches the permit of a large answer, which goes to the client with the answer.
    pub fn attach_permit(&mut self, id: RequestId, permit: BodyPermit) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.permit = Some(permit);
        }
    }

    /// Handles a frame of an instance.
    ///
    /// # Errors
    /// A frame that the engine may not send.
    pub fn on_frame(
        &mut self,
        from: InstanceNumber,
        header: &Header,
        payload: Bytes,
    ) -> Result<FrameOutcome, ProtocolViolation> {
        let id = RequestId(header.id);
        let entry = self.entries.get_mut(&id).ok_or(ProtocolViolation::UnknownRequest)?;
        let sent = entry.sent.as_ref().filter(|sent| sent.to.instance == from);
        let sent = sent.ok_or(ProtocolViolation::UnknownRequest)?;
        match header.kind {
            Kind::Response => {
                let sent = sent.clone();
                entry.on_response(header, payload, sent)?;
            }
            Kind::Stream => {
                let sent = sent.clone();
                entry.on_stream(header, &payload, sent)?;
                return Ok(FrameOutcome::Continues);
            }
            Kind::Chunk => {
                entry.on_chunk(header, &payload)?;
                return Ok(FrameOutcome::Continues);
            }
            Kind::End => entry.on_end()?,
            Kind::Error => {
                let failure = failure(header, &payload)?;
                self.fail(id, &failure);
            }
            Kind::Usage => {
                if std::mem::replace(&mut entry.has_usage, true) {
                    return Err(ProtocolViolation::SecondUsage);
                }
                let units = usage(&payload)?;
                entry.execution.on_reported(&units);
                return Ok(FrameOutcome::Usage(units));
            }
            // Health and metrics belong to no request: the model's actor handles them.
            Kind::Request | Kind::Credit | Kind::Cancel | Kind::Check | Kind::Batch | Kind::Health | Kind::Metrics => {
                return Err(ProtocolViolation::Content);
            }
        }
        self.entries.remove(&id);
        Ok(FrameOutcome::Finished(id))
    }
}

impl Entry {
    fn on_response(&mut self, header: &Header, payload: Bytes, sent: Sent) -> Result<(), ProtocolViolation> {
        let answer = whole_answer(header, payload, sent)?;
        let answer = answer.map(|answer| Answer { permit: self.permit.take(), ..answer });
        let answer = answer.ok_or(Unanswered::Failed(Failure::Raised));
        match std::mem::replace(&mut self.reply, Reply::DONE) {
            Reply::Open(reply) => drop(reply.send(answer)),
            Reply::Streaming(_) => return Err(ProtocolViolation::Content),
            Reply::Done { .. } => {}
        }
        Ok(())
    }

    fn on_stream(&mut self, header: &Header, payload: &[u8], sent: Sent) -> Result<(), ProtocolViolation> {
        let head = if payload.is_empty() { None } else { Some(answer_head(payload)?) };
        let kind = match header.flags & flags::CONTENT {
            flags::EVENTS => StreamKind::Events,
            flags::BYTES => StreamKind::Bytes,
            flags::EVENT => StreamKind::Generation,
            _ => return Err(ProtocolViolation::Content),
        };
        let Reply::Open(reply) = std::mem::replace(&mut self.reply, Reply::DONE) else {
            return Err(ProtocolViolation::Content);
        };
        let (writer, reader) = stream(kind);
        let answer = answer(status(header)?, head, AnswerContent::Stream(reader), sent);
        if reply.send(Ok(answer)).is_ok() {
            self.reply = Reply::Streaming(writer);
        }
        Ok(())
    }

    fn on_chunk(&mut self, header: &Header, payload: &[u8]) -> Result<(), ProtocolViolation> {
        match &mut self.reply {
            Reply::Streaming(writer) => writer.push(header.flags, payload),
            Reply::Done { credit } => {
                *credit = credit.checked_sub(payload.len() + HEADER).ok_or(ProtocolViolation::OverCredit)?;
                Ok(())
            }
            Reply::Open(_) => Err(ProtocolViolation::Content),
        }
    }

    fn on_end(&mut self) -> Result<(), ProtocolViolation> {
        match std::mem::replace(&mut self.reply, Reply::DONE) {
            Reply::Streaming(writer) => writer.end(StreamEnd::Complete),
            Reply::Done { .. } => {}
            Reply::Open(_) => return Err(ProtocolViolation::Content),
        }
        Ok(())
    }
}

fn failure(header: &Header, payload: &[u8]) -> Result<Failure, ProtocolViolation> {
    let origin = ErrorOrigin::from_byte(header.flags).ok_or(ProtocolViolation::Content)?;
    let body: ErrorBody = serde_json::from_slice(payload).map_err(|_| ProtocolViolation::Content)?;
    Ok(match origin {
        ErrorOrigin::Handler if header.code == 400 => bad_request(body),
        ErrorOrigin::Handler if (400..600).contains(&header.code) => {
            Failure::Handler { status: header.code, message: body.message }
        }
        ErrorOrigin::Handler => return Err(ProtocolViolation::Content),
        ErrorOrigin::Raised | ErrorOrigin::Unserialisable => Failure::Raised,
        ErrorOrigin::Cancelled => Failure::Cancelled,
    })
}

/// The handler's refusal of a request that is wrong.
fn bad_request(body: ErrorBody) -> Failure {
    let ErrorBody { message, parameter, code } = body;
    if code.as_deref() == Some(CONTEXT_LENGTH) {
        return InvalidRequest { message, parameter, code: InvalidCode::ContextLength }.into();
    }
    match parameter {
        Some(parameter) => InvalidRequest::new(parameter, message).into(),
        None => Failure::Handler { status: 400, message },
    }
}

fn usage(payload: &[u8]) -> Result<Vec<(String, u64)>, ProtocolViolation> {
    let usage: HashMap<String, f64> = serde_json::from_slice(payload).map_err(|_| ProtocolViolation::Content)?;
    Ok(usage.into_iter().filter_map(whole_units).collect())
}

/// Rounds usage to whole units; unreasonable names and amounts are left out.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range was checked")]
fn whole_units((unit, amount): (String, f64)) -> Option<(String, u64)> {
    let name_fits =
        !unit.is_empty() && unit.len() <= 32 && unit.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    (name_fits && (0.0..1e15).contains(&amount)).then(|| (unit, amount.round() as u64))
}

fn status(header: &Header) -> Result<u16, ProtocolViolation> {
    if (200..600).contains(&header.code) { Ok(header.code) } else { Err(ProtocolViolation::Content) }
}

fn answer_head(json: &[u8]) -> Result<AnswerHead, ProtocolViolation> {
    serde_json::from_slice(json).map_err(|_| ProtocolViolation::Content)
}

/// The answer of a `Response` frame; `None` when its content is not the JSON that it claims to be: that fails the request,
/// and the connection is still in step.
fn whole_answer(header: &Header, payload: Bytes, sent: Sent) -> Result<Option<Answer>, ProtocolViolation> {
    let (head, content) = if header.flags & flags::HEAD == 0 {
        (None, payload)
    } else {
        let (head, rest) = split_head(&payload)?;
        if head.len() > MAX_SMALL {
            return Err(ProtocolViolation::Content);
        }
        (Some(answer_head(head)?), payload.slice_ref(rest))
    };
    let content = match header.flags & flags::CONTENT {
        flags::JSON if serde_json::from_slice::<&RawValue>(&content).is_ok() => AnswerContent::Json(content),
        flags::JSON => return Ok(None),
        flags::BYTES => AnswerContent::Bytes(content),
        flags::TEXT => AnswerContent::Stream(whole_text(&content)?),
        _ => return Err(ProtocolViolation::Content),
    };
    Ok(Some(answer(status(header)?, head, content, sent)))
}

/// Generated text that came whole, as the stream of its only chunk.
fn whole_text(text: &[u8]) -> Result<StreamReader, ProtocolViolation> {
    if text.len() > MAX_CHUNK {
        return Err(ProtocolViolation::Content);
    }
    let (writer, reader) = stream(StreamKind::Generation);
    writer.push(flags::TEXT, text)?;
    writer.end(StreamEnd::Complete);
    Ok(reader)
}

fn answer(status: u16, head: Option<AnswerHead>, content: AnswerContent, sent: Sent) -> Answer {
    let Sent { at, to: Recipient { instance: _, name, swap, start: _ } } = sent;
    Answer { status, head, content, permit: None, sent_at: at, swap, instance: name }
}

#[cfg(test)]
mod tests {
    use super::super::stream::StreamRead;
    use super::*;
    use omni_body::{BodyBudget, BodyMetrics, Chunk};
    use std::future::poll_fn;
    use tokio::sync::oneshot;

    const MODEL: InstanceNumber = InstanceNumber(1);
    const ID: RequestId = RequestId(7);
    const OTHER: InstanceNumber = InstanceNumber(2);

    type Client = oneshot::Receiver<Result<Answer, Unanswered>>;

    /// A table with a request that was sent to `MODEL`, and its client.
    fn sent() -> (RequestTable, Client) {
        let mut table = RequestTable::default();
        let (reply, client) = oneshot::channel();
        let head = RequestHead {
            kind: None,
            id: "client-1".to_owned(),
            method: "POST".to_owned(),
            timeout_ms: 0,
            session: None,
            headers: Vec::new(),
            body_length: None,
            body_handed: false,
            parameters: None,
        };
        let body = RequestBody::Collected(BodyKind::Json, Bytes::from_static(b"{}"));
        let deadline = Instant::now() + std::time::Duration::from_secs(60);
        let (awaits_turn, newer, execution) = (false, None, Execution::default());
        table.insert(ID, Request { head, body, awaits_turn, newer, deadline, reply, execution });
        let (mut connection, _ends) = DataConnection::pair().unwrap();
        let name = Arc::new(InstanceName { id: "abc".to_owned(), version: "0123".to_owned() });
        let to = Recipient { instance: MODEL, name, swap: None, start: StartTimes::default() };
        assert!(table.send(ID, &mut connection, to, Instant::now()));
        (table, client)
    }

    fn frame(kind: Kind, flags: u8, payload: &'static [u8]) -> (Header, Bytes) {
        let length = payload.len() as u32;
        (Header { length, kind, flags, code: 200, id: ID.0 }, Bytes::from_static(payload))
    }

    fn on_frame(
        table: &mut RequestTable,
        from: InstanceNumber,
        frame: (Header, Bytes),
    ) -> Result<FrameOutcome, ProtocolViolation> {
        table.on_frame(from, &frame.0, frame.1)
    }

    #[tokio::test]
    async fn only_the_recipient_answers_and_the_permit_goes_with_the_answer() {
        let (mut table, mut client) = sent();
        assert_eq!((table.recipient(ID), table.client_id(ID)), (Some(MODEL), Some("client-1")));
        let response = || frame(Kind::Response, flags::JSON, b"42");
        assert_eq!(on_frame(&mut table, OTHER, response()), Err(ProtocolViolation::UnknownRequest));
        assert_eq!(table.awaits_answer(OTHER, &response().0), Err(ProtocolViolation::UnknownRequest));
        assert_eq!(table.awaits_answer(MODEL, &response().0), Ok(true));
        let budget = BodyBudget::new(1000, 1, BodyMetrics::default());
        table.attach_permit(ID, budget.share().incoming_response(2, Instant::now()).unwrap());
        assert_eq!(on_frame(&mut table, MODEL, response()), Ok(FrameOutcome::Finished(ID)));
        let answer = client.try_recv().unwrap().unwrap();
        assert!(matches!(answer.content, AnswerContent::Json(json) if json == "42"));
        assert_eq!((answer.permit.is_some(), &*answer.instance.version), (true, "0123"));
        assert_eq!(on_frame(&mut table, MODEL, response()), Err(ProtocolViolation::UnknownRequest));
    }

    #[test]
    fn refusals_of_a_handler_keep_their_class() {
        let header = |code| Header { length: 0, kind: Kind::Error, flags: ErrorOrigin::Handler as u8, code, id: ID.0 };
        let invalid = |parameter: Option<&str>, code| {
            InvalidRequest { message: "no".into(), parameter: parameter.map(str::to_owned), code }.into()
        };
        let plain = |status| Failure::Handler { status, message: "no".into() };
        for (status, body, expected) in [
            (400, r#"{"message":"no"}"#, plain(400)),
            (400, r#"{"message":"no","parameter":"n"}"#, invalid(Some("n"), InvalidCode::Value)),
            (400, r#"{"message":"no","code":"context_length_exceeded"}"#, invalid(None, InvalidCode::ContextLength)),
            (
                400,
                r#"{"message":"no","parameter":"messages","code":"context_length_exceeded"}"#,
                invalid(Some("messages"), InvalidCode::ContextLength),
            ),
            (400, r#"{"message":"no","code":"of a later engine"}"#, plain(400)),
            (422, r#"{"message":"no","parameter":"n","code":"context_length_exceeded"}"#, plain(422)),
        ] {
            assert_eq!(failure(&header(status), body.as_bytes()), Ok(expected), "{body}");
        }
    }

    #[tokio::test]
    async fn chunks_come_between_stream_and_end() {
        let (mut table, mut client) = sent();
        let chunk = || frame(Kind::Chunk, flags::TEXT, b"a");
        assert_eq!(on_frame(&mut table, MODEL, chunk()), Err(ProtocolViolation::Content));
        let begin = || frame(Kind::Stream, flags::EVENTS, b"");
        assert_eq!(on_frame(&mut table, MODEL, begin()), Ok(FrameOutcome::Continues));
        let answer = client.try_recv().unwrap().unwrap();
        assert!(matches!(answer.content, AnswerContent::Stream(reader) if reader.kind() == StreamKind::Events));
        assert_eq!(on_frame(&mut table, MODEL, chunk()), Ok(FrameOutcome::Continues));
        assert_eq!(on_frame(&mut table, MODEL, frame(Kind::End, 0, b"")), Ok(FrameOutcome::Finished(ID)));
    }

    #[tokio::test]
    async fn a_passed_deadline_breaks_off_a_stream_and_is_why_a_request_fails() {
        let (mut table, mut client) = sent();
        let begin = frame(Kind::Stream, flags::EVENTS, b"");
        assert_eq!(on_frame(&mut table, MODEL, begin), Ok(FrameOutcome::Continues));
        table.expire(ID);
        let AnswerContent::Stream(mut reader) = client.try_recv().unwrap().unwrap().content else {
            panic!("no stream")
        };
        let end = poll_fn(|context| reader.poll_read(context)).await;
        assert_eq!(end, StreamRead::End(StreamEnd::Failed(Failure::Deadline)));
        let late = frame(Kind::Chunk, flags::TEXT, b"a");
        assert_eq!(on_frame(&mut table, MODEL, late), Ok(FrameOutcome::Continues), "it was on its way");
        assert_eq!(on_frame(&mut table, MODEL, frame(Kind::End, 0, b"")), Ok(FrameOutcome::Finished(ID)));

        let (mut table, mut client) = sent();
        table.expire(ID);
        assert!(client.try_recv().is_err(), "the engine has not ended it");
        table.fail(ID, &Failure::Cancelled);
        assert!(matches!(client.try_recv().unwrap(), Err(Unanswered::Failed(Failure::Deadline))));
    }

    #[tokio::test]
    async fn a_whole_text_is_a_stream_of_one_chunk() {
        static LONG: [u8; MAX_CHUNK + 1] = [b'a'; MAX_CHUNK + 1];
        let (mut table, mut client) = sent();
        let text = frame(Kind::Response, flags::TEXT, b"moo");
        assert_eq!(on_frame(&mut table, MODEL, text), Ok(FrameOutcome::Finished(ID)));
        let AnswerContent::Stream(mut reader) = client.try_recv().unwrap().unwrap().content else {
            panic!("no stream")
        };
        assert_eq!(reader.kind(), StreamKind::Generation);
        let StreamRead::Chunks(chunks) = poll_fn(|context| reader.poll_read(context)).await else { panic!("no chunk") };
        assert!(matches!(chunks.iter().collect::<Vec<_>>()[..], [Chunk::Text("moo")]));
        let end = poll_fn(|context| reader.poll_read(context)).await;
        assert!(matches!(end, StreamRead::End(StreamEnd::Complete)));
        for (payload, violation) in [(&b"\xff"[..], ProtocolViolation::Chunk), (&LONG, ProtocolViolation::Content)] {
            let (mut table, _client) = sent();
            assert_eq!(on_frame(&mut table, MODEL, frame(Kind::Response, flags::TEXT, payload)), Err(violation));
        }
    }

    #[tokio::test]
    async fn chunks_for_a_client_that_is_gone_are_bounded_by_the_credit() {
        static LARGE: [u8; 128 * 1024] = [0; 128 * 1024];
        let (mut table, client) = sent();
        drop(client);
        assert_eq!(on_frame(&mut table, MODEL, frame(Kind::Stream, flags::BYTES, b"")), Ok(FrameOutcome::Continues));
        let chunk = || frame(Kind::Chunk, flags::BYTES, &LARGE);
        assert_eq!(on_frame(&mut table, MODEL, chunk()), Ok(FrameOutcome::Continues));
        assert_eq!(
            on_frame(&mut table, MODEL, frame(Kind::Chunk, flags::BYTES, &LARGE[..1024])),
            Ok(FrameOutcome::Continues)
        );
        assert_eq!(on_frame(&mut table, MODEL, chunk()), Err(ProtocolViolation::OverCredit));
    }

    #[tokio::test]
    async fn usage_is_reported_once_in_whole_units() {
        let (mut table, _client) = sent();
        let usage = || frame(Kind::Usage, 0, b"{\"tokens\": 1.6, \"bad name\": 1, \"much\": 1e300}");
        assert_eq!(on_frame(&mut table, MODEL, usage()), Ok(FrameOutcome::Usage(vec![("tokens".to_owned(), 2)])));
        assert_eq!(on_frame(&mut table, MODEL, usage()), Err(ProtocolViolation::SecondUsage));
    }

    #[tokio::test]
    async fn content_that_is_not_json_fails_its_request_alone() {
        let (mut table, mut client) = sent();
        assert_eq!(
            on_frame(&mut table, MODEL, frame(Kind::Response, flags::JSON, b"{")),
            Ok(FrameOutcome::Finished(ID))
        );
        assert!(matches!(client.try_recv().unwrap(), Err(Unanswered::Failed(Failure::Raised))));
    }
}
