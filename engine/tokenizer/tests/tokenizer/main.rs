//! Vocabularies, texts and streams of tokens.

#![allow(missing_docs, clippy::expect_used, clippy::panic, reason = "a test's helpers end it")]
#![allow(clippy::single_range_in_vec_init, reason = "a list of ranges of which there is one")]

mod detokenizer;
mod framing;
mod hostile;
mod length;
mod literals;
mod real;
mod reference;
mod vocabularies;
