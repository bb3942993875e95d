//! Incremental parsers of tool calls and reasoning in generated text.
#![forbid(unsafe_code)]
