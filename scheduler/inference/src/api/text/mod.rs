//! A request for generated text to one model: checks, prompts, submission, response.

mod prompt;

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
use crate::outcome::log_for_author;
use crate::passed::observe;
use crate::state::RunApi;
use crate::submission::{Caller, Outcome, Submitted};
use crate::templates::TextModel;
use bytes::{Bytes, BytesMut};
use hyper::Response;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use omni_body::{BodyKind, BodyPermit, RequestBody};
use omni_config::manifest::{Capability, Kind};
use omni_engine_client::AnswerContent;
use omni_engine_protocol::frame::RequestKind;
use omni_engine_protocol::task::TokenCount;
use omni_generation::guard::GuardLimits;
use omni_generation::{Capabilities, GenerationRequest, OutputGuard, Prompt, ResponseFormat, ToolChoice, check_values};
use omni_ingress::ReadDeadline;
use omni_policy::dispatch::hash_name;
use omni_request_error::Failure;
use omni_structured_output::Validator;
use omni_supervisor::clock::unix_ms;
use omni_supervisor::model::Model;
use omni_supervisor::model::content::Content;
use omni_tool_parser::{CompiledTools, Parser, ParserOptions};
use std::sync::Arc;
use std::time::Instant;

/// Bytes of a short answer in any of the forms.
const WHOLE: usize = 2048;

/// A request for generated text, and where it came from.
pub(crate) struct TextRequest<'a> {
    pub(crate) api: &'a RunApi,
    pub(crate) caller: Caller<'a>,
    pub(crate) model: &'a Arc<Model>,
    pub(crate) content: &'a Content,
    pub(crate) request: GenerationRequest,
    pub(crate) codec: TextCodec,
    /// Body as it came, for a scheduler that has to serve it in this one's place.
    pub(crate) original: Bytes,
    pub(crate) permit: Option<BodyPermit>,
    pub(crate) deadline: Instant,
}

