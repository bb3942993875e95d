//! Embeddings in the native form of the Workers AI API: `{"text": …}`, answered with `{"shape": […], "data": […]}`.

use crate::envelope::enveloped;
use bytes::Bytes;
use omni_codec::{TextOr, body, bounds};
use omni_generation::InvalidRequest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most texts of a request.
const MOST_TEXTS: usize = 4096;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NativeEmbeddingRequest")]
pub(crate) struct EmbeddingBody {
    text: TextOr<Vec<String>>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "NativeEmbeddings")]
pub(crate) struct EmbeddingAnswer<'a> {
    shape: [usize; 2],
    data: &'a [Vec<f32>],
}

/// Reads the body of a request: the texts, at least one.
///
/// # Errors
/// A body that is not of the form.
pub fn embedding_texts(json: &[u8]) -> Result<Vec<String>, InvalidRequest> {
    let body: EmbeddingBody = body::parse(json, &[])?;
    let texts = body.text.into_vec();
    bounds::count("text", texts.len(), 1..=MOST_TEXTS)?;
    match texts.iter().position(String::is_empty) {
        Some(index) => Err(InvalidRequest::new(format!("text[{index}]"), format!("`text[{index}]` is empty"))),
        None => Ok(texts),
    }
}

/// The answer with the vectors of all texts, which have one length.
#[must_use]
pub fn embedding_answer(vectors: &[Vec<f32>]) -> Bytes {
    let shape = [vectors.len(), vectors.first().map_or(0, Vec::len)];
    enveloped(&EmbeddingAnswer { shape, data: vectors })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_one_or_several() {
        assert_eq!(embedding_texts(br#"{"text": "a"}"#).unwrap(), ["a"]);
        assert_eq!(embedding_texts(br#"{"text": ["a", "b"]}"#).unwrap(), ["a", "b"]);
        for bad in [r#"{"text": []}"#, r#"{"text": ["a", ""]}"#, r#"{"text": 1}"#, "{}", r#"{"text": "a", "pool": 1}"#]
        {
            assert!(embedding_texts(bad.as_bytes()).is_err(), "{bad}");
        }
        let error = embedding_texts(br#"{"text": null}"#).unwrap_err();
        assert!(error.message.starts_with("`text` is null: it has to be a string, an array"), "{error:?}");
    }

    #[test]
    fn vectors_come_with_their_shape() {
        let answer = embedding_answer(&[vec![1.0, -0.5], vec![0.0, 2.0]]);
        let expected =
            r#"{"result":{"shape":[2,2],"data":[[1.0,-0.5],[0.0,2.0]]},"success":true,"errors":[],"messages":[]}"#;
        assert_eq!(answer, expected);
    }
}
