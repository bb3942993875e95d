//! Requests for the sound of a text. The answer is the file, with the media type of its format.

use omni_codec::body::{self, Unsupported};
use omni_codec::{TextOr, bounds};
use omni_generation::InvalidRequest;
use schemars::JsonSchema;
use serde::Deserialize;

/// Longest text, in bytes. The API has 4,096 characters.
const LONGEST_INPUT: usize = 64 * 1024;

const UNSUPPORTED: Unsupported = &[("instructions", "describe the voice by `voice`")];

/// Body of a request.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SpeechBody {
    /// Model.
    model: String,
    /// Text.
    input: String,
    /// Voice, by the model's name for it.
    voice: Option<TextOr<StoredVoice>>,
    /// Format of the file; `mp3` if absent.
    response_format: Option<SpeechFormat>,
    /// Speed; 1 is natural.
    #[schemars(range(min = 0.25, max = 4.0))]
    speed: Option<f32>,
    /// Accepted if `audio`.
    stream_format: Option<String>,
}

/// Voice of the API's own store.
#[derive(Debug, Deserialize, JsonSchema)]
struct StoredVoice {
    /// Id.
    #[serde(rename = "id")]
    _id: String,
}

/// Format of a file with sound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SpeechFormat {
    /// MP3.
    #[default]
    Mp3,
    /// Opus in Ogg.
    Opus,
    /// AAC.
    Aac,
    /// FLAC.
    Flac,
    /// WAV.
    Wav,
    /// Samples of 16 bits, little-endian, 24 kHz, without a header.
    Pcm,
}

impl SpeechFormat {
    /// Name of the format.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mp3 => "mp3",
            Self::Opus => "opus",
            Self::Aac => "aac",
            Self::Flac => "flac",
            Self::Wav => "wav",
            Self::Pcm => "pcm",
        }
    }

    /// Media type of the file.
    #[must_use]
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Mp3 => "audio/mpeg",
            Self::Opus => "audio/ogg",
            Self::Aac => "audio/aac",
            Self::Flac => "audio/flac",
            Self::Wav => "audio/wav",
            Self::Pcm => "audio/pcm",
        }
    }
}

/// A request for the sound of a text.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeechRequest {
    /// Model, by the name that the client sent.
    pub model: String,
    /// Text.
    pub input: String,
    /// Voice; `None`: the model's own.
    pub voice: Option<String>,
    /// Format of the file.
    pub format: SpeechFormat,
    /// Speed; 1 is natural.
    pub speed: f32,
}

/// Reads the body of a request.
///
/// # Errors
/// A body that is not of the form, or a parameter that cannot be honoured.
pub fn speech_request(json: &[u8]) -> Result<SpeechRequest, InvalidRequest> {
    let body: SpeechBody = body::parse(json, UNSUPPORTED)?;
    bounds::length("model", &body.model, 256)?;
    bounds::length("input", &body.input, LONGEST_INPUT)?;
    if !matches!(body.stream_format.as_deref(), None | Some("audio")) {
        let message = "sound is sent as bytes: send `audio`, or leave `stream_format` out";
        return Err(InvalidRequest::unsupported("stream_format", message));
    }
    let voice = match body.voice {
        None => None,
        Some(TextOr::Text(voice)) => {
            bounds::length("voice", &voice, 256)?;
            Some(voice)
        }
        Some(TextOr::Other(_)) => {
            return Err(InvalidRequest::unsupported("voice", "voices are not stored: send the name of one"));
        }
    };
    Ok(SpeechRequest {
        model: body.model,
        input: body.input,
        voice,
        format: body.response_format.unwrap_or_default(),
        speed: bounds::within("speed", body.speed, 0.25..=4.0)?.unwrap_or(1.0),
    })
}
