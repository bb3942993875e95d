//! Text to tokens and back: vocabularies of tokenizer.json and GGUF, texts of streamed tokens.
//!
//! ```text
//!  tokenizer.json ─▶ json ─┐
//!                          ├─▶ Parts ─▶ Tokenizer ─▶ encode: added tokens outside of literal ranges, then the model
//!  GGUF's keys ────▶ gguf ─┘                └─▶ Detokenizer: ids one by one, whole characters out
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | `tokenizer` | a tokenizer: encoding, decoding, ids with a meaning |
//! | `detokenizer` | text of tokens that come one by one |
//! | `decoder` | whole characters from the bytes of tokens |
//! | `pipeline` | text between added tokens: normaliser, pre-tokeniser and model of the `tokenizers` crate |
//! | `added` | search for added tokens |
//! | `bytes` | bytes of each token |
//! | `byte_pairs` | checked construction of a byte-pair model |
//! | `json` | tokenizer.json |
//! | `gguf` | vocabularies of GGUF: byte-level pairs, SentencePiece, WordPiece |
//! | `config` | further files that say which tokens begin and end a text |
//! | `parts` | parts of a tokenizer, as both sources give them |
//!
//! Invariants:
//! - a foreign file or text never causes a panic;
//! - texts of a [`Detokenizer`] joined are [`Tokenizer::decode`] of all its tokens;
//! - no added token is found in a literal range, but for those of white space alone.
#![forbid(unsafe_code)]

mod added;
mod byte_pairs;
mod bytes;
mod config;
mod decoder;
mod detokenizer;
mod error;
mod gguf;
mod json;
mod parts;
mod pipeline;
mod tokenizer;

pub use bytes::Place;
pub use config::TokenizerConfig;
pub use decoder::Special;
pub use detokenizer::Detokenizer;
pub use error::{EncodeError, TokenizerError, UnknownToken};
pub use tokenizer::Tokenizer;
