//! Next token from logits: sampling parameters, log probabilities, grammars.
//!
//! ```text
//!  Parameters, Vocabulary ──▶ Sampler ◀── Grammar ◀── GrammarCompiler (any thread)
//!                                │
//!  row of logits ──▶ sample ─────┼──▶ Sampled, alternatives
//!                    accept ─────┘     counts, grammar and position move on
//! ```
//!
//! A sampler belongs to one choice of a request. Order of its operations on a row:
//!
//! 1. ids beyond the vocabulary are cut off; NaN counts as -∞, +∞ as the largest number;
//! 2. log probabilities, if asked for: those of the model, before everything below (as OpenAI and vLLM report them);
//! 3. grammar, allowed and banned ids, end tokens before `min_tokens`;
//! 4. `logit_bias`, then repetition, frequency and presence penalties;
//! 5. temperature, `min_p`, `top_k`, `top_p`, each of what the one before has left;
//! 6. one random number of (seed, choice, position).
//!
//! Invariants:
//! - A token depends on the row, the parameters, and the tokens accepted before it: never on other choices, nor on the
//!   way these tokens were proposed. Sampling each row of a draft in turn is therefore exact ([`Sampler::accept`] is
//!   called after each).
//! - The logits may be any bits; no NaN comes out. If nothing can be sampled, that is an error of this choice.
//! - Nothing is allocated for a row, except by grammars and by counts of more tokens than were announced.
#![deny(unsafe_code)]

mod adjust;
mod counts;
mod error;
mod grammar;
mod logprob;
mod parameters;
mod random;
mod row;
mod sampler;
mod selection;
mod vector;
mod workspace;

pub use error::SampleError;
pub use grammar::{Format, Frame, Grammar, GrammarCompiler, GrammarError};
pub use logprob::LEAST_LOGPROB;
pub use parameters::{MOST_ALTERNATIVES, ParameterError, Parameters, Vocabulary};
pub use random::{RandomStream, fresh_seed};
pub use sampler::{Choice, Progress, Sampled, Sampler};
pub use workspace::{Alternative, Workspace};
