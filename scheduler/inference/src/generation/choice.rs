//! Choice of an answer: from the chunks of the engine to the parts for the client.
//!
//! ```text
//!  Submitted ──answer begins──▶ Streaming ──end──▶ Over
//!      │                            │ stop string, limit of tokens: the engine is cancelled
//!      └────────failure─────────────┴──────────▶ Over
//! ```

use crate::in_flight::InFlightRequest;
use crate::trace::ToolTimes;
pub(crate) use omni_answer::Parts;
use omni_answer::{AnswerText, Echo};
use omni_body::{BodyPermit, Chunk, Chunks, StreamKind};
use omni_engine_client::{Answer, AnswerContent, InstanceName, StreamEnd, StreamRead, StreamReader, Unanswered};
use omni_engine_protocol::generation::{self as wire, GenerationEvent};
use omni_generation::guard::EngineFinish;
use omni_generation::{Alternative, Delta, Finish, FinishReason, Piece, Prompt, TokenInfo, ToolChoice, Usage};
use omni_request_error::Failure;
use omni_usage::{TokenSource, Tokens};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::sync::oneshot;

/// Reply to a submitted request.
pub(crate) type Reply = oneshot::Receiver<Result<Answer, Unanswered>>;

/// A choice.
#[derive(Debug)]
pub(crate) struct Choice {
    request: InFlightRequest,
    source: Source,
    /// Repetition of the prompt's tokens, until the answer begins; `None`: the engine repeats none.
    echo: Option<Echo>,
    text: AnswerText,
    /// End as the engine has reported it.
    engine_finish: EngineFinish,
    calls: EngineCalls,
    /// Times of the parser of tool calls are recorded.
    times_tools: bool,
    /// Beginning of the text that is parsed for tool calls, where that is recorded.
    tools_began: Option<Instant>,
    /// Memory of a whole text that the engine has answered with.
    permit: Option<BodyPermit>,
}

#[derive(Debug)]
enum Source {
    /// Nothing was answered yet. The memory is that of the request's body.
    Submitted { reply: Reply, _memory: Arc<BodyPermit> },
    /// The answer has begun.
    Streaming(StreamReader),
    /// Nothing more comes.
    Over,
}

/// Tool calls that the engine parses itself.
#[derive(Debug)]
pub(crate) struct EngineCalls {
    begun: usize,
    /// Most calls that the client takes; further ones are left out, as in text. Not even one is asked for: an error.
    most: usize,
    /// Number from which ids are made.
    seed: u64,
}

/// Beginning of an answer.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) instance: Arc<InstanceName>,
    pub(crate) sent_at: Instant,
    pub(crate) swap: Option<omni_engine_client::Swap>,
}

/// Progress of a choice.
#[derive(Debug)]
pub(crate) enum Progress {
    /// The engine has begun to answer.
    Begun(Begun),
    /// Parts, and with the last of them the end.
    Parts(Parts),
    /// The choice has failed; its outcome is the caller's to count.
    Failed(Failure),
    /// No instance got it before the model was handed over.
    NotSent,
}

impl Choice {
    /// The choice of a request that was submitted. `memory`: that of its body until it is answered; `times_tools`: the
    /// times of the parser of tool calls are recorded.
    pub(crate) fn new(
        (request, reply, memory): (InFlightRequest, Reply, Arc<BodyPermit>),
        (echo, text): (Option<Echo>, AnswerText),
        (calls, times_tools): (EngineCalls, bool),
    ) -> Self {
        Self {
            request,
            source: Source::Submitted { reply, _memory: memory },
            echo,
            text,
            engine_finish: EngineFinish::default(),
            calls,
            times_tools,
            tools_began: None,
            permit: None,
        }
    }

