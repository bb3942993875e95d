//! Anthropic Messages API: requests, answers, server-sent events, errors.
//!
//! | module | contents |
//! | --- | --- |
//! | `route` | routes |
//! | [`request`] | messages and the count of their tokens: bodies in, requests for generated text out |
//! | `answer` | whole answers |
//! | `encoder` | streamed answers |
//! | `error` | errors |
//! | `operations` | schemas of all types, for the OpenAPI document |
#![forbid(unsafe_code)]

mod answer;
mod encoder;
mod error;
mod operations;
pub mod request;
mod route;

use hyper::header::HeaderName;

pub use answer::{Message, TokenCount, token_count_answer};
pub use encoder::AnthropicEncoder;
pub use error::{ErrorBody, error_response};
pub use operations::API;
pub use request::{count_request, message_request};
pub use route::{Route, route};

/// Header with the id of a request, which clients of this API read.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Identity of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerHead {
    /// Unique text of letters and digits, which the id of the answer is made of.
    pub id: String,
    /// Model, by the name that the client sent.
    pub model: String,
}

#[cfg(test)]
mod tests;
