//! Embeddings: `/v1/embeddings`.

use crate::input::{Input, Inputs};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use omni_codec::body::{self, Unsupported};
use omni_codec::{bounds, sampling};
use omni_generation::InvalidRequest;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize, Serializer};
use std::borrow::Cow;

/// Most inputs: workers-ai-provider sends up to 3,000.
const MOST_INPUTS: usize = 4096;

const UNSUPPORTED: Unsupported = &[
    ("input_type", "put the model's prefix into the input"),
    ("normalize", "the model decides"),
    ("truncate_prompt_tokens", "inputs are never cut"),
];

/// Body of a request.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EmbeddingBody {
    /// Model.
    model: String,
    /// Texts or token ids.
    input: Inputs,
    /// Length of the vectors.
    #[schemars(range(min = 1, max = 65_536))]
    dimensions: Option<u32>,
    /// Form of the vectors; `float` if absent.
    encoding_format: Option<EncodingFormat>,
    /// Session: requests of one session go to one instance of the model.
    user: Option<String>,
}

/// Form of vectors in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EncodingFormat {
    /// Arrays of numbers.
    #[default]
    Float,
    /// Base64 of little-endian numbers of 32 bits.
    Base64,
}

/// A request for embeddings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddingRequest {
    /// Model, by the name that the client sent.
    pub model: String,
    /// Inputs, at least one; none is empty.
    pub inputs: Vec<Input>,
    /// Length of the vectors; `None`: the model's own.
    pub dimensions: Option<u32>,
    /// Form of the vectors.
    pub format: EncodingFormat,
    /// Name of a session, whose requests go to one instance.
    pub session: Option<String>,
}

/// Reads the body of a request.
///
/// # Errors
/// A body that is not of the form, or a parameter that cannot be honoured.
pub fn embedding_request(json: &[u8]) -> Result<EmbeddingRequest, InvalidRequest> {
    let body: EmbeddingBody = body::parse(json, UNSUPPORTED)?;
    bounds::length("model", &body.model, 256)?;
    let inputs = body.input.0;
    bounds::count("input", inputs.len(), 1..=MOST_INPUTS)?;
    let is_empty = |input: &Input| match input {
        Input::Text(text) => text.is_empty(),
        Input::Tokens(tokens) => tokens.is_empty(),
    };
    if let Some(index) = inputs.iter().position(is_empty) {
        let at = format!("input[{index}]");
        return Err(InvalidRequest::new(&at, format!("`{at}` is empty")));
    }
    Ok(EmbeddingRequest {
        model: body.model,
        inputs,
        dimensions: bounds::within("dimensions", body.dimensions, 1..=65_536)?,
        format: body.encoding_format.unwrap_or_default(),
        session: sampling::session([("user", body.user), ("user", None)])?,
    })
}

/// Answer with embeddings.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EmbeddingList<'a> {
    /// `list`.
    object: &'static str,
    /// Vectors, in the order of the inputs.
    data: Vec<Embedding<'a>>,
    /// Model.
    model: &'a str,
    /// Tokens.
    usage: EmbeddingUsage,
}

/// Vector of one input.
#[derive(Debug, Serialize, JsonSchema)]
struct Embedding<'a> {
    /// `embedding`.
    object: &'static str,
    /// Number of the input.
    index: usize,
    /// Vector.
    embedding: Vector<'a>,
}

#[derive(Debug)]
struct Vector<'a> {
    /// Little-endian numbers of 32 bits.
    numbers: &'a [u8],
    format: EncodingFormat,
}

/// Tokens of all inputs.
#[derive(Debug, Serialize, JsonSchema)]
struct EmbeddingUsage {
    /// Tokens.
    prompt_tokens: u64,
    /// Tokens.
    total_tokens: u64,
}

impl Serialize for Vector<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.format {
            EncodingFormat::Float => {
                serializer.collect_seq(self.numbers.as_chunks().0.iter().map(|number| f32::from_le_bytes(*number)))
            }
            EncodingFormat::Base64 => serializer.serialize_str(&BASE64_STANDARD.encode(self.numbers)),
        }
    }
}

