//! Bodies and answers of requests that the node has read, by their [`RequestKind`](crate::frame::RequestKind), all but text
//! generation ([`generation`](crate::generation)).
//!
//! | kind | body | answer |
//! | --- | --- | --- |
//! | embeddings | [`EmbeddingsInput`] | bytes of type [`EMBEDDINGS_TYPE`]: [`EmbeddingsAnswer`] |
//! | rerank | [`RerankInput`] | JSON [`RerankAnswer`] |
//! | speech-to-text | the audio file; [`TranscriptionParameters`] in the head | JSON [`Transcription`] |
//! | text-to-speech | [`SpeechInput`] | bytes with a media type, whole or streamed |
//! | text-to-image | [`ImageInput`] | JSON [`ImagesAnswer`], as bytes where it is longer than [`MAX_ANSWER`](crate::frame::MAX_ANSWER) |
//! | count-tokens | [`GenerationInput`](crate::generation::GenerationInput) | JSON [`TokenCount`]; status 501 from models that cannot count |

use crate::frame::{FrameError, split_head};
use crate::generation::UsageReport;
use serde::{Deserialize, Serialize};

/// Media type of embeddings.
pub const EMBEDDINGS_TYPE: &str = "application/vnd.omni.embeddings";
/// Most numbers of an answer with embeddings: what fits into 64 MiB.
pub const MAX_NUMBERS: usize = 16 * 1024 * 1024;

/// Body of a request for embeddings. Exactly one of `texts` and `tokens` is present.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EmbeddingsInput {
    /// Texts.
    pub texts: Option<Vec<String>>,
    /// Tokens of the model's own vocabulary, a list for each input.
    pub tokens: Option<Vec<Vec<u32>>>,
    /// Number of dimensions that the client asks for.
    pub dimensions: Option<u32>,
}

/// JSON in front of the numbers of embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EmbeddingsHeader {
    /// Number of embeddings; one for each input.
    pub count: usize,
    /// Numbers of each.
    pub dimensions: usize,
    /// Tokens, from models that count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageReport>,
}

/// Embeddings: `u32` length of the header, the header as JSON, then `count` times `dimensions` numbers `f32`; all
/// little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddingsAnswer<'a> {
    /// Counts.
    pub header: EmbeddingsHeader,
    /// Bytes of the numbers, one embedding after the other.
    pub numbers: &'a [u8],
}

impl<'a> EmbeddingsAnswer<'a> {
    /// Reads an answer, and checks the count of its numbers against its header.
    ///
    /// # Errors
    /// [`FrameError::Malformed`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let (head, numbers) = split_head(bytes)?;
        let header: EmbeddingsHeader =
            serde_json::from_slice(head).map_err(|_| FrameError::Malformed("embeddings have no header"))?;
        if header.count > 0 && header.dimensions == 0 {
            return Err(FrameError::Malformed("embeddings are empty"));
        }
        let expected = header.count.checked_mul(header.dimensions).filter(|numbers| *numbers <= MAX_NUMBERS);
        if expected.and_then(|numbers| numbers.checked_mul(size_of::<f32>())) != Some(numbers.len()) {
            return Err(FrameError::Malformed("embeddings are not as many as their header says"));
        }
        Ok(Self { header, numbers })
    }

    /// The numbers of one embedding.
    pub fn embedding(&self, at: usize) -> impl Iterator<Item = f32> + use<'a> {
        let size = self.header.dimensions * size_of::<f32>();
        let start = at.saturating_mul(size);
        let bytes = self.numbers.get(start..start.saturating_add(size)).unwrap_or_default();
        bytes.as_chunks::<4>().0.iter().map(|number| f32::from_le_bytes(*number))
    }
}

/// Body of a request for relevance.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RerankInput {
    /// Query.
    pub query: String,
    /// Documents.
    pub documents: Vec<String>,
    /// Number of documents that the client wants to have; the node chooses them.
    pub top_n: Option<u32>,
}

/// Relevance of documents.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RerankAnswer {
    /// A number for each document, in the order of the request; a larger one is more relevant.
    pub scores: Vec<f64>,
    /// Tokens, from models that count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageReport>,
}

/// Parameters of a transcription, beside the audio file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TranscriptionParameters {
    /// Language of the speech.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Text before the speech, or words that are in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Temperature of the sampling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// True: English text of a speech in another language.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub translate: bool,
    /// Name of the file, as the client has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filename: Option<String>,
    /// Media type of the file, as the client has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
}

/// Text of a speech.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Transcription {
    /// Text.
    pub text: String,
    /// Language, as the model names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Seconds of audio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<f64>,
    /// Parts, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<Segment>,
}

/// Part of a transcription.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Segment {
    /// Beginning, in seconds.
    pub start: f64,
    /// End, in seconds.
    pub end: f64,
    /// Text.
    pub text: String,
}

/// Body of a request for speech.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SpeechInput {
    /// Text.
    pub text: String,
    /// Voice, by the model's name for it.
    pub voice: Option<String>,
    /// Language, such as `en`.
    pub language: Option<String>,
    /// Format of the file, such as `mp3`.
    pub format: Option<String>,
    /// Speed; 1 is natural.
    pub speed: Option<f32>,
}

/// Body of a request for images.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ImageInput {
    /// Description.
    pub prompt: String,
    /// Description of what should not be there.
    pub negative_prompt: Option<String>,
    /// Number of images.
    pub n: u32,
    /// Width in pixels.
    pub width: Option<u32>,
    /// Height in pixels.
    pub height: Option<u32>,
    /// Seed of the random numbers.
    pub seed: Option<i64>,
    /// Steps of the diffusion.
    pub steps: Option<u32>,
    /// Strength with which the diffusion follows the description.
    pub guidance: Option<f32>,
}

/// Images.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ImagesAnswer {
    /// Images, as many as were asked for.
    pub images: Vec<Image>,
}

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Image {
    /// `image/png`, `image/jpeg` or another type that the model has named.
    pub media_type: String,
    /// The file in base64.
    pub data: String,
}

/// Number of tokens of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TokenCount {
    /// Tokens.
    pub tokens: u64,
}

#[cfg(test)]
mod tests;
