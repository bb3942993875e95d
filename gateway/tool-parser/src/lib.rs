//! Incremental parsers of tool calls and reasoning in generated text.
//!
//! ```text
//!  chat template ──▶ Dialect, ReasoningFormat ─┐
//!  tools ──────────▶ CompiledTools ────────────┴▶ Parser ──▶ Delta …, Outcome
//!                                    text pieces ──▲
//! ```
//!
//! Invariants, for every dialect and every input:
//! - The parts are the same however the text is cut into pieces, and none is taken back.
//! - Nothing is lost: the text is content, reasoning, names, arguments, or marks between them; only calls that may not be made are
//!   dropped.
//! - There are no errors. What does not parse is content.
//! - Arguments are JSON, or the model's exact text if that is none. Where the model stops inside of them they stay open.
//! - At most the beginning of a call is held back: marks, name and id. Longer are held: values in markup until their end is known,
//!   calls of Python and of Gemma, objects whose name comes last, and answers that are a call only as a whole.
//! - Time is linear in the text.
#![forbid(unsafe_code)]

mod call;
mod coerce;
mod cursor;
mod dialect;
mod gemma;
mod grammar;
mod ids;
mod input;
mod json;
mod marker;
mod parser;
mod python;
mod reasoning;
mod tools;

pub use dialect::Dialect;
pub use parser::{Outcome, Parser, ParserOptions};
pub use reasoning::ReasoningFormat;
pub use tools::CompiledTools;
