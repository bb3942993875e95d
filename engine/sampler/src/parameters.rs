//! Sampling parameters of a request, and their bounds.

use std::sync::Arc;

/// Most alternatives of a token's log probability.
pub const MOST_ALTERNATIVES: usize = 20;
/// Temperature below which sampling is greedy (as in vLLM): smaller ones overflow the logits.
pub(crate) const LEAST_TEMPERATURE: f32 = 1e-5;

/// Sampling parameters. The default samples from the model's own distribution.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameters {
    /// Divisor of the logits; below 1e-5 the most probable token is taken.
    pub temperature: f32,
    /// Number of tokens that is sampled from; `None`: all.
    pub top_k: Option<u32>,
    /// Share of probability that is sampled from, above 0 and up to 1.
    pub top_p: f32,
    /// Least probability relative to the most probable token, 0 to 1.
    pub min_p: f32,
    /// Subtracted for each time that a token is in the answer, -2 to 2.
    pub frequency_penalty: f32,
    /// Subtracted once for a token that is in the answer, -2 to 2.
    pub presence_penalty: f32,
    /// Divisor of positive and factor of negative logits of tokens in prompt or answer, above 0; 1 is none.
    pub repetition_penalty: f32,
    /// Addends of logits, -100 to 100 each.
    pub logit_bias: Vec<(u32, f32)>,
    /// Ids that may be sampled; `None`: all.
    pub allowed: Option<Vec<u32>>,
    /// Ids that may not be sampled.
    pub banned: Vec<u32>,
    /// Number of tokens before which no end token is sampled. An answer whose grammar is complete ends before it.
    pub min_tokens: u32,
    /// Generation beyond end tokens: they are sampled as any other and end nothing.
    pub ignore_eos: bool,
    /// Seed of the random numbers; `None`: a fresh one.
    pub seed: Option<u64>,
    /// Number of alternatives for each token's log probability; `None`: no log probabilities.
    pub logprobs: Option<u8>,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            allowed: None,
            banned: Vec::new(),
            min_tokens: 0,
            ignore_eos: false,
            seed: None,
            logprobs: None,
        }
    }
}

/// Parameter that cannot be honoured.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ParameterError {
    /// A number is outside of its range.
    #[error("{parameter} is {value}, and must be {range}")]
    Range {
        /// Name of the parameter.
        parameter: &'static str,
        /// Value of the request.
        value: f64,
        /// Range of the parameter.
        range: &'static str,
    },
    /// A token id is outside of the vocabulary.
    #[error("{parameter} has token id {id}, and the vocabulary ends at {last}")]
    Token {
        /// Name of the parameter.
        parameter: &'static str,
        /// Token id.
        id: u32,
        /// Last id of the vocabulary.
        last: u32,
    },
    /// A vocabulary without tokens, or with more than ids can number.
    #[error("a vocabulary of {0} tokens cannot be sampled from")]
    Vocabulary(usize),
    /// An empty list of allowed ids.
    #[error("allowed_token_ids is empty: no token could be sampled")]
    NothingAllowed,
}

/// Token ids of a model that can be sampled. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vocabulary {
    size: u32,
    end_tokens: Arc<[u32]>,
}

impl Vocabulary {
    /// Describes a vocabulary of ids 0 to `size - 1`; logits of further ids are padding. Any of `end_tokens` ends an
    /// answer.
    ///
    /// # Errors
    /// There are no tokens, or more than 2³¹, or an end token is none of them.
    pub fn new(size: usize, end_tokens: &[u32]) -> Result<Self, ParameterError> {
        let bounded = u32::try_from(size).ok().filter(|size| (1..=1 << 31).contains(size));
        let size = bounded.ok_or(ParameterError::Vocabulary(size))?;
        let vocabulary = Self { size, end_tokens: end_tokens.into() };
        vocabulary.check("end_tokens", end_tokens)?;
        Ok(vocabulary)
    }

    /// Number of ids.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size as usize
    }

    /// Ids that end an answer.
    #[must_use]
    pub fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    /// Returns true if the id is of the vocabulary.
    #[must_use]
    pub fn contains(&self, id: u32) -> bool {
        id < self.size
    }

    pub(crate) fn check<'a>(
        &self,
        parameter: &'static str,
        ids: impl IntoIterator<Item = &'a u32>,
    ) -> Result<(), ParameterError> {
        match ids.into_iter().find(|id| !self.contains(**id)) {
            Some(&id) => Err(ParameterError::Token { parameter, id, last: self.size - 1 }),
            None => Ok(()),
        }
    }
}

impl Parameters {
    /// Returns true if the most probable token is always taken.
    #[must_use]
    pub fn is_greedy(&self) -> bool {
        self.temperature < LEAST_TEMPERATURE || self.top_k == Some(1)
    }

    /// Checks the parameters and the ids of a prompt, as [`crate::Sampler::new`] does, without taking memory for a choice.
    ///
    /// # Errors
    /// A parameter is outside of its range, or an id outside of the vocabulary.
    pub fn check(&self, vocabulary: &Vocabulary, prompt: &[u32]) -> Result<(), ParameterError> {
        let range = |parameter, value: f32, holds: bool, range| {
            let value = f64::from(value);
            if holds { Ok(()) } else { Err(ParameterError::Range { parameter, value, range }) }
        };
        let within = |value: f32, bound: f32| (-bound..=bound).contains(&value);
        let temperature = self.temperature;
        range("temperature", temperature, (0.0..f32::INFINITY).contains(&temperature), "a number from 0")?;
        range("top_k", 0.0, self.top_k != Some(0), "at least 1")?;
        range("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1")?;
        range("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "from 0 to 1")?;
        range("frequency_penalty", self.frequency_penalty, within(self.frequency_penalty, 2.0), "from -2 to 2")?;
        range("presence_penalty", self.presence_penalty, within(self.presence_penalty, 2.0), "from -2 to 2")?;
        let repetition = self.repetition_penalty;
        range("repetition_penalty", repetition, repetition > 0.0 && repetition <= 1e6, "above 0 and at most 1e6")?;
        if let Some((_, bias)) = self.logit_bias.iter().find(|(_, bias)| !within(*bias, 100.0)) {
            range("logit_bias", *bias, false, "from -100 to 100")?;
        }
        let alternatives = self.logprobs.unwrap_or(0);
        range("logprobs", alternatives.into(), usize::from(alternatives) <= MOST_ALTERNATIVES, "at most 20")?;
        vocabulary.check("prompt", prompt)?;
        vocabulary.check("logit_bias", self.logit_bias.iter().map(|(id, _)| id))?;
        vocabulary.check("banned_token_ids", &self.banned)?;
        match &self.allowed {
            Some(allowed) if allowed.is_empty() => Err(ParameterError::NothingAllowed),
            Some(allowed) => vocabulary.check("allowed_token_ids", allowed),
            None => Ok(()),
        }
    }
}
