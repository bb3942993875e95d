//! A request for generated text to one model: checks, prompts, submission, response.

mod memory;
mod prompt;

use self::memory::RequestMemory;
use self::prompt::{PreparedPrompt, prepare};
use super::TextCodec;
use super::call::check_kind;
use crate::answer::{AnswerBody, AnswerStream, Document, timing_headers};
use crate::generation::choice::{Choice, EngineCalls};
use crate::generation::format::FormatCheck;
use crate::generation::stream::GenerationBody;
use crate::generation::whole::collect;
use crate::generation::{Event, Generation};
use crate::head;
use crate::outcome::{PendingOutcome, log_for_author};
use crate::passed::observe;
use crate::state::RunApi;
use crate::submission::{Caller, Outcome, Submitted};
use crate::templates::unavailable;
use crate::text_model::TextModel;
use crate::trace::operation;
use bytes::{Bytes, BytesMut};
use hyper::Response;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use omni_answer::{AnswerText, Echo};
use omni_body::{BodyKind, BodyPermit, RequestBody};
use omni_config::manifest::{Capability, Kind, Render};
use omni_engine_client::{AnswerContent, NewerParameter};
use omni_engine_protocol::frame::RequestKind;
use omni_engine_protocol::task::TokenCount;
use omni_generation::guard::GuardLimits;
use omni_generation::{
    Capabilities, GenerationRequest, OutputGuard, Prompt, ResponseEncoder, ResponseFormat, StopStrings, ToolChoice,
    check_values,
};
use omni_ingress::ReadDeadline;
use omni_node_protocol::instance::PROMPT_TOKENS_SINCE;
use omni_policy::dispatch::hash_name;
use omni_request_error::Failure;
use omni_structured_output::Validator;
use omni_supervisor::clock::unix_ms;
use omni_supervisor::metrics::Api;
use omni_supervisor::model::Model;
use omni_supervisor::model::content::Content;
use omni_tool_parser::{CompiledTools, Parser, ParserOptions};
use omni_traces::names;
use std::sync::Arc;
use std::time::Instant;

/// Bytes of a short answer in any of the forms.
const WHOLE: usize = 2048;
/// Turns that a request waits for, of one content after the other, until it knows the template of one.
const TURNS: usize = 3;
/// Bytes of a choice that waits, beside its body and its head.
const CHOICE: u64 = 3072;

/// Parameter that asks the engine to repeat the tokens of a prompt.
const PROMPT_TOKENS: NewerParameter = NewerParameter { name: "echo", since: PROMPT_TOKENS_SINCE };

/// A request for generated text, and where it came from.
pub(crate) struct TextRequest<'a> {
    pub(crate) api: &'a RunApi,
    pub(crate) caller: Caller<'a>,
    pub(crate) model: &'a Arc<Model>,
    pub(crate) content: Arc<Content>,
    pub(crate) request: GenerationRequest,
    pub(crate) codec: TextCodec,
    /// Body as it came, for a scheduler that has to serve it in this one's place.
    pub(crate) original: Bytes,
    pub(crate) permit: Option<BodyPermit>,
    pub(crate) deadline: Instant,
}

/// A request that is ready for its model.
struct Prepared {
    text_model: Arc<TextModel>,
    /// Form that the node has to keep.
    format: Option<Arc<ResponseFormat>>,
    prompts: Vec<PreparedPrompt>,
    memory: RequestMemory,
    /// Begin of a wait for the template; `None`: there was none.
    waited_since: Option<Instant>,
}

/// A request that was submitted and waits for its answer.
struct Waiting {
    generation: Generation,
    encoder: Box<dyn ResponseEncoder>,
    /// Time of the submission.
    submitted: Instant,
    label: Api,
    streamed: bool,
    /// Body as it came.
    original: Bytes,
    /// Memory of that body and of those for the engine.
    body_memory: Arc<BodyPermit>,
    /// Memory of what the answer needs of the request.
    kept: BodyPermit,
}

