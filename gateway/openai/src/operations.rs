//! Operations of the API, for the OpenAPI document.

use crate::audio::{SpeechBody, Transcription, TranscriptionRequest};
use crate::batch::{BatchBody, BatchList, BatchObject, FileDeleted, FileList, FileObject, PAGE, UploadForm};
use crate::chat::{ChatCompletion, ChatRequest};
use crate::completion::{CompletionRequest, TextCompletion};
use crate::embedding::EmbeddingBody;
use crate::image::ImageBody;
use crate::rerank::RerankBody;
use crate::responses::{Response, ResponsesRequest};
use crate::{EmbeddingList, ErrorBody, ImageList, Model, ModelList, RerankAnswer};
use omni_codec::openapi::{Api, Content, Operation, V1};

/// Operations of this API.
pub const API: Api =
    Api { name: "OpenAI API", servers: V1, failure: &[Content::json::<ErrorBody>()], operations: OPERATIONS };

const OPERATIONS: &[Operation] = &[
    Operation::get("/models", "List of models", &[Content::json::<ModelList>()]),
    Operation::get("/models/{model}", "One model", &[Content::json::<Model>()]),
    Operation::post(
        "/chat/completions",
        "Chat completion",
        &[Content::json::<ChatRequest>()],
        &[Content::json::<ChatCompletion>(), Content::EVENTS],
    ),
    Operation::post(
        "/completions",
        "Completion of a text",
        &[Content::json::<CompletionRequest>()],
        &[Content::json::<TextCompletion>(), Content::EVENTS],
    ),
    Operation::post(
        "/responses",
        "Response",
        &[Content::json::<ResponsesRequest>()],
        &[Content::json::<Response>(), Content::EVENTS],
    ),
    Operation::post(
        "/embeddings",
        "Embeddings",
        &[Content::json::<EmbeddingBody>()],
        &[Content::json::<EmbeddingList>()],
    ),
    Operation::post(
        "/rerank",
        "Ranking of documents",
        &[Content::json::<RerankBody>()],
        &[Content::json::<RerankAnswer>()],
    ),
    Operation::post(
        "/images/generations",
        "Images for a text",
        &[Content::json::<ImageBody>()],
        &[Content::json::<ImageList>()],
    ),
    Operation::post("/audio/speech", "Sound of a text", &[Content::json::<SpeechBody>()], &[Content::BYTES]),
    Operation::post("/audio/transcriptions", "Text of a recording", RECORDING, TRANSCRIPTION),
    Operation::post("/audio/translations", "English text of a recording", RECORDING, TRANSCRIPTION),
    Operation::get("/files", "List of files", &[Content::json::<FileList>()]).with_query(PAGE),
    Operation::post("/files", "Upload of a file", &[Content::form_with_file::<UploadForm>()], FILE),
    Operation::get("/files/{file}", "One file", FILE),
    Operation::delete("/files/{file}", "Deletion of a file", &[Content::json::<FileDeleted>()]),
    Operation::get("/files/{file}/content", "Content of a file", &[Content::BYTES]),
    Operation::get("/batches", "List of batches", &[Content::json::<BatchList>()]).with_query(PAGE),
    Operation::post("/batches", "Batch of requests", &[Content::json::<BatchBody>()], BATCH),
    Operation::get("/batches/{batch}", "One batch", BATCH),
    Operation::post("/batches/{batch}/cancel", "Cancellation of a batch", &[], BATCH),
];

const FILE: &[Content] = &[Content::json::<FileObject>()];
const BATCH: &[Content] = &[Content::json::<BatchObject>()];
const RECORDING: &[Content] = &[Content::form_with_file::<TranscriptionRequest>()];
const TRANSCRIPTION: &[Content] = &[Content::json::<Transcription>(), Content::TEXT];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::{FIXED, Route, route};
    use omni_codec::openapi::Operations;
    use std::collections::BTreeSet;

    #[test]
    fn schemas_of_all_types() {
        let mut operations = Operations::new(V1);
        operations.add(&API);
        assert_eq!(operations.conflicts(), Vec::<String>::new());
        insta::assert_json_snapshot!(operations.document("OpenAI API", "1"));
    }

    #[test]
    fn every_route_has_an_operation() {
        let operations: BTreeSet<_> =
            OPERATIONS.iter().map(|operation| (operation.method(), operation.path())).collect();
        let fixed = FIXED.iter().map(|(method, path, _)| ((*method).to_owned(), *path));
        let named = [
            ("GET", "/models/{model}"),
            ("GET", "/files/{file}"),
            ("DELETE", "/files/{file}"),
            ("GET", "/files/{file}/content"),
            ("GET", "/batches/{batch}"),
            ("POST", "/batches/{batch}/cancel"),
        ];
        let routes = fixed.chain(named.map(|(method, path)| (method.to_owned(), path))).collect();
        assert_eq!(operations, routes);
        let model = route(&hyper::Method::GET, "/v1/models/m");
        assert!(matches!(model, Some(Ok(Route::Model(name))) if name.as_str() == "m"));
    }
}
