//! Sampler of one choice.

use crate::adjust::Adjustments;
use crate::error::SampleError;
use crate::grammar::{Grammar, GrammarMask};
use crate::logprob::Normaliser;
use crate::parameters::{ParameterError, Parameters, Vocabulary};
use crate::random::{RandomStream, fresh_seed};
use crate::row;
use crate::selection::Filters;
use crate::vector::{choose, clean, normalise};
use crate::workspace::Workspace;

/// Choice of a request, for which a sampler is made.
#[derive(Debug, Default)]
pub struct Choice<'a> {
    /// Number of the choice within its request.
    pub index: u32,
    /// Tokens of the prompt, which the repetition penalty sees.
    pub prompt: &'a [u32],
    /// Most tokens of the answer, for which memory is taken at once where tokens are counted.
    pub max_tokens: usize,
    /// Grammar of the answer.
    pub grammar: Option<Grammar>,
}

/// Token that was sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampled {
    /// Token id.
    pub token: u32,
    /// Log probability in the model's own distribution, if asked for.
    pub logprob: Option<f32>,
}

/// State of a choice after a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Further tokens may follow.
    Continues,
    /// The answer is complete: the token ends it, or the grammar allows no further one.
    Ended,
}

/// Sampler of one choice: parameters, counts of tokens, grammar, position.
#[derive(Clone)]
pub struct Sampler {
    vocabulary: Vocabulary,
    stream: RandomStream,
    filters: Filters,
    adjustments: Adjustments,
    min_tokens: u64,
    ignore_eos: bool,
    logprobs: Option<usize>,
    grammar: Option<Grammar>,
    accepted: u64,
}

impl Sampler {
    /// Makes the sampler of a choice.
    ///
    /// # Errors
    /// A parameter is outside of its range, or an id outside of the vocabulary.
    pub fn new(parameters: &Parameters, vocabulary: &Vocabulary, choice: Choice<'_>) -> Result<Self, ParameterError> {
        parameters.check(vocabulary, choice.prompt)?;
        Ok(Self {
            vocabulary: vocabulary.clone(),
            stream: RandomStream::new(parameters.seed.unwrap_or_else(fresh_seed), choice.index),
            filters: Filters::new(parameters),
            adjustments: Adjustments::new(parameters, vocabulary, choice.prompt, choice.max_tokens),
            min_tokens: parameters.min_tokens.into(),
            ignore_eos: parameters.ignore_eos,
            logprobs: parameters.logprobs.map(usize::from),
            grammar: choice.grammar,
            accepted: 0,
        })
    }

    /// Number of accepted tokens: the position that the next one is sampled for.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Computes the grammar's mask of the next position, which [`Sampler::sample`] does otherwise: for the time in
    /// which its row is still computed.
    ///
    /// # Errors
    /// The grammar reached its limits.
    pub fn prepare(&mut self) -> Result<(), SampleError> {
        self.grammar.as_mut().map_or(Ok(()), Grammar::prepare)
    }

    /// Samples the token of the next position. The sampler stays as it is until the token is accepted; the row is
    /// changed, and the alternatives are in the workspace.
    ///
    /// # Errors
    /// No token can be sampled; the choice is to be ended with the error.
    pub fn sample(&mut self, row: &mut [f32], workspace: &mut Workspace) -> Result<Sampled, SampleError> {
        let width = SampleError::Width { row: row.len(), vocabulary: self.vocabulary.size() };
        let row = row.get_mut(..self.vocabulary.size()).ok_or(width)?;
        clean(row);
        workspace.originals.clear();
        workspace.alternatives.clear();
        let normaliser = self.logprobs.map(|count| normalise(row, count, workspace));
        self.exclude(row)?;
        self.adjustments.apply(row, workspace);
        let uniform = self.stream.uniform(self.accepted);
        let token = choose(row, self.filters, uniform, workspace).ok_or(SampleError::NothingLeft)?;
        let logit = |normaliser: Normaliser| {
            let original = workspace.originals.iter().find(|(id, _)| *id == token).map(|(_, logit)| *logit);
            normaliser.logprob(original.unwrap_or(row[token as usize]))
        };
        Ok(Sampled { token, logprob: normaliser.map(logit) })
    }

    /// Moves on by a token of the answer, sampled or given.
    ///
    /// # Errors
    /// The token is outside of the vocabulary, or the grammar does not allow it; the choice is to be ended.
    pub fn accept(&mut self, token: u32) -> Result<Progress, SampleError> {
        if !self.vocabulary.contains(token) {
            return Err(SampleError::Token(token));
        }
        let complete = match &mut self.grammar {
            Some(grammar) => grammar.accept(token)?,
            None => false,
        };
        self.adjustments.accept(token);
        self.accepted += 1;
        let ends = !self.ignore_eos && self.vocabulary.end_tokens().contains(&token);
        Ok(if complete || ends { Progress::Ended } else { Progress::Continues })
    }

    /// Number of tokens at the beginning of a draft that the grammar allows one after the other: the others need not
    /// be computed. All without a grammar.
    pub fn plausible(&mut self, draft: &[u32]) -> usize {
        let known = draft.iter().position(|&token| !self.vocabulary.contains(token)).unwrap_or(draft.len());
        match &mut self.grammar {
            Some(grammar) => grammar.plausible(&draft[..known]),
            None => known,
        }
    }

    /// Log probability of a given token in a row, with the alternatives in the workspace: for prompts that are echoed.
    ///
    /// # Errors
    /// The row or the token does not fit the vocabulary.
    pub fn score(
        vocabulary: &Vocabulary,
        row: &mut [f32],
        token: u32,
        alternatives: usize,
        workspace: &mut Workspace,
    ) -> Result<f32, SampleError> {
        let width = SampleError::Width { row: row.len(), vocabulary: vocabulary.size() };
        let row = row.get_mut(..vocabulary.size()).ok_or(width)?;
        let logit = |row: &[f32]| row.get(token as usize).copied().ok_or(SampleError::Token(token));
        clean(row);
        let logit = logit(row)?;
        Ok(normalise(row, alternatives, workspace).logprob(logit))
    }

    /// Excludes tokens that the grammar does not allow, and end tokens before their time.
    fn exclude(&mut self, row: &mut [f32]) -> Result<(), SampleError> {
        let mut may_end = self.accepted >= self.min_tokens;
        if let Some(grammar) = &mut self.grammar {
            match grammar.mask()? {
                GrammarMask::Tokens(allowed) => row::mask(row, allowed),
                GrammarMask::NotYet => may_end = false,
            }
        }
        if !may_end {
            for &token in self.vocabulary.end_tokens() {
                row[token as usize] = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }
}
