//! Text of a recording in the native form of the Workers AI API. A request is the file itself, or JSON with the file in `audio`.

use crate::envelope::enveloped;
use crate::media::decode_file;
use bytes::Bytes;
use omni_codec::body::{self, Unsupported};
use omni_codec::{TextOr, bounds};
use omni_generation::InvalidRequest;
use omni_openai::audio::{Transcript, vtt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest hint, in bytes.
const LONGEST_PROMPT: usize = 16 * 1024;

const UNSUPPORTED: Unsupported = &[
    ("beam_size", "the model decides"),
    ("compression_ratio_threshold", "the model decides"),
    ("condition_on_previous_text", "the model decides"),
    ("hallucination_silence_threshold", "the model decides"),
    ("log_prob_threshold", "the model decides"),
    ("no_speech_threshold", "the model decides"),
    ("prefix", "send it as `initial_prompt`"),
];

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NativeTranscriptionRequest")]
pub(crate) struct TranscriptionBody {
    audio: TextOr<Vec<u8>>,
    language: Option<String>,
    source_lang: Option<String>,
    target_lang: Option<String>,
    task: Option<Task>,
    initial_prompt: Option<String>,
    vad_filter: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "NativeTranscriptionTask")]
enum Task {
    Transcribe,
    Translate,
}

/// A request for the text of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TranscriptionRequest {
    /// File.
    pub audio: Bytes,
    /// Language of the recording, such as `en`.
    pub language: Option<String>,
    /// Hint of words and style.
    pub prompt: Option<String>,
    /// English text of a recording in another language.
    pub translate: bool,
}

/// Reads a body of JSON.
///
/// # Errors
/// A body that is not of the form, or a parameter that cannot be honoured.
pub fn transcription_request(json: &[u8]) -> Result<TranscriptionRequest, InvalidRequest> {
    let body: TranscriptionBody = body::parse(json, UNSUPPORTED)?;
    let audio = match body.audio {
        TextOr::Other(bytes) => bytes.into(),
        TextOr::Text(text) => {
            let message = "`audio` has to be base64, or an array of the file's bytes";
            decode_file(&text).ok_or_else(|| InvalidRequest::new("audio", message))?
        }
    };
    if audio.is_empty() {
        return Err(InvalidRequest::new("audio", "`audio` is empty"));
    }
    if body.vad_filter == Some(true) {
        return Err(InvalidRequest::unsupported("vad_filter", "the model decides: leave `vad_filter` out"));
    }
    if !matches!(body.target_lang.as_deref(), None | Some("en" | "english")) {
        return Err(InvalidRequest::unsupported("target_lang", "recordings are translated into `en` alone"));
    }
    let translate = body.task == Some(Task::Translate) || body.target_lang.is_some();
    let (name, language) = match (body.language, body.source_lang) {
        (Some(_), Some(_)) => {
            return Err(InvalidRequest::new("source_lang", "`language` and `source_lang` exclude each other"));
        }
        (None, language @ Some(_)) => ("source_lang", language),
        (language, None) => ("language", language),
    };
    for (name, text, most) in [(name, &language, 64), ("initial_prompt", &body.initial_prompt, LONGEST_PROMPT)] {
        text.as_deref().map_or(Ok(()), |text| bounds::length(name, text, most))?;
    }
    Ok(TranscriptionRequest { audio, language, prompt: body.initial_prompt, translate })
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "NativeTranscription")]
pub(crate) struct TranscriptionAnswer<'a> {
    text: &'a str,
    word_count: usize,
    vtt: String,
    transcription_info: Info<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    segments: Vec<AnswerSegment<'a>>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "NativeTranscriptionInfo")]
struct Info<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    language: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration: Option<f64>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "NativeTranscriptionSegment")]
struct AnswerSegment<'a> {
    start: f64,
    end: f64,
    text: &'a str,
    word_count: usize,
}

/// The answer with a transcript.
#[must_use]
pub fn transcription_answer(transcript: &Transcript) -> Bytes {
    let words = |text: &str| text.split_whitespace().count();
    let segments = transcript.segments.iter().map(|segment| AnswerSegment {
        start: segment.start,
        end: segment.end,
        text: &segment.text,
        word_count: words(&segment.text),
    });
    enveloped(&TranscriptionAnswer {
        text: &transcript.text,
        word_count: words(&transcript.text),
        vtt: vtt(transcript),
        transcription_info: Info { language: transcript.language.as_deref(), duration: transcript.duration },
        segments: segments.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_openai::audio::Segment;

    #[test]
    fn audio_is_an_array_of_bytes_or_base64() {
        let read = |body: &str| transcription_request(body.as_bytes()).unwrap();
        assert_eq!(read(r#"{"audio": [109, 111, 111]}"#).audio, "moo");
        let body =
            r#"{"audio": "bW9v", "language": "de", "task": "translate", "initial_prompt": "p", "vad_filter": false}"#;
        let (language, prompt) = (Some("de".into()), Some("p".into()));
        assert_eq!(read(body), TranscriptionRequest { audio: "moo".into(), language, prompt, translate: true });
    }

    #[test]
    fn languages_have_two_spellings() {
        let read = |parameters: &str| {
            let body = format!(r#"{{"audio": "bW9v", {parameters}}}"#);
            transcription_request(body.as_bytes()).map(|request| (request.language, request.translate))
        };
        assert_eq!(read(r#""source_lang": "de""#), Ok((Some("de".into()), false)));
        assert_eq!(read(r#""source_lang": "de", "target_lang": "en""#), Ok((Some("de".into()), true)));
        assert_eq!(read(r#""target_lang": "fr""#).unwrap_err().parameter.as_deref(), Some("target_lang"));
        assert!(read(r#""source_lang": "de", "language": "de""#).is_err());
    }

    #[test]
    fn refused_requests() {
        for (body, expected) in [
            ("{}", "`audio` is missing"),
            (r#"{"audio": []}"#, "`audio` is empty"),
            (r#"{"audio": [256]}"#, "`audio"),
            (r#"{"audio": "?"}"#, "`audio` has to be base64, or an array of the file's bytes"),
            (r#"{"audio": "bW9v", "vad_filter": true}"#, "the model decides: leave `vad_filter` out"),
            (r#"{"audio": "bW9v", "beam_size": 5}"#, "`beam_size` is not supported: the model decides"),
            (r#"{"audio": "bW9v", "task": "sing"}"#, "`task`: unknown variant `sing`"),
        ] {
            let message = transcription_request(body.as_bytes()).unwrap_err().message;
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn answers_have_text_captions_and_segments() {
        let segment = |start, end, text: &str| Segment { start, end, text: text.into() };
        let segments = vec![segment(0.0, 1.5, "Hi you."), segment(1.5, 2.0, " Bye.")];
        let whole =
            Transcript { text: "Hi you. Bye.".into(), language: Some("en".into()), duration: Some(2.0), segments };
        let bare = Transcript { text: "Hi".into(), ..Transcript::default() };
        let answers =
            [whole, bare].map(|transcript| String::from_utf8(transcription_answer(&transcript).to_vec()).unwrap());
        insta::assert_snapshot!(answers.join("\n"));
    }
}