impl JsonSchema for Vector<'_> {
    fn schema_name() -> Cow<'static, str> {
        "Vector".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "anyOf": [
                { "type": "array", "items": { "type": "number" } },
                { "type": "string", "contentEncoding": "base64" },
            ],
        })
    }
}

/// The answer to a request, with a vector for each of its inputs: `numbers` has them one after the other, each of `dimensions`
/// little-endian numbers of 32 bits.
#[must_use]
pub fn embedding_answer(request: &EmbeddingRequest, numbers: &[u8], dimensions: usize, prompt_tokens: u64) -> Bytes {
    let vectors = numbers.chunks_exact(dimensions.saturating_mul(size_of::<f32>()).max(1));
    let data = vectors.enumerate().map(|(index, numbers)| Embedding {
        object: "embedding",
        index,
        embedding: Vector { numbers, format: request.format },
    });
    let list = EmbeddingList {
        object: "list",
        data: data.collect(),
        model: &request.model,
        usage: EmbeddingUsage { prompt_tokens, total_tokens: prompt_tokens },
    };
    Bytes::from(serde_json::to_vec(&list).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_texts_or_tokens() {
        let read = |body: &str| embedding_request(body.as_bytes()).unwrap();
        let request =
            read(r#"{"model": "m", "input": "hi", "encoding_format": "base64", "dimensions": 2, "user": "u"}"#);
        assert_eq!((request.format, request.dimensions), (EncodingFormat::Base64, Some(2)));
        assert_eq!((request.inputs, request.session.as_deref()), (vec![Input::Text("hi".into())], Some("u")));
        let request = read(r#"{"model": "m", "input": [[1, 2], [3]]}"#);
        assert_eq!(request.inputs, [Input::Tokens(vec![1, 2]), Input::Tokens(vec![3])]);
        assert_eq!(request.format, EncodingFormat::Float);
    }

    #[test]
    fn refused_requests() {
        for (parameters, expected) in [
            (r#""input": []"#, "`input` is empty"),
            (r#""input": ["a", ""]"#, "`input[1]` is empty"),
            (r#""input": [[]]"#, "`input[0]` is empty"),
            (r#""input": 7"#, "`input` is 7: it has to be a string, an array of strings, or token ids"),
            (r#""input": ["a", [1]]"#, "`input`: an array has to have texts, token ids or arrays of token ids alone"),
            (r#""input": "a", "dimensions": 0"#, "`dimensions` is 0: it has to be from 1 to 65536"),
            (
                r#""input": "a", "encoding_format": "hex""#,
                "`encoding_format`: unknown variant `hex`, expected `float` or `base64`",
            ),
            (
                r#""input": "a", "input_type": "query""#,
                "`input_type` is not supported: put the model's prefix into the input",
            ),
        ] {
            let error = embedding_request(format!(r#"{{"model": "m", {parameters}}}"#).as_bytes()).unwrap_err();
            assert_eq!(error.message, expected);
        }
        let many = format!(r#"{{"model": "m", "input": [{}]}}"#, vec!["\"a\""; 4097].join(","));
        assert!(embedding_request(many.as_bytes()).unwrap_err().message.contains("there have to be 1 to 4096"));
    }

    #[test]
    fn vectors_are_numbers_or_base64() {
        let mut request = embedding_request(br#"{"model": "m", "input": ["a", "b"]}"#).unwrap();
        let vectors: Vec<u8> = [1.0, -0.5, 0.1, 3e-8_f32].iter().flat_map(|number| number.to_le_bytes()).collect();
        let numbers = embedding_answer(&request, &vectors, 2, 4);
        request.format = EncodingFormat::Base64;
        let base64 = embedding_answer(&request, &vectors, 2, 4);
        let text = [numbers, base64].map(|answer| String::from_utf8(answer.to_vec()).unwrap()).join("\n");
        insta::assert_snapshot!(text);
    }
}
