//! Requests in the form of the engine: tokens, parameters, grammar.

use crate::engine::{Failure, Generation, Submission, Work};
use crate::model::{CallForm, Function, Grammars, Model};
use omni_batcher::Refusal;
use omni_engine_protocol::frame::CONTEXT_LENGTH;
use omni_engine_protocol::generation::{
    FormatKind, ReceivedFormat, ReceivedGeneration, ReceivedSampling, ReceivedToolChoice,
};
use omni_engine_protocol::task::EmbeddingsInput;
use omni_kv_cache::Digest;
use omni_sampler::{Format, Grammar, ParameterError, Parameters};
use omni_tool_parser::ReasoningFormat;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Instant;

/// Refusal or failure of a request, for its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) status: u16,
    pub(super) message: String,
    pub(super) parameter: Option<&'static str>,
    pub(super) code: Option<&'static str>,
}

impl Refused {
    /// A request that is wrong.
    pub(super) fn invalid(parameter: Option<&'static str>, message: impl Into<String>) -> Self {
        Self { status: 400, message: message.into(), parameter, code: None }
    }

    fn failed(status: u16, failure: &Failure) -> Self {
        Self { status, message: failure.to_string(), parameter: None, code: None }
    }
}

impl From<&Failure> for Refused {
    fn from(failure: &Failure) -> Self {
        match failure {
            Failure::Refused(Refusal::TooLong { .. }) => {
                Self { code: Some(CONTEXT_LENGTH), ..Self::invalid(None, failure.to_string()) }
            }
            Failure::Refused(Refusal::QueueFull { .. } | Refusal::Duplicate(_))
            | Failure::Overloaded
            | Failure::Ending => Self::failed(503, failure),
            Failure::Refused(Refusal::EmptyPrompt | Refusal::Choices { .. }) | Failure::Kind(_) => {
                Self::invalid(None, failure.to_string())
            }
            Failure::Parameter(error) => Self::from(error),
            Failure::Deadline => Self::failed(504, failure),
            Failure::Sample(_) | Failure::Backend(_) => Self::failed(500, failure),
        }
    }
}

impl From<&ParameterError> for Refused {
    fn from(error: &ParameterError) -> Self {
        let parameter = match error {
            ParameterError::Range { parameter, .. } | ParameterError::Token { parameter, .. } => Some(*parameter),
            ParameterError::Vocabulary(_) | ParameterError::NothingAllowed => None,
        };
        Self::invalid(parameter, error.to_string())
    }
}

/// Model and its tokens, with which requests are made.
pub(super) struct Requests {
    pub(super) model: Model,
    /// Most tokens of prompt and answer.
    pub(super) longest: usize,
    pub(super) root: Digest,
    grammars: Grammars,
    /// Form of the model's calls; `None`: none that a grammar can demand.
    calls: Option<CallForm>,
}

impl Requests {
    /// `template`: the node's chat template of the model.
    pub(super) fn new(model: Model, longest: usize, root: Digest, template: Option<&str>) -> Self {
        let grammars = Grammars::new(Arc::clone(&model.tokenizer), model.vocabulary.clone());
        Self { model, longest, root, grammars, calls: template.and_then(CallForm::of_template) }
    }

    /// Reads the body of a request for generated text, and whether the answer repeats the prompt's tokens. Takes as long as
    /// its prompt's tokens and its grammar.
    pub(super) fn generation(&self, body: &[u8], deadline: Instant) -> Result<(Submission, bool), Refused> {
        let body: ReceivedGeneration =
            serde_json::from_slice(body).map_err(|error| Refused::invalid(None, error.to_string()))?;
        let prompt = self.prompt(&body)?;
        let parameters = parameters(&body.sampling, body.logprobs);
        let room = self.longest.saturating_sub(prompt.len());
        let asked = body.sampling.max_tokens.map(|most| usize::try_from(most).unwrap_or(usize::MAX));
        let generation = Generation {
            parameters,
            // Without a room the batcher refuses the prompt, and says both numbers.
            max_tokens: asked.unwrap_or(room.max(1)),
            choices: 1,
            grammar: self.grammar(&body)?,
            prompt_logprobs: body.echo && body.logprobs.is_some(),
        };
        Ok((self.submission(prompt, Work::Generate(Box::new(generation)), deadline), body.echo))
    }

    /// Number of tokens of a request for generated text.
    pub(super) fn count(&self, body: &[u8]) -> Result<usize, Refused> {
        let body = serde_json::from_slice(body).map_err(|error| Refused::invalid(None, error.to_string()))?;
        Ok(self.prompt(&body)?.len())
    }

