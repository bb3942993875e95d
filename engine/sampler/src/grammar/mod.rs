//! Grammars over tokens, by `llguidance`.
//!
//! | module | contents |
//! | --- | --- |
//! | [`compiler`] | from a format to a grammar, on a thread of its own with a time limit |
//! | [`cost`] | bounds of schemas, before anything is compiled |
//! | [`state`] | grammar of one choice, token by token |
//! | [`error`] | reasons why a grammar cannot be had |

mod compiler;
mod cost;
mod error;
mod state;

pub use compiler::{Format, Frame, GrammarCompiler};
pub use error::GrammarError;
pub use state::Grammar;
pub(crate) use state::GrammarMask;
