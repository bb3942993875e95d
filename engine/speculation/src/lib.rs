//! Drafts of next tokens and their exact acceptance.
//!
//! ```text
//!  tokens so far ──▶ PromptLookup ─┐                        ┌─▶ accepted tokens
//!                    DraftModel  ──┴─▶ draft ─▶ step ─▶ verify
//!                                        ▲                  │
//!                              DraftPolicy ◀── acceptance, cost of rows
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | [`lookup`] | drafts copied from the sequence itself |
//! | [`model`] | what a draft model has computed and computes next |
//! | [`mod@verify`] | acceptance |
//! | [`policy`] | length of drafts, 0 where they do not pay |
//! | [`cost`] | cost of a drafted token, from the times of steps |
//! | [`admission`] | which sequences a draft model computes |
//!
//! Acceptance samples the target at each drafted position in turn, by that position's own random number, and goes on
//! while the sampled token is the drafted one. The answer is so, token for token, the one without drafts, seeded and
//! greedy alike, with every penalty, bias and grammar at every position; a draft changes the number of steps alone. It
//! accepts a token of the draft with the target's probability of it. The usual test (accept by the ratio of both
//! probabilities, else sample the difference) accepts more of a draft that is itself sampled, but gives other tokens
//! than without a draft; [`model`] says how a draft model gets a part of that back by the same random numbers.
#![forbid(unsafe_code)]

pub mod admission;
pub mod cost;
pub mod lookup;
pub mod model;
pub mod policy;
pub mod verify;

pub use admission::DraftAdmission;
pub use cost::StepCost;
pub use lookup::PromptLookup;
pub use model::{DraftModel, DraftStep};
pub use policy::DraftPolicy;
pub use verify::{LogitRows, verify};
