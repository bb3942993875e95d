//! Operations of the API, for the OpenAPI document.

use crate::embedding::{EmbeddingAnswer, EmbeddingBody};
use crate::image::ImageBody;
use crate::media::{Picture, Sound};
use crate::queue::{QueueAnswers, QueueBody, Queued};
use crate::rerank::{RerankAnswer, RerankBody};
use crate::speech::SpeechBody;
use crate::text::{TextAnswer, TextRequest};
use crate::transcription::{TranscriptionAnswer, TranscriptionBody};
use omni_codec::openapi::{ACCOUNT, Api, Content, NODE, Operation, Parameter, Server, schema_of};
use schemars::JsonSchema;
use serde_json::Value;

const SERVERS: &[Server] = &[
    Server { url: "{node}/ai", description: "Data listener of a node", variables: &[NODE] },
    Server {
        url: "{node}/client/v4/accounts/{account}/ai",
        description: "The same for clients of the Workers AI API",
        variables: &[NODE, ACCOUNT],
    },
];

/// Operations of this API.
pub const API: Api = Api {
    name: "Workers AI API",
    servers: SERVERS,
    failure: &[Content::json::<Enveloped<Value>>()],
    operations: OPERATIONS,
};

const OPERATIONS: &[Operation] = &[Operation::post(
    "/run/{model}",
    "Request to a model",
    &[Content::json::<RunRequest>(), Content::BYTES],
    &[Content::json::<Enveloped<RunResult>>(), Content::EVENTS, Content::BYTES],
)
.with_query(QUEUE)];

const QUEUE: &[Parameter] = &[Parameter {
    name: "queueRequest",
    description: "True: the body has requests to be queued, or the identifier of such",
    schema: schema_of::<bool>,
}];

/// Request to a model, in the form of its kind.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "a schema")]
enum RunRequest {
    /// Generated text.
    Text(Box<TextRequest>),
    /// Embeddings.
    Embeddings(EmbeddingBody),
    /// Relevance of documents.
    Ranking(RerankBody),
    /// Text of a recording.
    Transcription(TranscriptionBody),
    /// Sound of a text.
    Speech(SpeechBody),
    /// Image for a text.
    Image(ImageBody),
    /// Requests to be queued, or the question for their answers.
    Queue(QueueBody),
    /// Any value, for a model of no kind.
    Other(Value),
}

/// Answer in the form of the model's kind.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "a schema")]
enum RunResult {
    /// Generated text.
    Text(Box<TextAnswer<'static>>),
    /// Embeddings.
    Embeddings(EmbeddingAnswer<'static>),
    /// Relevance of documents.
    Ranking(RerankAnswer),
    /// Text of a recording.
    Transcription(TranscriptionAnswer<'static>),
    /// Sound of a text.
    Speech(Sound<'static>),
    /// Image for a text.
    Image(Picture<'static>),
    /// State of queued requests.
    Queued(Queued),
    /// Answers of queued requests.
    QueueAnswers(QueueAnswers<'static>),
    /// Any value, from a model of no kind.
    Other(Value),
}

/// A value in the envelope of this API.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "Enveloped{T}")]
#[expect(dead_code, reason = "a schema: envelopes are written around values")]
struct Enveloped<T> {
    /// Value; `null` if there is none.
    result: Option<T>,
    /// True without errors.
    success: bool,
    /// Errors.
    errors: Vec<EnvelopeError>,
    /// Empty.
    messages: Vec<Value>,
}

/// Error of a request.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "a schema: envelopes are written around values")]
struct EnvelopeError {
    /// Code of the Workers AI API.
    code: u32,
    /// Cause, and what to do about it.
    message: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_of;
    use omni_codec::openapi::Operations;

    #[test]
    fn schemas_of_all_types() {
        let mut operations = Operations::new(SERVERS);
        operations.add(&API);
        assert_eq!(operations.conflicts(), Vec::<String>::new());
        insta::assert_json_snapshot!(operations.document("Workers AI API", "1"));
    }

    #[test]
    fn the_only_route_has_an_operation() {
        let [operation] = OPERATIONS else { panic!("{} operations", OPERATIONS.len()) };
        assert_eq!((operation.method().as_str(), operation.path()), ("POST", "/run/{model}"));
        for prefix in ["/ai", "/client/v4/accounts/a/ai"] {
            assert_eq!(model_of(&hyper::Method::POST, &format!("{prefix}/run/m")).unwrap().as_str(), "m");
        }
    }
}