    /// Returns true if nothing more comes.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.source, Source::Over)
    }

    /// Cancels the choice at its deadline, whether it is polled or not.
    pub(crate) fn cancel_at_deadline(&mut self) {
        if !self.is_over() {
            self.request.cancel_at_deadline();
        }
    }

    /// Notes that the deadline has passed.
    pub(crate) fn on_deadline(&mut self) {
        if !self.is_over() {
            self.note_counted();
            self.request.on_deadline();
        }
    }

    /// Notes the tokens that were counted so far: the engine has not said how many it made.
    fn note_counted(&mut self) {
        self.note_tools(None);
        self.request.on_tokens(tokens(self.text.counted(), TokenSource::Counted));
    }

    /// Notes the times of the parser of tool calls, which ends now, and the number of calls if all of them are known.
    fn note_tools(&mut self, calls: Option<usize>) {
        if let (Some(began), Some(trace)) = (self.tools_began.take(), self.request.trace()) {
            let calls = calls.map(|calls| calls as u64);
            trace.on_tools(ToolTimes { began, ended: Instant::now(), calls });
        }
    }

    /// Next progress. Not to be called once the choice is over.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Progress> {
        loop {
            match &mut self.source {
                Source::Over => return Poll::Pending,
                Source::Submitted { reply, .. } => {
                    let reply = std::task::ready!(Pin::new(reply).poll(context));
                    return Poll::Ready(self.on_reply(reply.unwrap_or(Err(Failure::Died.into()))));
                }
                Source::Streaming(reader) => match std::task::ready!(reader.poll_read(context)) {
                    StreamRead::Chunks(chunks) => {
                        self.request.on_consumed(&chunks);
                        match self.on_chunks(&chunks) {
                            Err(failure) => return Poll::Ready(self.fail(failure)),
                            Ok(parts) if parts.is_empty() => {}
                            Ok(parts) => return Poll::Ready(Progress::Parts(parts)),
                        }
                    }
                    StreamRead::End(StreamEnd::Complete) => {
                        return Poll::Ready(self.on_end().unwrap_or_else(|failure| self.fail(failure)));
                    }
                    StreamRead::End(StreamEnd::Failed(failure)) => {
                        self.note_counted();
                        self.request.on_failed_end(&failure);
                        self.source = Source::Over;
                        return Poll::Ready(Progress::Failed(failure));
                    }
                },
            }
        }
    }

    fn on_reply(&mut self, reply: Result<Answer, Unanswered>) -> Progress {
        match reply {
            Ok(Answer { content: AnswerContent::Stream(reader), permit, instance, sent_at, swap, .. })
                if reader.kind() == StreamKind::Generation =>
            {
                self.permit = permit;
                self.source = Source::Streaming(reader);
                Progress::Begun(Begun { instance, sent_at, swap })
            }
            Ok(_) => {
                let why = "the handler of a model that generates text has to return text, or to yield it";
                self.fail(Failure::AnswerNotSendable(why.to_owned()))
            }
            Err(Unanswered::Failed(failure)) => {
                self.request.on_failed_end(&failure);
                self.source = Source::Over;
                Progress::Failed(failure)
            }
            Err(Unanswered::NotSent(_)) => {
                self.request.on_not_sent();
                self.source = Source::Over;
                Progress::NotSent
            }
            Err(Unanswered::Turn) => self.fail(Failure::Died), // it was to be sent
        }
    }

    /// Cancels the choice, whose outcome the caller counts.
    pub(crate) fn cancel(&mut self) {
        if !self.is_over() {
            self.note_counted();
            self.request.cancel_uncounted();
            self.source = Source::Over;
        }
    }

    /// Ends the choice for a fault of the engine.
    fn fail(&mut self, failure: Failure) -> Progress {
        self.request.cancel_uncounted();
        self.source = Source::Over;
        Progress::Failed(failure)
    }

    fn on_chunks(&mut self, chunks: &Chunks) -> Result<Parts, Failure> {
        let mut parts = Parts::default();
        for chunk in chunks.iter() {
            let finish = match chunk {
                Chunk::Text(text) => self.on_piece(Piece { bytes: text.into(), token: None }, &mut parts)?,
                Chunk::Piece(bytes) => self.on_piece(Piece { bytes: bytes.into(), token: None }, &mut parts)?,
                Chunk::Event(json) => self.on_event(json, &mut parts)?,
                Chunk::Json(_) | Chunk::Bytes(_) => None, // not in generated text
            };
            if let Some(finish) = finish {
                self.request.on_tokens(tokens(finish.usage, TokenSource::Counted));
                self.finish(finish, &mut parts);
                self.request.end_early();
                self.source = Source::Over;
                break;
            }
        }
        Ok(parts)
    }

    /// Adds a piece. Returns the end if the piece brought it.
    fn on_piece(&mut self, piece: Piece, parts: &mut Parts) -> Result<Option<Finish>, Failure> {
        self.end_echo(parts)?;
        self.begin_tools();
        Ok(self.text.push(piece, parts))
    }

    /// Adds a token of the prompt.
    fn on_prompt(&mut self, token: wire::TokenEvent, parts: &mut Parts) -> Result<(), Failure> {
        let Some(echo) = &mut self.echo else {
            let why = "it repeats the prompt, which was not asked for, or has begun without that";
            return Err(Failure::AnswerNotSendable(why.to_owned()));
        };
        echo.push(piece(token), parts);
        Ok(())
    }

    /// Ends the repetition of the prompt, since the answer begins.
    fn end_echo(&mut self, parts: &mut Parts) -> Result<(), Failure> {
        match self.echo.take().is_none_or(|echo| echo.end(parts)) {
            true => Ok(()),
            false => Err(Failure::AnswerNotSendable("it does not repeat the prompt, as was asked for".to_owned())),
        }
    }

    /// Notes that the parser of tool calls begins, where that is recorded.
    fn begin_tools(&mut self) {
        if self.times_tools {
            self.tools_began.get_or_insert_with(Instant::now);
        }
    }

    fn on_event(&mut self, json: &[u8], parts: &mut Parts) -> Result<Option<Finish>, Failure> {
        let event = GenerationEvent::parse(json);
        match event.map_err(|error| Failure::AnswerNotSendable(error.to_string()))? {
            GenerationEvent::Prompt(token) => self.on_prompt(token, parts)?,
            GenerationEvent::Token(token) => return self.on_piece(piece(token), parts),
            GenerationEvent::Reasoning { text } => {
                self.end_echo(parts)?;
                parts.deltas.push(Delta::Reasoning(text));
            }
            GenerationEvent::ToolCall(call) => {
                self.end_echo(parts)?;
                self.calls.begin(call, &mut parts.deltas)?;
            }
            GenerationEvent::Finish(finish) => {
                self.engine_finish =
                    EngineFinish { reason: finish.reason.map(finish_reason), usage: finish.usage.map(usage) };
            }
        }
        Ok(None)
    }

    /// Ends the choice as the engine did.
    fn on_end(&mut self) -> Result<Progress, Failure> {
        let mut parts = Parts::default();
        self.end_echo(&mut parts)?;
        self.source = Source::Over;
        let engine_finish = std::mem::take(&mut self.engine_finish);
        let source = if engine_finish.usage.is_some() { TokenSource::Model } else { TokenSource::Counted };
        self.begin_tools();
        if let Some(finish) = self.text.end(engine_finish, &mut parts) {
            self.request.on_tokens(tokens(finish.usage, source));
            self.finish(finish, &mut parts);
        }
        self.request.on_complete();
        Ok(Progress::Parts(parts))
    }

    /// Adds the end.
    fn finish(&mut self, finish: Finish, parts: &mut Parts) {
        let calls = self.text.finish(finish, self.calls.begun, parts);
        self.note_tools(Some(calls));
        if let (Some(trace), Some(finish)) = (self.request.trace(), &parts.finish) {
            trace.on_finish(reason_name(&finish.reason));
        }
    }
}

