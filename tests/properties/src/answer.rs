//! Answers of a model, from its first byte to the client's response: frames, the requests that it has, and answers,
//! events and failures of HTTP.

use crate::scheduler::RUNTIME;
use bytes::{Bytes, BytesMut};
use hyper::Response;
use omni_body::{BodyKind, RequestBody};
use omni_body::{Chunk, StreamKind};
use omni_engine_client::{
    Answer, AnswerContent, DataConnection, Execution, FrameOutcome, InstanceName, Recipient, Request, RequestTable,
    StartTimes, StreamEnd, StreamRead, StreamReader, Unanswered, split_frame,
};
use omni_engine_protocol::frame::{INITIAL_CREDIT, Kind, MAX_ANSWER, RequestHead};
use omni_inference::answer::{json_body, response_head};
use omni_policy::InstanceNumber;
use omni_policy::dispatch::RequestId;
use omni_request_error::Failure;
use omni_workers_ai::StreamEncoder;
use omni_workers_ai::error_response;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::oneshot::{self, Receiver};
use tokio::task::yield_now;

/// The instance that sends, and an instance that does not.
const MODEL: InstanceNumber = InstanceNumber(1);
const OTHER: InstanceNumber = InstanceNumber(2);
/// Requests that the model has; the client of the last one is gone.
const ITS: [u64; 4] = [1, 2, 3, 4];
const GONE: u64 = 4;
/// A request of another instance, and a request that no instance has yet.
const OTHERS: u64 = 5;
const UNSENT: u64 = 6;
/// The type of server-sent events.
const EVENTS: &[u8] = b"text/event-stream";
/// Headers that an answer has beside a model's.
const OURS: usize = 2;
/// A JSON text has at most six bytes for one of its source, and an event a little around it for each chunk.
const RENDERED: usize = 8 * INITIAL_CREDIT;

/// A client that waits.
enum Client {
    Waits(Receiver<Result<Answer, Unanswered>>),
    Reads(Box<Reads>),
    Done,
}

/// A client that reads a stream: what it got, and which of the node's and the model's events are in it.
struct Reads {
    reader: StreamReader,
    encoder: StreamEncoder,
    got: Vec<u8>,
    has_rendered: bool,
    has_own: bool,
    end: Option<StreamEnd>,
}

/// Takes what a model has sent.
///
/// # Panics
/// A client gets what no model may have it get, two answers, or none.
pub fn holds(data: &[u8]) {
    RUNTIME.with(|runtime| {
        // The driver of the run before releases its sockets.
        runtime.block_on(yield_now());
        let _inside = runtime.enter();
        let (mut requests, mut clients) = begin();
        let mut ended = Vec::new();
        let mut chunks = BTreeMap::<u64, usize>::new();
        let mut input = BytesMut::from(data);
        while let Ok(Some((header, payload))) = split_frame(&mut input) {
            assert!(payload.len() == header.length as usize && payload.len() <= MAX_ANSWER);
            if header.kind == Kind::Health {
                continue; // taken before
            }
            match requests.on_frame(MODEL, &header, payload.clone()) {
                Err(_) => break, // nothing more is read
                Ok(FrameOutcome::Finished(RequestId(id))) => {
                    assert!(id == header.id && ITS.contains(&id) && !ended.contains(&id));
                    ended.push(id);
                }
                Ok(FrameOutcome::Continues) => assert!(ITS.contains(&header.id) && !ended.contains(&header.id)),
                Ok(FrameOutcome::Usage(usage)) => assert!(usage.iter().all(|(unit, count)| {
                    unit.len() <= 32
                        && unit.bytes().all(|byte| byte.is_ascii_graphic())
                        && *count <= 1_000_000_000_000_000
                })),
            }
            if header.kind == Kind::Chunk {
                *chunks.entry(header.id).or_default() += 1;
            }
            // A client that is slow takes nothing yet.
            if header.kind != Kind::Chunk || header.code % 2 == 0 {
                clients.get_mut(&header.id).into_iter().for_each(|client| client.poll(&payload));
            }
        }
        // The connection has ended, and all its remaining requests fail.
        ITS.into_iter().filter(|id| !ended.contains(id)).for_each(|id| requests.fail(RequestId(id), &Failure::Died));
        for (id, mut client) in clients {
            client.poll(&Bytes::new());
            match client {
                Client::Waits(_) => assert!(id == OTHERS || id == UNSENT, "{id} waits for ever"),
                Client::Reads(reads) => {
                    let end = reads.end.clone().expect("every stream has an end");
                    assert!(end != StreamEnd::Complete || ended.contains(&id), "cut, and taken for complete");
                    stream_holds(&reads, &end, chunks.get(&id).copied().unwrap_or(0));
                }
                Client::Done => assert!(ITS.contains(&id)),
            }
        }
    });
}

