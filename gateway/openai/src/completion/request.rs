//! Requests for completions.

use crate::chat::{ResponseFormatForm, read_format};
use crate::harmless::{Harmless, StreamOptions};
use crate::input::{Input, Inputs};
use omni_codec::body::{self, Unsupported};
use omni_codec::sampling::{self, LogitBias, MOST_CHOICES};
use omni_codec::{Object, TextOr, bounds};
use omni_generation::{GenerationRequest, InvalidRequest, Prompt, Sampling};
use schemars::JsonSchema;
use serde::Deserialize;

/// Most prompts of a request.
const MOST_PROMPTS: usize = 128;
/// Most answers to all prompts.
const MOST_ANSWERS: usize = 256;
/// Most alternatives for a token.
const MOST_LOGPROBS: u8 = 20;
/// Tokens of an answer without `max_tokens`, as the API has it.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// Parameters of the API, and of servers that extend it, that cannot be honoured.
const UNSUPPORTED: Unsupported = &[
    ("add_special_tokens", "the model decides"),
    ("allowed_token_ids", "use `logit_bias`"),
    ("guided_choice", "use `response_format` with an `enum` in its schema"),
    ("guided_grammar", "use `response_format`"),
    ("guided_json", "use `response_format`"),
    ("guided_regex", "use `response_format` with a `pattern` in its schema"),
    ("include_stop_str_in_output", "stop strings never appear in the answer"),
    ("length_penalty", "there is no beam search"),
    ("messages", "they belong to `/v1/chat/completions`"),
    ("prompt_embeds", "send `prompt`"),
    ("prompt_logprobs", "use `echo` with `logprobs`"),
    ("skip_special_tokens", "special tokens never appear in the answer"),
    ("stop_token_ids", "use `stop`"),
    ("structured_outputs", "use `response_format`"),
    ("suffix", "put the text into a prompt of the form that the model has for it"),
    ("tools", "they belong to `/v1/chat/completions`"),
    ("truncate_prompt_tokens", "prompts are never cut"),
    ("use_beam_search", "use `n`"),
];

/// Body of a request.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CompletionRequest {
    /// Model.
    model: String,
    /// Texts or token ids to go on from.
    prompt: Inputs,
    /// Most tokens of an answer; 16 if absent.
    #[schemars(range(min = 1))]
    max_tokens: Option<u32>,
    /// Fewest tokens of an answer.
    min_tokens: Option<u32>,
    /// 0 is greedy.
    #[schemars(range(min = 0.0, max = 2.0))]
    temperature: Option<f32>,
    /// Share of probability that is sampled from.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0))]
    top_p: Option<f32>,
    /// Number of tokens that is sampled from; 0 and -1: all.
    #[schemars(range(min = -1, max = 4_294_967_295_i64))]
    top_k: Option<i64>,
    /// Least probability relative to the most probable token.
    #[schemars(range(min = 0.0, max = 1.0))]
    min_p: Option<f32>,
    /// Penalty of frequent tokens.
    #[schemars(range(min = -2.0, max = 2.0))]
    frequency_penalty: Option<f32>,
    /// Penalty of tokens that have appeared.
    #[schemars(range(min = -2.0, max = 2.0))]
    presence_penalty: Option<f32>,
    /// Factor against repetition.
    #[schemars(range(max = 10.0), extend("exclusiveMinimum" = 0))]
    repetition_penalty: Option<f32>,
    /// Bias of tokens, by their ids.
    logit_bias: Option<LogitBias>,
    /// Seed of the random numbers.
    seed: Option<i64>,
    /// Generation beyond end tokens.
    ignore_eos: Option<bool>,
    /// Texts that end an answer.
    #[schemars(extend("minLength" = 1, "maxItems" = 16))]
    stop: Option<TextOr<Vec<String>>>,
    /// Number of answers to each prompt.
    #[schemars(range(min = 1, max = 16))]
    n: Option<u32>,
    /// Accepted if it is `n`.
    best_of: Option<u32>,
    /// Log probabilities of the answer's tokens, with so many alternatives; with `echo`, of the prompt's tokens, too.
    #[schemars(range(min = 0, max = 20))]
    logprobs: Option<u8>,
    /// The prompt before each answer.
    echo: Option<bool>,
    /// Form of the answers.
    response_format: Option<ResponseFormatForm>,
    /// Streamed answer.
    stream: Option<bool>,
    /// Options of the stream.
    stream_options: Option<StreamOptions>,
    /// Session: requests of one session go to one instance of the model.
    prompt_cache_key: Option<String>,
    /// Session, where `prompt_cache_key` is absent.
    user: Option<String>,
    /// Accepted without effect.
    metadata: Option<Object>,
    /// Accepted without effect if `auto` or `default`.
    #[schemars(extend("enum" = ["auto", "default", null]))]
    service_tier: Option<String>,
}