impl TextRequest<'_> {
    /// Serves the request.
    ///
    /// # Errors
    /// The failure, for the codec of the API.
    pub(crate) async fn serve(mut self) -> Result<Response<AnswerBody>, Failure> {
        self.check()?;
        let text_model = self.api.templates.of(self.content, self.deadline).await?;
        let validator = self.validator(&text_model).await?;
        let prompts = self.prompts(&text_model).await?;
        let submitted = Instant::now();
        let permit = self.permit.take();
        let mut generation = self.submit(permit, &text_model, prompts, validator)?;
        let begun = match generation.next().await {
            Event::Begun(begun) => begun,
            Event::Failed(failure) => return Err(self.explain(failure)),
            Event::NotSent => return self.forward().await,
            Event::Parts(..) | Event::End(_) => return Err(Failure::Died), // a choice begins before its parts
        };
        let answered = observe((self.caller, self.model), begun.sent_at, submitted);
        let mut encoder = self.codec.encoder(&self.request, self.caller.id, unix_ms() / 1000);
        let mut response = if self.request.stream {
            let body = GenerationBody::new(generation, encoder, (self.model, self.codec.label(), self.caller.id));
            let mut response = Response::new(AnswerBody::Stream(Box::new(AnswerStream::Generation(body))));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
            response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            response.extensions_mut().insert(ReadDeadline { at: self.deadline, permit: None });
            response
        } else {
            let Some((completion, permit)) = collect(&mut generation, &self.model.body_budget).await? else {
                return self.forward().await;
            };
            let mut out = BytesMut::with_capacity(WHOLE);
            encoder.whole(&completion, &mut out);
            let share = &self.model.body_budget;
            let (version, permit) = (self.caller.parts.version, Some(permit));
            Document::json(out.freeze()).kept_response(permit, version, share, self.deadline)?
        };
        timing_headers(response.headers_mut(), (&begun.version, submitted), begun.sent_at, begun.swap, answered);
        Ok(response)
    }

    /// Counts the tokens of the prompt instead of answering it.
    ///
    /// # Errors
    /// The failure, for the codec of the API; status 501 from a model that cannot count.
    pub(crate) async fn count(mut self) -> Result<Response<AnswerBody>, Failure> {
        self.check()?;
        let text_model = self.api.templates.of(self.content, self.deadline).await?;
        let prompts = self.prompts(&text_model).await?;
        let body = prompts.into_iter().next().and_then(|prompt| prompt.choices.into_iter().next());
        let Some(body) = body else { return Err(Failure::NoSuchRoute) };
        let permit = self.permit.take();
        let submitted = self.submit_one(RequestKind::CountTokens, body.bytes, permit)?;
        let (answer, mut request) = match submitted.wait(self.model, &mut None, self.deadline).await? {
            Outcome::Answer(answer, request) => (*answer, request),
            Outcome::NotSent(_) => return self.forward().await,
        };
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

    /// Checks that the model can honour the request.
    fn check(&self) -> Result<(), Failure> {
        check_kind(self.model, self.content, Kind::TextGeneration)?;
        let capabilities: Capabilities = self.content.manifest.generation.honours.iter().copied().collect();
        capabilities.check(&self.request)?;
        Ok(check_values(&self.request)?)
    }

    fn has(&self, capability: Capability) -> bool {
        self.content.manifest.generation.honours.contains(&capability)
    }

    /// Validator of the answers, unless the engine keeps their form itself.
    async fn validator(&self, text_model: &TextModel) -> Result<Option<Validator>, Failure> {
        let capabilities: Capabilities = self.content.manifest.generation.honours.iter().copied().collect();
        // A schema that is none is refused in any case.
        let validator = match &self.request.format {
            ResponseFormat::Text => None,
            format => {
                let format = format.clone();
                text_model.aside.clone().run(move || Validator::new(&format)).await??
            }
        };
        Ok(validator.filter(|_| !capabilities.constrains(&self.request.format)))
    }

    async fn prompts(&self, text_model: &TextModel) -> Result<Vec<PreparedPrompt>, Failure> {
        let now = i64::try_from(unix_ms() / 1000).unwrap_or_default();
        let chat = &self.content.manifest.chat;
        let request = (&self.request, &self.model.body_budget);
        let mut prompts = Vec::with_capacity(self.request.prompts.len());
        for prompt in &self.request.prompts {
            let form = (chat.render, self.has(Capability::LiteralRanges), chat.tool_parser == "none");
            let on_fault = |why| log_for_author(self.model, why, self.caller.id);
            prompts.push(prepare(text_model, form, request, prompt, (now, on_fault)).await?);
        }
        Ok(prompts)
    }

    /// Submits all choices of all prompts. The memory of the body is that of the first.
    fn submit(
        &self,
        permit: Option<BodyPermit>,
        text_model: &TextModel,
        prompts: Vec<PreparedPrompt>,
        validator: Option<Validator>,
    ) -> Result<Generation, Failure> {
        let per_prompt = self.request.choices.max(1) as usize;
        let mut permit = permit;
        let mut choices = Vec::with_capacity(prompts.len() * per_prompt);
        for (prompt, mut prepared) in self.request.prompts.iter().zip(prompts) {
            let tools = match prompt {
                Prompt::Chat(chat) => Arc::new(CompiledTools::new(&chat.tools)),
                Prompt::Text(_) | Prompt::Tokens(_) => Arc::default(),
            };
            for body in std::mem::take(&mut prepared.choices) {
                let id_seed = fastrand::u64(..);
                let parser = Parser::new(
                    text_model.dialect,
                    self.parser_options(text_model, prompt, &tools, &prepared, id_seed),
                );
                let pieces = self.request.sampling.max_tokens.filter(|_| !self.has(Capability::MaxTokens));
                let limits = GuardLimits {
                    stop: self.request.stop.clone(),
                    pieces,
                    prompt_tokens: prepared.tokens,
                    tokens: self.request.logprobs.is_some(),
                };
                let submitted =
                    self.submit_one(RequestKind::TextGeneration, body.bytes, permit.take().or(body.permit))?;
                let submitted = (submitted.request, submitted.reply);
                let calls = EngineCalls::new(prompt, self.codec.has_calls(), id_seed);
                choices.push(Choice::new(submitted, OutputGuard::new(limits), parser, calls));
            }
        }
        let check = FormatCheck::new(validator, choices.len(), text_model.aside.clone());
        Ok(Generation::new(choices, per_prompt, check, self.deadline))
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

    fn submit_one(&self, kind: RequestKind, body: Bytes, permit: Option<BodyPermit>) -> Result<Submitted, Failure> {
        let mut head = head::head(self.caller.parts, self.caller.id, None, false);
        head.kind = Some(kind);
        let session = self.request.session.as_deref();
        if let Some(session) = session {
            head.session = Some(session.to_owned());
        }
        let session = session.map(|session| hash_name(session.as_bytes()));
        let body = RequestBody::Collected(BodyKind::Json, body);
        let (api, target) = (self.codec.label(), (self.content, self.deadline));
        self.caller.submit(self.model, (api, session), (head, body), permit, target)
    }

    /// A deadline that passed while the model's environment was being built says so.
    fn explain(&self, failure: Failure) -> Failure {
        match self.model.admission().build.filter(|_| failure == Failure::Deadline) {
            Some(build) => Failure::DeadlineBuilding { build },
            None => failure,
        }
    }

    /// Sends the request as it came to the successor of this scheduler.
    async fn forward(self) -> Result<Response<AnswerBody>, Failure> {
        self.api.forward(self.caller, self.original, self.deadline).await
    }
}