/// Requests as the model's task has them, and their clients.
fn begin() -> (RequestTable, BTreeMap<u64, Client>) {
    let (mut requests, mut clients) = (RequestTable::default(), BTreeMap::new());
    let (mut connection, _model) = DataConnection::pair().expect("descriptors");
    for id in ITS.into_iter().chain([OTHERS, UNSENT]) {
        let (reply, answer) = oneshot::channel();
        let deadline = Instant::now() + Duration::from_secs(60);
        let body = RequestBody::Collected(BodyKind::Json, Bytes::new());
        requests.insert(
            RequestId(id),
            Request {
                head: head(),
                body,
                awaits_turn: false,
                newer: None,
                deadline,
                reply,
                execution: Execution::default(),
            },
        );
        let instance = if id == OTHERS { OTHER } else { MODEL };
        let name = Arc::new(InstanceName { id: "0".to_owned(), version: "0".to_owned() });
        let to = Recipient { instance, name, swap: None, start: StartTimes::default() };
        assert!(id == UNSENT || requests.send(RequestId(id), &mut connection, to, Instant::now()));
        if id != GONE {
            clients.insert(id, Client::Waits(answer));
        }
    }
    (requests, clients)
}

fn head() -> RequestHead {
    RequestHead {
        kind: None,
        id: "x".to_owned(),
        method: "POST".to_owned(),
        timeout_ms: 0,
        session: None,
        headers: Vec::new(),
        body_length: None,
        body_handed: false,
        parameters: None,
    }
}

impl Client {
    /// Takes what there is. `payload`: of the frame that brought it.
    fn poll(&mut self, payload: &Bytes) {
        if let Self::Waits(answer) = self {
            *self = match answer.try_recv() {
                Err(TryRecvError::Empty) => return,
                // No instance is left that could answer: reported as a death.
                Err(TryRecvError::Closed) => Self::Done,
                Ok(Ok(answer)) => answered(answer, payload),
                Ok(Err(Unanswered::Failed(failure))) => {
                    failed(&failure);
                    Self::Done
                }
                Ok(Err(Unanswered::NotSent(_) | Unanswered::Turn)) => panic!("what was sent is not given back"),
            };
        }
        if let Self::Reads(reads) = self {
            let mut context = Context::from_waker(Waker::noop());
            while reads.end.is_none() {
                match reads.reader.poll_read(&mut context) {
                    Poll::Ready(StreamRead::Chunks(chunks)) => {
                        let cost = chunks.cost();
                        reads.has_own |= chunks.iter().any(|chunk| matches!(chunk, Chunk::Bytes(_)));
                        reads.has_rendered |= chunks.iter().any(|chunk| !matches!(chunk, Chunk::Bytes(_)));
                        let data = reads.encoder.encode(chunks);
                        assert!(data.len() <= RENDERED && cost <= 2 * INITIAL_CREDIT, "more than its credit");
                        reads.got.extend_from_slice(&data);
                    }
                    Poll::Ready(StreamRead::End(last)) => reads.end = Some(last),
                    Poll::Pending => return,
                }
            }
        }
    }
}

