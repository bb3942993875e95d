//! Metadata of GGUF files: `"GGUF" │ version: u32 │ tensors: u64 │ values: u64 │ values │ descriptions │ data`.
//!
//! The parser reads from a [`Source`]: a file in memory, as the engine has it, or a [`FileSource`], which reads bounded pieces
//! of a file that others may change or cut meanwhile. Files of version 1 (counts of 32 bits) and those of big-endian machines
//! are refused.
//!
//! | module | contents |
//! | --- | --- |
//! | `source` | bytes from front to back |
//! | `kind` | types of values |
//! | `values` | header, keys, places of values |
//! | `file` | source of a file, by positioned reads |
//! | `conversation` | chat template and special tokens of a file |
//! | `special` | special tokens as a `tokenizer_config.json` has them |
//!
//! Invariants: a foreign file never causes a panic, nor an allocation beyond what it holds and beyond the bounds here; it is
//! refused with the end of a sentence that names the part to blame.
#![forbid(unsafe_code)]

mod conversation;
mod file;
mod kind;
mod source;
mod special;
mod values;

pub use conversation::{CHAT_TEMPLATE, Conversation, LONGEST_TEMPLATE};
pub use file::{FileSource, MOST_READ};
pub use kind::Kind;
pub use source::{Defect, Source};
pub use special::{NAMED, SpecialTokens};
pub use values::{Header, Value, beginning, header, values};

#[cfg(test)]
mod tests;
