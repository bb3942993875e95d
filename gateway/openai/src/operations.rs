//! Operations of the API, for the OpenAPI document.

use crate::audio::{Transcription, TranscriptionRequest};
use crate::chat::{ChatCompletion, ChatRequest};
use crate::completion::{CompletionRequest, TextCompletion};
use crate::responses::{Response, ResponsesRequest};
use crate::{EmbeddingList, ImageList, Model, ModelList, RerankAnswer};
use omni_codec::openapi::{AnswerMedia, Operations};

/// Adds the operations of this API.
pub fn add_operations(operations: &mut Operations) {
    use AnswerMedia::{Json, JsonOrEvents};
    operations.get::<ModelList>("/v1/models", "List of models");
    operations.get::<Model>("/v1/models/{model}", "One model");
    operations.post::<ChatRequest, ChatCompletion<'static>>("/v1/chat/completions", "Chat completion", JsonOrEvents);
    operations.post::<CompletionRequest, TextCompletion<'static>>(
        "/v1/completions",
        "Completion of a text",
        JsonOrEvents,
    );
    operations.post::<ResponsesRequest, Response<'static>>("/v1/responses", "Response", JsonOrEvents);
    operations.post::<crate::embedding::EmbeddingBody, EmbeddingList<'static>>("/v1/embeddings", "Embeddings", Json);
    operations.post::<crate::rerank::RerankBody, RerankAnswer<'static>>("/v1/rerank", "Ranking of documents", Json);
    operations.post::<crate::image::ImageBody, ImageList<'static>>("/v1/images/generations", "Images for a text", Json);
    operations.post_for_bytes::<crate::audio::SpeechBody>("/v1/audio/speech", "Sound of a text");
    for (path, summary) in
        [("/v1/audio/transcriptions", "Text of a recording"), ("/v1/audio/translations", "English text of a recording")]
    {
        operations.post_form::<TranscriptionRequest, Transcription<'static>>(path, summary);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_of_all_types() {
        let mut operations = Operations::default();
        add_operations(&mut operations);
        assert_eq!(operations.conflicts(), Vec::<String>::new());
        insta::assert_json_snapshot!(operations.document("OpenAI API", "1"));
    }
}