impl TextRequest<'_> {
    /// Serves the request.
    ///
    /// # Errors
    /// The failure, for the codec of the API.
    pub(crate) async fn serve(self) -> Result<Response<AnswerBody>, Failure> {
        let Self { api, caller, model, deadline, .. } = self;
        let whole = self.original.clone();
        let Some(waiting) = self.submit().await? else { return api.forward(caller, whole, deadline).await };
        drop(whole);
        let Waiting { mut generation, mut encoder, submitted, label, streamed, original, body_memory, kept } = waiting;
        let begun = match generation.next().await {
            Event::Begun(begun) => begun,
            Event::Failed(failure) => return Err(explain(model, failure)),
            Event::NotSent => return api.forward(caller, original, deadline).await,
            Event::Parts(..) | Event::End(_) => return Err(Failure::Died), // a choice begins before its parts
        };
        let answered = observe((caller, model), begun.sent_at, submitted);
        let mut response = if streamed {
            let body = GenerationBody::new((generation, kept), encoder, (model, label, caller.id));
            let mut response = Response::new(AnswerBody::Stream(Box::new(AnswerStream::Generation(body))));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
            response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            response.extensions_mut().insert(ReadDeadline { at: deadline, after_end: None, permit: None });
            response
        } else {
            let Some((completion, permit)) = collect(&mut generation, &model.body_budget).await? else {
                return api.forward(caller, original, deadline).await;
            };
            let mut out = BytesMut::with_capacity(WHOLE);
            encoder.whole(&completion, &mut out);
            let (version, share) = (caller.parts.version, &model.body_budget);
            let document = Document::json(out.freeze());
            let response = document.kept_response(Some(permit), version, share, deadline);
            let response = response.inspect_err(|_| generation.cancel())?;
            generation.on_complete();
            drop((original, body_memory, kept));
            response
        };
        timing_headers(
            response.headers_mut(),
            (&begun.instance.version, submitted),
            begun.sent_at,
            begun.swap,
            answered,
        );
        Ok(response)
    }

    /// Counts the tokens of the prompt instead of answering it.
    ///
    /// # Errors
    /// The failure, for the codec of the API; status 501 from a model that cannot count.
    pub(crate) async fn count(mut self) -> Result<Response<AnswerBody>, Failure> {
        let Some((Prepared { prompts, memory, .. }, mut outcome)) = self.prepare().await? else {
            return self.api.forward(self.caller, self.original, self.deadline).await;
        };
        outcome.leave(); // that of the only request to the model counts
        let body = prompts.into_iter().next().and_then(|prompt| prompt.choices.into_iter().next());
        let Some(body) = body else { return Err(Failure::NoSuchRoute) };
        let submitted = self.submit_one(RequestKind::CountTokens, body, None)?;
        let Self { api, caller, model, deadline, original, request, .. } = self;
        drop(request);
        let body_memory = memory.into_permits();
        let (answer, mut request) = match submitted.wait(model, &mut None, deadline).await? {
            Outcome::Answer(answer, request) => (*answer, request),
            Outcome::NotSent(_) => return api.forward(caller, original, deadline).await,
            Outcome::Turn => return Err(Failure::Died), // it was to be sent
        };
        drop((original, body_memory));
        let AnswerContent::Json(json) = answer.content else {
            request.cancel_uncounted();
            return Err(Failure::AnswerNotSendable("it is no number of tokens".to_owned()));
        };
        let Ok(TokenCount { tokens }) = serde_json::from_slice(&json) else {
            request.on_end();
            return Err(Failure::AnswerNotSendable("it is no number of tokens".to_owned()));
        };
        request.on_stream_end(true);
        Ok(Document::json(omni_anthropic::token_count_answer(tokens)).response())
    }

    /// Submits the request. Of what was parsed, only what the answer needs is kept. `None`: the model was handed over.
    async fn submit(mut self) -> Result<Option<Waiting>, Failure> {
        let Some((prepared, mut outcome)) = self.prepare().await? else { return Ok(None) };
        let Prepared { text_model, format, prompts, mut memory, waited_since } = prepared;
        let stop = StopStrings::new(&self.request.stop);
        let tools: Vec<_> = self.request.prompts.iter().map(compiled_tools).collect();
        let tools_bytes: u64 = tools.iter().map(|tools| tools.bytes()).sum();
        let repeated = self.codec.repeats(&self.request, self.original.len());
        let answers: usize = prompts.iter().map(|prompt| prompt.choices.len()).sum();
        let heads = answers as u64 * (CHOICE + head::bytes(self.caller.parts));
        let kept = tools_bytes + stop.bytes() + format.as_deref().map_or(0, ResponseFormat::bytes) + repeated;
        memory.hold(heads).and_then(|()| memory.keep(kept)).inspect_err(|_| outcome.leave())?;
        let (body_memory, kept) = memory.into_permits();
        let submitted = waited_since.unwrap_or_else(Instant::now);
        let choices = self.choices(&text_model, (prompts, &tools), &stop, &body_memory);
        let choices = choices.inspect_err(|_| outcome.leave())?;
        let check = FormatCheck::new(format, choices.len(), text_model.aside.clone());
        let per_prompt = self.request.choices.max(1) as usize;
        let generation = Generation::new(choices, per_prompt, check, (self.deadline, outcome));
        let (label, streamed) = (self.codec.label(), self.request.stream);
        let encoder = self.codec.encoder(&self.request, self.caller.id, unix_ms() / 1000);
        Ok(Some(Waiting {
            generation,
            encoder,
            submitted,
            label,
            streamed,
            original: self.original,
            body_memory,
            kept,
        }))
    }

    /// Prepares the request until its deadline. The outcome is that of a client that leaves meanwhile, too. `None`: the model
    /// was handed over before the request could be prepared.
    async fn prepare(&mut self) -> Result<Option<(Prepared, PendingOutcome)>, Failure> {
        let mut outcome = PendingOutcome::new(self.model, self.codec.label(), self.caller.arrived);
        let model = self.model;
        let prepared = tokio::time::timeout_at(self.deadline.into(), self.prepare_parts()).await;
        let prepared = prepared.unwrap_or(Err(Failure::Deadline)).map_err(|failure| explain(model, failure));
        match prepared.inspect_err(|_| outcome.leave())? {
            Some(prepared) => Ok(Some((prepared, outcome))),
            None => {
                outcome.leave(); // the successor counts it
                Ok(None)
            }
        }
    }

    async fn prepare_parts(&mut self) -> Result<Option<Prepared>, Failure> {
        self.check()?;
        let mut memory = RequestMemory::new(self.permit.take(), self.request.bytes(), &self.model.body_budget)?;
        let Some((text_model, waited_since)) = self.text_model().await? else { return Ok(None) };
        let format = self.check_format(&text_model).await?;
        let prompts = self.prompts(&text_model, &mut memory).await?;
        Ok(Some(Prepared { text_model, format, prompts, memory, waited_since }))
    }

    /// Texts of the model. Those of weights that are not on the node, or have no template, are read when an instance has them, which is when the
    /// request has its turn; by then another content may serve. With the begin of that wait. `None`: the model was handed over
    /// meanwhile.
    async fn text_model(&mut self) -> Result<Option<(Arc<TextModel>, Option<Instant>)>, Failure> {
        let mut waited_since = None;
        for _ in 0..TURNS {
            let on_fault = |why| log_for_author(self.model, why, self.caller.id);
            let when = (self.deadline, waited_since.is_some());
            if let Some(text_model) = self.api.templates.of(&self.content, when, on_fault).await? {
                return Ok(Some((text_model, waited_since)));
            }
            let began = Instant::now();
            waited_since.get_or_insert(began);
            let call = (self.codec.label(), operation(Some(RequestKind::TextGeneration)), self.session());
            let turn = self.caller.wait_for_turn(self.model, call, (&self.content, self.deadline)).await;
            self.caller.trace.record(names::QUEUE, began, turn.is_err());
            if !turn? {
                return Ok(None);
            }
            if let Some(content) = self.model.admission().content {
                self.content = content;
                self.check()?;
            }
        }
        tracing::warn!(model = %self.model.name, "the launcher does not open the weights of a model that has them");
        Err(unavailable())
    }

    fn session(&self) -> Option<u64> {
        self.request.session.as_deref().map(|session| hash_name(session.as_bytes()))
    }

    /// Checks that the model can honour the request.
    fn check(&self) -> Result<(), Failure> {
        check_kind(self.model, &self.content, Kind::TextGeneration)?;
        let capabilities: Capabilities = self.content.manifest.honours().iter().copied().collect();
        capabilities.check(&self.request)?;
        Ok(check_values(&self.request)?)
    }

    fn has(&self, capability: Capability) -> bool {
        self.content.manifest.honours().contains(&capability)
    }

    /// Checks that a schema is one. Returns the form that the node has to keep: the engine does not.
    async fn check_format(&self, text_model: &TextModel) -> Result<Option<Arc<ResponseFormat>>, Failure> {
        match &self.request.format {
            ResponseFormat::Text => Ok(None),
            format => {
                let capabilities: Capabilities = self.content.manifest.honours().iter().copied().collect();
                let format = Arc::new(format.clone());
                let schema = Arc::clone(&format);
                text_model.aside.clone().run(move || Validator::new(&schema).map(drop)).await??;
                Ok(Some(format).filter(|format| !capabilities.constrains(format)))
            }
        }
    }

    async fn prompts(
        &self,
        text_model: &TextModel,
        memory: &mut RequestMemory,
    ) -> Result<Vec<PreparedPrompt>, Failure> {
        let now = i64::try_from(unix_ms() / 1000).unwrap_or_default();
        let chat = &self.content.manifest.chat;
        let mut prompts = Vec::with_capacity(self.request.prompts.len());
        for prompt in &self.request.prompts {
            let form = (chat.render, self.has(Capability::LiteralRanges), chat.tool_parser == "none");
            let on_fault = |why| log_for_author(self.model, why, self.caller.id);
            let began = Instant::now();
            let prepared = prepare(text_model, form, (&self.request, memory), prompt, (now, on_fault)).await;
            if matches!((prompt, chat.render), (Prompt::Chat(_), Render::Node)) {
                self.caller.trace.record(names::TEMPLATE, began, prepared.is_err());
            }
            prompts.push(prepared?);
        }
        Ok(prompts)
    }

    /// Submits all choices of all prompts. Each holds the memory of the bodies until it is answered.
    fn choices(
        &self,
        text_model: &TextModel,
        (prompts, tools): (Vec<PreparedPrompt>, &[Arc<CompiledTools>]),
        stop: &StopStrings,
        memory: &Arc<BodyPermit>,
    ) -> Result<Vec<Choice>, Failure> {
        let mut choices = Vec::with_capacity(prompts.len() * self.request.choices.max(1) as usize);
        for ((prompt, tools), mut prepared) in self.request.prompts.iter().zip(tools).zip(prompts) {
            let repeats_tokens = self.request.repeats_tokens(prompt);
            let newer = repeats_tokens.then_some(PROMPT_TOKENS);
            let repeated: Option<Arc<str>> = match prompt {
                Prompt::Text(text) if repeats_tokens => Some(text.as_str().into()),
                Prompt::Text(_) | Prompt::Tokens(_) | Prompt::Chat(_) => None,
            };
            for body in std::mem::take(&mut prepared.choices) {
                let id_seed = fastrand::u64(..);
                let options = self.parser_options(text_model, prompt, tools, &prepared, id_seed);
                let parser = Parser::new(text_model.dialect, options);
                let pieces = self.request.sampling.max_tokens.filter(|_| !self.has(Capability::MaxTokens));
                let limits = GuardLimits {
                    stop: stop.clone(),
                    pieces,
                    prompt_tokens: prepared.tokens,
                    tokens: self.request.logprobs.is_some(),
                };
                let mut submitted = self.submit_one(RequestKind::TextGeneration, body, newer)?;
                submitted.request.leave_outcome();
                let submitted = (submitted.request, submitted.reply, Arc::clone(memory));
                let calls = EngineCalls::new(prompt, self.codec.has_calls(), id_seed);
                let offers_tools = matches!(prompt, Prompt::Chat(chat) if chat.offers_tools());
                let times_tools = offers_tools && self.caller.trace.is_recorded();
                let text = AnswerText::new(OutputGuard::new(limits), parser);
                let echo = repeats_tokens.then(|| Echo::new(repeated.clone(), self.request.logprobs.is_some()));
                choices.push(Choice::new(submitted, (echo, text), (calls, times_tools)));
            }
        }
        Ok(choices)
    }

    fn parser_options(
        &self,
        text_model: &TextModel,
        prompt: &Prompt,
        tools: &Arc<CompiledTools>,
        prepared: &PreparedPrompt,
        id_seed: u64,
    ) -> ParserOptions {
        match prompt {
            Prompt::Chat(chat) => ParserOptions {
                tools: Arc::clone(tools),
                tool_choice: chat.tool_choice.clone(),
                parallel_tool_calls: chat.parallel_tool_calls,
                reasoning: text_model.reasoning,
                starts_in_reasoning: prepared.in_reasoning,
                id_seed,
                earlier_calls: chat.messages.iter().map(|message| message.tool_calls.len()).sum(),
            },
            Prompt::Text(_) | Prompt::Tokens(_) => {
                ParserOptions { tool_choice: ToolChoice::None, id_seed, ..ParserOptions::default() }
            }
        }
    }

    fn submit_one(&self, kind: RequestKind, body: Bytes, newer: Option<NewerParameter>) -> Result<Submitted, Failure> {
        let mut head = head::head(self.caller.parts, self.caller.id, None, false);
        head.kind = Some(kind);
        if let Some(session) = self.request.session.as_deref() {
            head.session = Some(session.to_owned());
        }
        let session = self.session();
        let body = RequestBody::Collected(BodyKind::Json, body);
        let operation = match self.codec {
            TextCodec::Completion if kind == RequestKind::TextGeneration => names::TEXT_COMPLETION,
            _ => operation(Some(kind)),
        };
        let (api, target) = (self.codec.label(), (&*self.content, self.deadline));
        self.caller.submit_newer(self.model, (api, operation, session), (head, body), newer, target)
    }
}

fn compiled_tools(prompt: &Prompt) -> Arc<CompiledTools> {
    match prompt {
        Prompt::Chat(chat) => Arc::new(CompiledTools::new(&chat.tools)),
        Prompt::Text(_) | Prompt::Tokens(_) => Arc::default(),
    }
}

/// A deadline that passed while the model's environment was being built says so.
fn explain(model: &Model, failure: Failure) -> Failure {
    match model.admission().build.filter(|_| failure == Failure::Deadline) {
        Some(build) => Failure::DeadlineBuilding { build },
        None => failure,
    }
}