/// Checks the answer as a client gets it: one value in our envelope, or bytes; and no header that only the node may
/// set.
fn answered(answer: Answer, payload: &Bytes) -> Client {
    let Answer { status, head, content, .. } = answer;
    let head = head.unwrap_or_default();
    let response: Response<()> = response_head(status, &head, &content);
    assert!((200..600).contains(&status) && response.status() == status);
    assert!(response.headers().len() <= 64 + OURS);
    let media: Vec<_> = response.headers().get_all("content-type").iter().collect();
    assert_eq!(media.len(), 1);
    let is_json = matches!(content, AnswerContent::Json(_));
    assert!(!is_json || head.media_type.is_some() || media[0] == "application/json");
    for owned in ["connection", "content-length", "date", "server", "transfer-encoding", "upgrade", "x-request-id"] {
        assert!(!response.headers().contains_key(owned), "{owned}");
    }
    match content {
        AnswerContent::Json(json) => {
            let told = json_body(status, json.clone(), false).bytes().expect("all of it");
            #[derive(serde::Deserialize)]
            #[serde(deny_unknown_fields)]
            struct Envelope<'a> {
                #[serde(borrow)]
                result: &'a RawValue,
                success: bool,
                errors: Vec<Value>,
                messages: Vec<Value>,
            }
            let envelope: Envelope<'_> = serde_json::from_slice(&told).expect("an envelope around one value");
            assert_eq!(envelope.result.get().as_bytes(), json.trim_ascii());
            assert_eq!((envelope.success, envelope.errors.is_empty()), (status < 400, status < 400));
            assert!(envelope.messages.is_empty());
            Client::Done
        }
        AnswerContent::Bytes(bytes) => {
            assert!(payload.ends_with(&bytes));
            Client::Done
        }
        AnswerContent::Stream(reader) => {
            if reader.kind() == StreamKind::Generation {
                return Client::Done; // refused by the run API
            }
            assert!(reader.kind() == StreamKind::Bytes || media[0].as_bytes().to_ascii_lowercase().starts_with(EVENTS));
            let encoder = StreamEncoder::new(reader.kind());
            let (got, has_rendered, has_own) = (Vec::new(), false, false);
            Client::Reads(Box::new(Reads { reader, encoder, got, has_rendered, has_own, end: None }))
        }
    }
}

/// Checks the message of a failure.
fn failed(failure: &Failure) {
    let response = error_response(failure);
    let status = response.status().as_u16();
    assert!((400..600).contains(&status), "{status}");
    let body: Value = serde_json::from_slice(response.body()).expect("JSON");
    assert_eq!((&body["success"], &body["result"]), (&Value::Bool(false), &Value::Null));
    assert_eq!(body["errors"][0]["message"], failure.to_string());
    if let Failure::Handler { status: said, .. } = failure {
        assert_eq!(status, *said);
    }
}

/// Checks a stream: as many events as the model sent chunks, each of one line, and a last one for the end; or bytes,
/// and a cut. Of the model's own events, only the node's last one can be told apart.
fn stream_holds(reads: &Reads, end: &StreamEnd, chunks: usize) {
    let Reads { reader, encoder, got, has_rendered, has_own, end: _ } = reads;
    let is_complete = *end == StreamEnd::Complete;
    let last = encoder.finish(match end {
        StreamEnd::Complete => Ok(()),
        StreamEnd::Failed(failure) => Err(failure.stream_message()),
    });
    if reader.kind() == StreamKind::Bytes {
        return assert_eq!(last.is_err(), !is_complete);
    }
    if *has_own {
        let last = last.expect("events are not cut");
        assert_eq!(last.is_none(), !has_rendered && is_complete);
        assert!(is_complete || last.is_some_and(|last| last.starts_with(b"\n\ndata: ")));
        return;
    }
    let last = last.expect("a stream of events ends with one").expect("and says how");
    let text = String::from_utf8([got.as_slice(), &last].concat()).expect("UTF-8");
    assert!(!text.contains('\r'));
    let events: Vec<&str> = text.strip_suffix("\n\n").expect("a whole last event").split("\n\n").collect();
    assert_eq!(events.len(), chunks + 1, "{text}");
    let data = |event: &&str| event.strip_prefix("data: ").filter(|data| !data.contains('\n')).map(str::to_owned);
    let data: Vec<String> = events.iter().map(|event| data(event).expect("one line of data")).collect();
    let (said, values) = data.split_last().expect("the last one is ours");
    assert!(values.iter().all(|value| serde_json::from_str::<&RawValue>(value).is_ok()), "{text}");
    match end {
        StreamEnd::Complete => assert_eq!(said, "[DONE]"),
        StreamEnd::Failed(failure) => {
            let event: Value = serde_json::from_str(said).expect("JSON");
            assert_eq!(event["error"]["message"], failure.stream_message().as_ref());
        }
    }
}
