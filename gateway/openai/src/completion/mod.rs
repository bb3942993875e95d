//! Completions of texts: `/v1/completions`.

mod answer;
mod encoder;
mod request;

pub use answer::TextCompletion;
pub use encoder::CompletionEncoder;
pub use request::{CompletionRequest, completion_request};

#[cfg(test)]
mod tests;
