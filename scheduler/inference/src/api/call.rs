//! A request of one kind to one model: submission, and the response to its answer.

use crate::answer::{AnswerBody, Document, Used, timing_headers};
use crate::head;
use crate::in_flight::InFlightRequest;
use crate::memory::{AnswerMemory, LONGEST_WHOLE};
use crate::passed::{observe, pass_on};
use crate::state::RunApi;
use crate::submission::{Caller, Outcome};
use crate::trace::operation;
use bytes::{Bytes, BytesMut};
use hyper::Response;
use omni_body::{BodyKind, BodyPermit, RequestBody, StreamKind};
use omni_config::manifest::Kind;
use omni_engine_client::{Answer, AnswerContent, StreamEnd, StreamRead, StreamReader};
use omni_engine_protocol::frame::RequestKind;
use omni_generation::InvalidRequest;
use omni_ingress::body::{IncomingBody, ReceivedBody, RunningUpload, Upload};
use omni_policy::dispatch::hash_name;
use omni_request_error::Failure;
use omni_supervisor::metrics::Api;
use omni_supervisor::model::Model;
use omni_supervisor::model::content::Content;
use serde::Serialize;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Instant;

/// A client's request to one model, which is of the request's kind.
pub(crate) struct Call<'a> {
    pub(crate) api: &'a RunApi,
    pub(crate) caller: Caller<'a>,
    pub(crate) model: &'a Arc<Model>,
    pub(crate) content: &'a Content,
    pub(crate) deadline: Instant,
    /// API that the client uses.
    pub(crate) label: Api,
    /// Body as it came, for a scheduler that has to serve it in this one's place; `None`: the model gets it as it came.
    pub(crate) original: Option<Bytes>,
    /// The client's body, if the model reads it while it arrives.
    pub(crate) incoming: Option<&'a mut IncomingBody>,
}

/// Request in the form of the engine protocol.
pub(crate) struct ModelInput {
    /// `None`: the model gets the request as it came.
    kind: Option<RequestKind>,
    body: ReceivedBody,
    /// Name of a session, whose requests go to one instance.
    session: Option<String>,
    parameters: Option<Map<String, Value>>,
}

/// Answer of a model that has begun.
struct Begun {
    answer: Answer,
    in_flight: InFlightRequest,
    upload: Option<RunningUpload>,
    submitted: Instant,
}

/// Outcome of a submission.
enum Submission {
    /// The model has begun to answer.
    Begun(Begun),
    /// The successor has answered.
    Forwarded(Response<AnswerBody>),
}

/// Checks that a model is of the kind that a request is for.
pub(crate) fn check_kind(model: &Model, content: &Content, wanted: Kind) -> Result<(), InvalidRequest> {
    let kind = content.manifest.model.kind;
    if kind == wanted {
        return Ok(());
    }
    let lack = match wanted {
        Kind::Custom | Kind::TextGeneration => "does not generate text",
        Kind::Embeddings => "makes no embeddings",
        Kind::Rerank => "does not rank documents",
        Kind::SpeechToText => "does not transcribe speech",
        Kind::TextToSpeech => "makes no speech",
        Kind::TextToImage => "makes no images",
    };
    Err(InvalidRequest::unsupported("model", format!("`{}` {lack}: its kind is {:?}", model.name, kind.name())))
}

impl ModelInput {
    /// A request with a body of JSON. `permit`: memory of the client's body; `kept`: bytes that its answer needs of it. All of
    /// it counts until the answer has come.
    pub(crate) fn json(
        kind: RequestKind,
        body: impl Serialize,
        (mut permit, kept): (Option<BodyPermit>, u64),
    ) -> Result<Self, Failure> {
        let encoded = serde_json::to_vec(&body).map_err(|error| Failure::BadRequest(error.to_string()))?;
        drop(body);
        if let Some(permit) = &mut permit
            && !permit.grow(encoded.len() as u64 + kept, Instant::now())
        {
            return Err(Failure::NodeBusy);
        }
        Ok(Self::new(kind, collected(BodyKind::Json, encoded.into(), permit)))
    }

    /// A request with a body that was received.
    pub(crate) fn new(kind: RequestKind, body: ReceivedBody) -> Self {
        Self { kind: Some(kind), body, session: None, parameters: None }
    }

    /// A request that goes to the model as it came.
    pub(crate) fn as_received(body: ReceivedBody) -> Self {
        Self { kind: None, body, session: None, parameters: None }
    }

    /// The same, with the name of its session.
    pub(crate) fn with_session(self, session: Option<String>) -> Self {
        Self { session, ..self }
    }

    /// The same, with parameters beside a body that is a file.
    pub(crate) fn with_parameters(self, parameters: Map<String, Value>) -> Self {
        Self { parameters: Some(parameters), ..self }
    }
}

/// Bytes of memory that texts take.
pub(crate) fn bytes_of<'a>(texts: impl IntoIterator<Item = &'a String>) -> u64 {
    texts.into_iter().map(|text| (size_of::<String>() + text.len()) as u64).sum()
}

/// A body in memory.
pub(crate) fn collected(kind: BodyKind, bytes: Bytes, permit: Option<BodyPermit>) -> ReceivedBody {
    ReceivedBody { body: RequestBody::Collected(kind, bytes), length: None, handed_over: false, permit, upload: None }
}

