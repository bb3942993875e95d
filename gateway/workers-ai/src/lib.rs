//! Workers AI API: its routes, its rendering of values, streams and failures, and its forms of all kinds of requests.

#![forbid(unsafe_code)]

mod embedding;
mod envelope;
mod error;
mod events;
mod image;
mod media;
mod operations;
mod queue;
mod rerank;
mod routes;
mod speech;
mod text;
mod transcription;

pub use embedding::{embedding_answer, embedding_texts};
pub use envelope::{Envelope, envelope};
pub use error::{code_of_handler, code_of_item, error_response};
pub use events::StreamEncoder;
pub use image::{ImageRequest, image_request};
pub use media::{accepts_images, accepts_json_alone, audio_answer, decode_file, image_answer};
pub use operations::API;
pub use queue::{
    QueueAnswer, QueueAnswers, QueueRequest, QueueUsage, Queued, asks_for_queue, no_queue, not_json, polled_id,
    queue_answer, queue_request, without_reference,
};
pub use rerank::{RerankRequest, rerank_answer, rerank_request};
pub use routes::model_of;
pub use speech::{SpeechRequest, speech_request};
pub use text::{NativeEncoder, TextAnswer, TextRequest, text_request};
pub use transcription::{TranscriptionRequest, transcription_answer, transcription_request};

#[cfg(test)]
#[path = "../../codec/tests/scenarios/mod.rs"]
mod scenarios;