    /// Reads the body of a request for embeddings.
    pub(super) fn embeddings(&self, body: &[u8], deadline: Instant) -> Result<Vec<Submission>, Refused> {
        let body: EmbeddingsInput =
            serde_json::from_slice(body).map_err(|error| Refused::invalid(None, error.to_string()))?;
        let width = self.model.spec.hidden;
        if body.dimensions.is_some_and(|dimensions| usize::try_from(dimensions) != Ok(width)) {
            let message = format!("this model's embeddings have {width} dimensions: leave `dimensions` out");
            return Err(Refused::invalid(Some("dimensions"), message));
        }
        let encode = |text: String| {
            let tokens = self.model.tokenizer.encode(&text, true, &[]);
            tokens.map_err(|error| Refused::invalid(Some("input"), error.to_string()))
        };
        let inputs = match (body.texts, body.tokens) {
            (Some(texts), None) => texts.into_iter().map(encode).collect::<Result<Vec<_>, _>>()?,
            (None, Some(tokens)) => tokens,
            _ => return Err(Refused::invalid(Some("input"), "either texts or tokens are needed")),
        };
        inputs.iter().try_for_each(|tokens| self.check(tokens))?;
        Ok(inputs.into_iter().map(|tokens| self.submission(tokens, Work::Embed, deadline)).collect())
    }

    fn submission(&self, prompt: Vec<u32>, work: Work, deadline: Instant) -> Submission {
        Submission { prompt: prompt.into(), work, priority: 0, deadline: Some(deadline), root: self.root }
    }

    /// Tokens of a prompt. A rendered one that begins with the token of a text's begin does not get it again.
    fn prompt(&self, body: &ReceivedGeneration) -> Result<Vec<u32>, Refused> {
        let tokens = match (&body.prompt, &body.prompt_tokens) {
            (Some(text), None) => {
                let literals: Vec<_> = body.literals.iter().map(|(start, end)| *start..*end).collect();
                let tokens = self.model.tokenizer.encode(text, true, &literals);
                tokens.map_err(|error| Refused::invalid(Some("prompt"), error.to_string()))?
            }
            (None, Some(tokens)) => tokens.clone(),
            _ => {
                return Err(Refused::invalid(None, "the native engine needs a prompt: the node renders conversations"));
            }
        };
        self.check(&tokens)?;
        Ok(tokens)
    }

    fn check(&self, tokens: &[u32]) -> Result<(), Refused> {
        match tokens.iter().find(|token| !self.model.vocabulary.contains(**token)) {
            Some(token) => {
                let last = self.model.vocabulary.size() - 1;
                let message = format!("token id {token} is not in the vocabulary, which ends at {last}");
                Err(Refused::invalid(Some("prompt"), message))
            }
            None => Ok(()),
        }
    }

    /// Grammar of an answer: that of its form, or of a call that the client demands.
    fn grammar(&self, body: &ReceivedGeneration) -> Result<Option<Grammar>, Refused> {
        let prompt = body.prompt.as_deref().unwrap_or_default();
        // The end of a client's own text opens nothing.
        let is_literal = body.literals.last().is_some_and(|(_, end)| *end >= prompt.trim_end().len());
        let reasoning = ReasoningFormat::open_in(prompt).filter(|_| !is_literal);
        let refused = |message: String| Refused::invalid(Some("response_format"), message);
        let format = match &body.response_format {
            None => return Ok(self.demanded_call(body, reasoning)),
            Some(ReceivedFormat { kind: FormatKind::JsonObject, .. }) => Format::JsonObject,
            Some(ReceivedFormat { schema: Some(schema), .. }) => Format::JsonSchema(schema.get()),
            Some(ReceivedFormat { schema: None, .. }) => return Err(refused("the schema is missing".to_owned())),
        };
        self.grammars.answer(format, reasoning).map(Some).map_err(|error| refused(error.to_string()))
    }

    fn demanded_call(&self, body: &ReceivedGeneration, reasoning: Option<ReasoningFormat>) -> Option<Grammar> {
        let is_meant = |name: &str| match &body.tool_choice {
            ReceivedToolChoice::Auto | ReceivedToolChoice::None => false,
            ReceivedToolChoice::Required => true,
            ReceivedToolChoice::Named(named) => named == name,
        };
        let functions = body.tools.iter().map(|tool| &tool.function).filter(|function| is_meant(&function.name));
        let functions: Vec<_> = functions
            .map(|function| Function {
                name: &function.name,
                parameters: function.parameters.as_deref().map(RawValue::get),
            })
            .collect();
        self.grammars.call(self.calls?, &functions, reasoning)
    }
}

fn parameters(sampling: &ReceivedSampling, logprobs: Option<u8>) -> Parameters {
    let default = Parameters::default();
    Parameters {
        temperature: sampling.temperature.unwrap_or(default.temperature),
        top_k: sampling.top_k,
        top_p: sampling.top_p.unwrap_or(default.top_p),
        min_p: sampling.min_p.unwrap_or(default.min_p),
        frequency_penalty: sampling.frequency_penalty.unwrap_or(default.frequency_penalty),
        presence_penalty: sampling.presence_penalty.unwrap_or(default.presence_penalty),
        repetition_penalty: sampling.repetition_penalty.unwrap_or(default.repetition_penalty),
        logit_bias: sampling.logit_bias.clone(),
        min_tokens: sampling.min_tokens.unwrap_or(default.min_tokens),
        ignore_eos: sampling.ignore_eos,
        seed: sampling.seed.map(i64::cast_unsigned),
        logprobs,
        ..default
    }
}

/// Requests and the engine, shared by all tasks.
pub(super) struct Shared {
    pub(super) requests: Requests,
    pub(super) engine: crate::engine::Engine,
    /// Most requests of a connection at a time.
    pub(super) concurrency: usize,
}

pub(super) type SharedRef = Arc<Shared>;
