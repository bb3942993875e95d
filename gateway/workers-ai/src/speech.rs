//! Sound of a text in the native form of the Workers AI API: `{"prompt": …}` or `{"text": …}`.

use omni_codec::body::{self, Unsupported};
use omni_codec::bounds;
use omni_generation::InvalidRequest;
use omni_openai::audio::SpeechFormat;
use schemars::JsonSchema;
use serde::Deserialize;

/// Longest text, in bytes.
const LONGEST_INPUT: usize = 64 * 1024;

const UNSUPPORTED: Unsupported =
    &[("bit_rate", "the model decides"), ("container", "the model decides"), ("sample_rate", "the model decides")];

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NativeSpeechRequest")]
pub(crate) struct SpeechBody {
    prompt: Option<String>,
    text: Option<String>,
    lang: Option<String>,
    speaker: Option<String>,
    voice: Option<String>,
    speed: Option<f32>,
    encoding: Option<SpeechFormat>,
}

/// A request for the sound of a text.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeechRequest {
    /// Text.
    pub text: String,
    /// Language, such as `en`.
    pub language: Option<String>,
    /// Voice; `None`: the model's own.
    pub voice: Option<String>,
    /// Format of the file; `None`: the model's own.
    pub format: Option<SpeechFormat>,
    /// Speed; 1 is natural.
    pub speed: Option<f32>,
}

/// Reads the body of a request.
///
/// # Errors
/// A body that is not of the form, or a parameter that cannot be honoured.
pub fn speech_request(json: &[u8]) -> Result<SpeechRequest, InvalidRequest> {
    let body: SpeechBody = body::parse(json, UNSUPPORTED)?;
    let (name, text) = match (body.prompt, body.text) {
        (Some(prompt), None) => ("prompt", prompt),
        (None, Some(text)) => ("text", text),
        (None, None) => return Err(InvalidRequest::missing("prompt")),
        (Some(_), Some(_)) => return Err(InvalidRequest::new("text", "`prompt` and `text` exclude each other")),
    };
    bounds::length(name, &text, LONGEST_INPUT)?;
    let (name, voice) = match (body.speaker, body.voice) {
        (Some(_), Some(_)) => return Err(InvalidRequest::new("voice", "`speaker` and `voice` exclude each other")),
        (None, voice) => ("voice", voice),
        (speaker, None) => ("speaker", speaker),
    };
    for (name, text) in [("lang", &body.lang), (name, &voice)] {
        text.as_deref().map_or(Ok(()), |text| bounds::length(name, text, 256))?;
    }
    let speed = bounds::within("speed", body.speed, 0.25..=4.0)?;
    Ok(SpeechRequest { text, language: body.lang, voice, format: body.encoding, speed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_in_both_forms() {
        let read = |body: &str| speech_request(body.as_bytes()).unwrap();
        let request = read(r#"{"prompt": "moo", "lang": "en"}"#);
        assert_eq!((request.text.as_str(), request.language.as_deref()), ("moo", Some("en")));
        let request = read(r#"{"text": "moo", "speaker": "angus", "encoding": "flac"}"#);
        assert_eq!((request.voice.as_deref(), request.format), (Some("angus"), Some(SpeechFormat::Flac)));
        let request = read(r#"{"text": "moo", "voice": "ann", "speed": 1.5}"#);
        assert_eq!((request.voice.as_deref(), request.speed), (Some("ann"), Some(1.5)));
    }

    #[test]
    fn refused_requests() {
        for (body, expected) in [
            ("{}", "`prompt` is missing"),
            (r#"{"prompt": ""}"#, "`prompt` is empty"),
            (r#"{"prompt": "a", "text": "b"}"#, "`prompt` and `text` exclude each other"),
            (r#"{"text": "a", "speaker": "b", "voice": "c"}"#, "`speaker` and `voice` exclude each other"),
            (r#"{"text": "a", "speed": 5}"#, "`speed` is 5: it has to be from 0.25 to 4"),
            (r#"{"text": "a", "encoding": "mulaw"}"#, "`encoding`: unknown variant `mulaw`"),
            (r#"{"text": "a", "sample_rate": 8000}"#, "`sample_rate` is not supported: the model decides"),
        ] {
            let message = speech_request(body.as_bytes()).unwrap_err().message;
            assert!(message.contains(expected), "{message}");
        }
    }
}