/// Reads the body of a request.
///
/// # Errors
/// A body that is not of the form, or a parameter that cannot be honoured.
pub fn completion_request(json: &[u8]) -> Result<GenerationRequest, InvalidRequest> {
    body::parse::<CompletionRequest>(json, UNSUPPORTED)?.into_generation()
}

impl CompletionRequest {
    fn into_generation(self) -> Result<GenerationRequest, InvalidRequest> {
        bounds::length("model", &self.model, 256)?;
        let metadata = self.metadata.as_ref();
        Harmless { metadata, service_tier: self.service_tier.as_deref(), ..Harmless::default() }.check()?;
        let sampling = Sampling {
            max_tokens: Some(self.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS)),
            min_tokens: self.min_tokens,
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: sampling::top_k(self.top_k)?,
            min_p: self.min_p,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
            logit_bias: self.logit_bias.unwrap_or_default().0,
            ignore_eos: self.ignore_eos.unwrap_or(false),
        };
        sampling::check(&sampling)?;
        let choices = bounds::within("n", self.n, 1..=MOST_CHOICES)?.unwrap_or(1);
        if self.best_of.is_some_and(|best_of| best_of != choices) {
            return Err(InvalidRequest::unsupported("best_of", "`best_of` has to be `n`: answers are not ranked"));
        }
        let prompts = prompts(self.prompt, choices)?;
        let logprobs = bounds::within("logprobs", self.logprobs, 0..=MOST_LOGPROBS)?;
        let echo = self.echo.unwrap_or(false);
        let stream = self.stream.unwrap_or(false);
        Ok(GenerationRequest {
            model: self.model,
            prompts,
            choices,
            sampling,
            stop: sampling::stop("stop", self.stop.map(TextOr::into_vec).unwrap_or_default())?,
            format: read_format(self.response_format)?,
            logprobs,
            echo,
            stream,
            stream_usage: StreamOptions::usage(self.stream_options.as_ref(), stream)?,
            session: sampling::session([("prompt_cache_key", self.prompt_cache_key), ("user", self.user)])?,
        })
    }
}

fn prompts(inputs: Inputs, choices: u32) -> Result<Vec<Prompt>, InvalidRequest> {
    bounds::count("prompt", inputs.0.len(), 1..=MOST_PROMPTS)?;
    let answers = inputs.0.len() * choices as usize;
    if answers > MOST_ANSWERS {
        let message = format!("`n` answers to each prompt are {answers}: there may be {MOST_ANSWERS}");
        return Err(InvalidRequest::new("n", message));
    }
    let prompts = inputs.0.into_iter().map(|input| match input {
        Input::Text(text) => Ok(Prompt::Text(text)),
        Input::Tokens(tokens) if tokens.is_empty() => Err(InvalidRequest::new("prompt", "a prompt has no tokens")),
        Input::Tokens(tokens) => Ok(Prompt::Tokens(tokens)),
    });
    prompts.collect()
}
