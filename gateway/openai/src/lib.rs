//! OpenAI API: routes, requests, answers, server-sent events, errors.
//!
//! | module | contents |
//! | --- | --- |
//! | `route` | routes |
//! | [`chat`] | chat completions |
//! | [`completion`] | completions of texts |
//! | [`responses`] | responses |
//! | [`batch`] | files and batches |
//! | [`audio`], `image` | transcriptions, speech, images |
//! | `embedding`, `rerank` | vectors of texts, and ranking of documents |
//! | `input` | texts or token ids |
//! | `error` | errors |
//! | `model` | models |
//! | `head` | fields that all answers have |
//! | `operations` | schemas of all types, for the OpenAPI document |
//! | `harmless` | parameters that change nothing here |
#![forbid(unsafe_code)]

pub mod audio;
pub mod batch;
pub mod chat;
pub mod completion;
mod embedding;
mod error;
mod harmless;
mod head;
mod image;
mod input;
mod model;
mod operations;
mod rerank;
pub mod responses;
mod route;

pub use chat::{ChatEncoder, chat_request};
pub use completion::{CompletionEncoder, completion_request};
pub use embedding::{EmbeddingList, EmbeddingRequest, EncodingFormat, embedding_answer, embedding_request};
pub use error::{ErrorBody, error_response};
pub use head::{AnswerHead, Usage};
pub use image::{ImageList, ImageRequest, image_answer, image_request};
pub use input::{Input, Inputs};
pub use model::{Model, ModelList, model_answer, model_list_answer};
pub use operations::API;
pub use rerank::{RerankAnswer, RerankRequest, ranked, rerank_answer, rerank_request};
pub use responses::{ResponseEcho, ResponsesEncoder, responses_request};
pub use route::{JobsRoute, Route, route};

#[cfg(test)]
#[path = "../../codec/tests/scenarios/mod.rs"]
mod scenarios;