impl Drop for Choice {
    /// A client that went away has used what was made until then.
    fn drop(&mut self) {
        if !self.is_over() {
            self.note_counted();
        }
    }
}

impl EngineCalls {
    /// The calls in an answer to this prompt. `api_has_calls`: the client's API has a place for them. Their ids are
    /// made from the seed.
    pub(crate) fn new(prompt: &Prompt, api_has_calls: bool, seed: u64) -> Self {
        let most = match prompt {
            _ if !api_has_calls => 0,
            Prompt::Chat(chat) if chat.tool_choice == ToolChoice::None => 0,
            Prompt::Chat(chat) if !chat.parallel_tool_calls => 1,
            Prompt::Chat(_) | Prompt::Text(_) | Prompt::Tokens(_) => usize::MAX,
        };
        Self { begun: 0, most, seed }
    }

    fn begin(&mut self, event: wire::ToolCallEvent, deltas: &mut Vec<Delta>) -> Result<(), Failure> {
        if self.most == 0 {
            let why =
                format!("it calls the function {:?}, and the client has asked for an answer without calls", event.name);
            return Err(Failure::AnswerNotSendable(why));
        }
        if self.begun == self.most {
            return Ok(());
        }
        let call = self.begun;
        self.begun += 1;
        let id = event.id.unwrap_or_else(|| format!("call_{:016x}{call}", self.seed));
        deltas.push(Delta::CallStart { call, id, name: event.name });
        deltas.push(Delta::CallArguments { call, text: event.arguments });
        Ok(())
    }
}

fn piece(token: wire::TokenEvent) -> Piece {
    let bytes = token.bytes.clone().unwrap_or_else(|| token.text.clone().into_bytes());
    Piece { bytes, token: Some(token_info(token)) }
}

fn token_info(token: wire::TokenEvent) -> TokenInfo {
    let top =
        token.top.into_iter().map(|wire::Alternative { text, logprob }| Alternative { text, bytes: None, logprob });
    let bytes = token.bytes.filter(|bytes| !bytes.is_empty()); // a control token shows its name
    TokenInfo { text: token.text, bytes, id: token.id, logprob: token.logprob, top: top.collect() }
}

/// Name of a reason in the conventions of traces.
fn reason_name(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop { .. } => "stop",
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::ContentFilter => "content_filter",
    }
}

fn finish_reason(reason: wire::FinishReason) -> FinishReason {
    match reason {
        wire::FinishReason::Stop => FinishReason::Stop { sequence: None },
        wire::FinishReason::Length => FinishReason::Length,
        wire::FinishReason::ToolCalls => FinishReason::ToolCalls,
        wire::FinishReason::ContentFilter => FinishReason::ContentFilter,
    }
}

fn tokens(usage: Usage, source: TokenSource) -> Tokens {
    let Usage { prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens } = usage;
    let (input, output, cached, reasoning) = (prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens);
    Tokens { input, output, cached, reasoning, source }
}

fn usage(report: wire::UsageReport) -> Usage {
    let wire::UsageReport { prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens } = report;
    Usage { prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens }
}