impl Call<'_> {
    /// Serves the request with a document made of the model's whole answer.
    ///
    /// # Errors
    /// The failure, for the codec of the API.
    pub(crate) async fn document(
        mut self,
        input: ModelInput,
        render: impl FnOnce(&[u8]) -> Result<Document, Failure>,
    ) -> Result<Response<AnswerBody>, Failure> {
        let begun = match self.submit(input).await? {
            Submission::Begun(begun) => begun,
            Submission::Forwarded(response) => return Ok(response),
        };
        let Begun { answer, mut in_flight, upload: _, submitted } = begun;
        observe((self.caller, self.model), answer.sent_at, submitted);
        let (instance, sent_at, swap) = (answer.instance, answer.sent_at, answer.swap);
        let whole = match answer.content {
            AnswerContent::Bytes(bytes) | AnswerContent::Json(bytes) => Ok((bytes, answer.permit)),
            // Long answers come in chunks.
            AnswerContent::Stream(reader) if reader.kind() == StreamKind::Bytes => {
                self.collect(reader, &mut in_flight).await
            }
            AnswerContent::Stream(_) => Err(Failure::AnswerNotSendable("it is a stream of events".to_owned())),
        };
        let (bytes, permit) = whole.inspect_err(|_| in_flight.cancel_uncounted())?;
        in_flight.on_end();
        let document = render(&bytes)?;
        if let Some(units) = in_flight.units() {
            let Used { tokens, images, audio_seconds } = document.used;
            (units.tokens, units.images, units.audio_seconds) = (tokens, images, audio_seconds);
        }
        let (http, share) = (self.caller.parts.version, &self.model.body_budget);
        let mut response = document.kept_response(permit, http, share, self.deadline)?;
        in_flight.on_stream_end(true);
        timing_headers(response.headers_mut(), (&instance.version, submitted), sent_at, swap, Instant::now());
        Ok(response)
    }

    /// Serves the request with the file that the model answers with, as it comes.
    ///
    /// # Errors
    /// The failure, for the codec of the API.
    pub(crate) async fn file(mut self, input: ModelInput) -> Result<Response<AnswerBody>, Failure> {
        let Begun { answer, mut in_flight, upload, submitted } = match self.submit(input).await? {
            Submission::Begun(begun) => begun,
            Submission::Forwarded(response) => return Ok(response),
        };
        let is_file = match &answer.content {
            AnswerContent::Bytes(_) => true,
            AnswerContent::Json(_) => false,
            AnswerContent::Stream(reader) => reader.kind() == StreamKind::Bytes,
        };
        if !is_file {
            in_flight.cancel_uncounted();
            return Err(Failure::AnswerNotSendable("it is no file".to_owned()));
        }
        pass_on((self.caller, self.model), (answer, in_flight), upload, submitted)
    }

    /// Serves the request with whatever the model answers.
    ///
    /// # Errors
    /// The failure, for the codec of the API.
    pub(crate) async fn any(mut self, input: ModelInput) -> Result<Response<AnswerBody>, Failure> {
        match self.submit(input).await? {
            Submission::Begun(Begun { answer, in_flight, upload, submitted }) => {
                pass_on((self.caller, self.model), (answer, in_flight), upload, submitted)
            }
            Submission::Forwarded(response) => Ok(response),
        }
    }

    async fn submit(&mut self, input: ModelInput) -> Result<Submission, Failure> {
        let ModelInput { kind, body, session, parameters } = input;
        let ReceivedBody { body, length, handed_over, permit, upload } = body;
        let mut upload = upload.map(Upload::begin);
        let Caller { listener, parts, id, .. } = self.caller;
        let mut head = head::head(parts, id, length, handed_over);
        (head.kind, head.parameters) = (kind, parameters);
        let hash = session.as_deref().map(|session| hash_name(session.as_bytes()));
        head.session = session.or(head.session);
        let target = (self.content, self.deadline);
        let submission = (self.label, operation(kind), hash);
        let submitted = self.caller.submit(self.model, submission, (head, body), permit, target)?;
        let at = submitted.at;
        let (answer, in_flight) = match submitted.wait(self.model, &mut upload, self.deadline).await? {
            Outcome::Answer(answer, in_flight) => (*answer, in_flight),
            Outcome::Turn => return Err(Failure::Died), // it was to be sent
            Outcome::NotSent(body) => {
                let response = match self.original.take() {
                    Some(original) => self.api.forward(self.caller, original, self.deadline).await?,
                    None => self.api.forwarder().received(listener, parts, (body, upload), id, self.deadline).await?,
                };
                return Ok(Submission::Forwarded(response));
            }
        };
        if let Some(incoming) = self.incoming.as_mut().filter(|_| upload.is_none()) {
            **incoming = IncomingBody::Complete;
        }
        Ok(Submission::Begun(Begun { answer, in_flight, upload, submitted: at }))
    }

    /// Collects an answer that comes in chunks.
    async fn collect(
        &self,
        mut reader: StreamReader,
        in_flight: &mut InFlightRequest,
    ) -> Result<(Bytes, Option<BodyPermit>), Failure> {
        let (mut all, mut memory) = (BytesMut::new(), AnswerMemory::new(&self.model.body_budget, LONGEST_WHOLE));
        let deadline = tokio::time::sleep_until(self.deadline.into());
        tokio::pin!(deadline);
        loop {
            let read = tokio::select! {
                biased;
                read = std::future::poll_fn(|context| reader.poll_read(context)) => read,
                () = &mut deadline => {
                    in_flight.on_deadline();
                    return Err(Failure::Deadline);
                }
            };
            match read {
                StreamRead::Chunks(chunks) => {
                    in_flight.on_consumed(&chunks);
                    let Ok(bytes) = chunks.into_bytes() else { return Err(Failure::Died) }; // a stream of bytes has no other
                    memory.hold(bytes.len() as u64)?;
                    all.extend_from_slice(&bytes);
                }
                StreamRead::End(StreamEnd::Complete) => return Ok((all.freeze(), Some(memory.into_permit()))),
                StreamRead::End(StreamEnd::Failed(failure)) => return Err(failure),
            }
        }
    }
}
