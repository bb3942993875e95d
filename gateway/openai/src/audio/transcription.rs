//! Requests for the text of a recording, and their answers. A request is a form with a file.

use crate::audio::captions::{srt, vtt};
use crate::audio::transcript::Transcript;
use bytes::Bytes;
use omni_codec::bounds;
use omni_codec::form::Form;
use omni_generation::{InvalidCode, InvalidRequest};
use schemars::JsonSchema;
use serde::Serialize;

/// Longest hint, in bytes.
const LONGEST_PROMPT: usize = 16 * 1024;
/// Fields of the API that cannot be honoured, each with its reason.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("chunking_strategy", "the model decides"),
    ("include", "log probabilities are not computed"),
    ("keywords", "send them in `prompt`"),
    ("known_speaker_names", "speakers are not told apart"),
    ("known_speaker_references", "speakers are not told apart"),
    ("languages", "send one as `language`"),
];

/// Form of a transcription's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub enum TranscriptionFormat {
    /// `{"text": …}`.
    #[default]
    Json,
    /// Plain text.
    Text,
    /// Captions in the SubRip form.
    Srt,
    /// Text, language, duration and segments.
    VerboseJson,
    /// Captions in the WebVTT form.
    Vtt,
}

/// A request for the text of a recording, without the file.
#[derive(Debug, Clone, PartialEq, JsonSchema)]
pub struct TranscriptionRequest {
    /// Model, by the name that the client sent.
    pub model: String,
    /// Language of the recording, such as `en`.
    pub language: Option<String>,
    /// Hint of words and style.
    pub prompt: Option<String>,
    /// Form of the answer.
    #[schemars(default)]
    pub response_format: TranscriptionFormat,
    /// Temperature of the sampling.
    pub temperature: Option<f32>,
    /// English text of a recording in another language.
    #[schemars(skip)]
    pub translate: bool,
}

/// A file with sound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AudioFile {
    /// Content.
    pub content: Bytes,
    /// Name of the file, as the client has it.
    pub name: Option<String>,
    /// Media type, as the client has it.
    pub media_type: Option<String>,
}

/// Reads a form with a file. `media_type`: that of the body; `translate`: the route is that of translations.
///
/// # Errors
/// A body that is no form, no file or more than one, and the errors of [`transcription_request`].
pub fn transcription_form(
    media_type: &str,
    body: &Bytes,
    translate: bool,
) -> Result<(TranscriptionRequest, AudioFile), InvalidRequest> {
    let form = Form::parse(media_type, body, &["file"])?;
    let request = transcription_request(form.fields.iter().map(|(name, value)| (name.as_str(), *value)), translate)?;
    let mut files = form.files.into_iter();
    let file = files.next().ok_or_else(|| InvalidRequest::missing("file"))?;
    if let Some(other) = [&file].into_iter().chain(&files.next()).find(|file| file.field != "file") {
        return Err(unknown(&other.field));
    }
    if file.content.is_empty() {
        return Err(InvalidRequest::new("file", "`file` is empty"));
    }
    let content = body.slice_ref(file.content);
    Ok((request, AudioFile { content, name: file.name, media_type: file.media_type }))
}

/// Reads the fields of a form, all but `file`. `translate`: the route is that of translations.
///
/// # Errors
/// A field that is missing, out of bounds, or cannot be honoured.
pub fn transcription_request<'a>(
    fields: impl IntoIterator<Item = (&'a str, &'a str)>,
    translate: bool,
) -> Result<TranscriptionRequest, InvalidRequest> {
    let mut request = TranscriptionRequest {
        model: String::new(),
        language: None,
        prompt: None,
        response_format: TranscriptionFormat::Json,
        temperature: None,
        translate,
    };
    let mut words = false;
    for (name, value) in fields {
        match name {
            "model" => value.clone_into(&mut request.model),
            "language" if !translate => {
                bounds::length(name, value, 64)?;
                request.language = Some(value.to_owned());
            }
            "prompt" => {
                bounds::length(name, value, LONGEST_PROMPT)?;
                request.prompt = Some(value.to_owned());
            }
            "response_format" => request.response_format = read_format(value)?,
            "temperature" => request.temperature = Some(read_temperature(value)?),
            "timestamp_granularities[]" | "timestamp_granularities" => match value {
                "segment" => {}
                "word" => words = true,
                _ => return Err(InvalidRequest::new(name, format!("`{name}` has to be `segment`"))),
            },
            "stream" if value == "false" => {}
            "stream" => {
                return Err(InvalidRequest::unsupported(name, "the text comes as a whole: leave `stream` out"));
            }
            "user" => {}
            _ => return Err(unknown(name)),
        }
    }
    if words {
        let message = "words have no timestamps here: ask for `segment`";
        return Err(InvalidRequest::unsupported("timestamp_granularities[]", message));
    }
    if request.model.is_empty() {
        return Err(InvalidRequest::missing("model"));
    }
    bounds::length("model", &request.model, 256)?;
    Ok(request)
}

