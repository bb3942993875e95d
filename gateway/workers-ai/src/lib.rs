//! Workers AI API: its routes, its rendering of values, streams and failures, and its form of text generation.

#![forbid(unsafe_code)]

mod embedding;
mod envelope;
mod error;
mod events;
mod operations;
mod routes;
mod text;

pub use embedding::{embedding_answer, embedding_texts};
pub use envelope::{Envelope, envelope};
pub use error::{code_of_handler, error_response};
pub use events::StreamEncoder;
pub use operations::add_operations;
pub use routes::model_of;
pub use text::{NativeEncoder, TextAnswer, TextRequest, text_request};

#[cfg(test)]
#[path = "../../codec/tests/scenarios/mod.rs"]
mod scenarios;