fn unknown(name: &str) -> InvalidRequest {
    let base = name.strip_suffix("[]").unwrap_or(name);
    match UNSUPPORTED.iter().find(|(unsupported, _)| *unsupported == base) {
        Some((_, reason)) => InvalidRequest::unsupported(name, format!("`{name}` is not supported: {reason}")),
        None => {
            let name = name.get(..name.floor_char_boundary(64)).unwrap_or_default();
            InvalidRequest::new(name, format!("there is no parameter `{name}`: leave it out"))
                .with_code(InvalidCode::Unknown)
        }
    }
}

fn read_format(value: &str) -> Result<TranscriptionFormat, InvalidRequest> {
    match value {
        "json" => Ok(TranscriptionFormat::Json),
        "text" => Ok(TranscriptionFormat::Text),
        "srt" => Ok(TranscriptionFormat::Srt),
        "verbose_json" => Ok(TranscriptionFormat::VerboseJson),
        "vtt" => Ok(TranscriptionFormat::Vtt),
        _ => {
            let message = "`response_format` has to be `json`, `text`, `srt`, `verbose_json` or `vtt`";
            Err(InvalidRequest::new("response_format", message))
        }
    }
}

fn read_temperature(value: &str) -> Result<f32, InvalidRequest> {
    let number = value.parse().map_err(|_| {
        InvalidRequest::new("temperature", "`temperature` has to be a number").with_code(InvalidCode::Type)
    })?;
    bounds::within("temperature", Some(number), 0.0..=1.0)?;
    Ok(number)
}

/// Answer in JSON.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Transcription<'a> {
    /// Text.
    text: &'a str,
    /// The rest of a verbose answer.
    #[serde(flatten)]
    verbose: Option<Verbose<'a>>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Verbose<'a> {
    /// `transcribe` or `translate`.
    task: &'static str,
    /// Language.
    language: &'a str,
    /// Length of the recording, in seconds.
    duration: f64,
    /// Parts.
    segments: Vec<VerboseSegment<'a>>,
}

/// Part of a verbose answer. Figures that models here do not report are 0.
#[derive(Debug, Serialize, JsonSchema)]
struct VerboseSegment<'a> {
    id: usize,
    seek: u32,
    start: f64,
    end: f64,
    text: &'a str,
    tokens: [u32; 0],
    temperature: f32,
    avg_logprob: f32,
    compression_ratio: f32,
    no_speech_prob: f32,
}

/// The answer to a request: media type and body.
#[must_use]
pub fn transcription_answer(request: &TranscriptionRequest, transcript: &Transcript) -> (&'static str, Bytes) {
    let json = |verbose| {
        let answer = Transcription { text: &transcript.text, verbose };
        ("application/json", Bytes::from(serde_json::to_vec(&answer).unwrap_or_default()))
    };
    match request.response_format {
        TranscriptionFormat::Json => json(None),
        TranscriptionFormat::VerboseJson => json(Some(verbose(request, transcript))),
        TranscriptionFormat::Text => ("text/plain; charset=utf-8", Bytes::from(format!("{}\n", transcript.text))),
        TranscriptionFormat::Srt => ("application/x-subrip", Bytes::from(srt(transcript))),
        TranscriptionFormat::Vtt => ("text/vtt", Bytes::from(vtt(transcript))),
    }
}

fn verbose<'a>(request: &'a TranscriptionRequest, transcript: &'a Transcript) -> Verbose<'a> {
    let segments = transcript.segments.iter().enumerate().map(|(id, segment)| VerboseSegment {
        id,
        seek: 0,
        start: segment.start,
        end: segment.end,
        text: &segment.text,
        tokens: [],
        temperature: request.temperature.unwrap_or(0.0),
        avg_logprob: 0.0,
        compression_ratio: 0.0,
        no_speech_prob: 0.0,
    });
    let language = transcript.language.as_deref().or(request.language.as_deref());
    let end = transcript.segments.last().map_or(0.0, |segment| segment.end);
    Verbose {
        task: if request.translate { "translate" } else { "transcribe" },
        language: language.unwrap_or("unknown"),
        duration: transcript.duration.unwrap_or(end),
        segments: segments.collect(),
    }
}
