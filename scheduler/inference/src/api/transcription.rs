//! `/v1/audio/transcriptions` and `/v1/audio/translations`, and transcription over the run API: text of a recording.

use super::ApiRequest;
use super::call::{Call, ModelInput, collected};
use crate::answer::{AnswerBody, Document, Used};
use hyper::Response;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use omni_body::{BodyKind, RequestBody};
use omni_config::manifest::Kind;
use omni_engine_protocol::frame::RequestKind;
use omni_engine_protocol::task::{Transcription, TranscriptionParameters};
use omni_ingress::body::{IncomingBody, ReceivedBody};
use omni_openai::audio::{Segment, Transcript, transcription_answer, transcription_form};
use omni_request_error::Failure;
use serde_json::{Map, Value};

impl ApiRequest<'_> {
    /// Serves a form with a recording. `translate`: the text is to be English.
    pub(super) async fn transcription(
        &self,
        incoming: &mut IncomingBody,
        translate: bool,
    ) -> Result<Response<AnswerBody>, Failure> {
        let (body, permit) = self.receive_whole(incoming).await?;
        let media_type = text_of(&self.parts.headers).unwrap_or_default();
        let (request, file) = transcription_form(media_type, &body, translate)?;
        let parameters = TranscriptionParameters {
            language: request.language.clone(),
            prompt: request.prompt.clone(),
            temperature: request.temperature,
            translate,
            filename: file.name,
            media_type: file.media_type,
        };
        let input = ModelInput::new(RequestKind::SpeechToText, collected(BodyKind::Bytes, file.content, Some(permit)));
        let input = input.with_parameters(map(&parameters));
        let transcribe = async |call: Call<'_>| {
            let render = |answer: &[u8]| {
                let transcript = transcript(answer)?;
                let (media_type, bytes) = transcription_answer(&request, &transcript);
                Ok(Document { media_type: HeaderValue::from_static(media_type), bytes, used: used(&transcript) })
            };
            call.document(input, render).await
        };
        self.with_call(&request.model, Kind::SpeechToText, body, transcribe).await
    }
}

/// Serves a request over the run API: JSON with a recording, or the recording itself, which may be on its way yet.
pub(crate) async fn native_transcription(
    mut call: Call<'_>,
    mut received: ReceivedBody,
) -> Result<Response<AnswerBody>, Failure> {
    let media_type = text_of(&call.caller.parts.headers);
    let json = match &received.body {
        RequestBody::Collected(BodyKind::Json, body) if media_type.is_some() || begins_as_object(body) => Some(body),
        RequestBody::Collected(..) | RequestBody::Streamed(_) => None,
    };
    let mut parameters = TranscriptionParameters::default();
    if let Some(json) = json {
        let request = omni_workers_ai::transcription_request(json)?;
        call.original = Some(json.clone());
        received.body = RequestBody::Collected(BodyKind::Bytes, request.audio);
        (parameters.language, parameters.prompt) = (request.language, request.prompt);
        parameters.translate = request.translate;
    } else {
        parameters.media_type = media_type.map(str::to_owned);
    }
    let input = ModelInput::new(RequestKind::SpeechToText, received).with_parameters(map(&parameters));
    let render = |answer: &[u8]| {
        let transcript = transcript(answer)?;
        Ok(Document::json(omni_workers_ai::transcription_answer(&transcript)).with_usage(used(&transcript)))
    };
    call.document(input, render).await
}

/// Seconds of a recording, where the model says them.
fn used(transcript: &Transcript) -> Used {
    Used { audio_seconds: transcript.duration.unwrap_or_default().max(0.0), ..Used::default() }
}

fn begins_as_object(body: &[u8]) -> bool {
    body.trim_ascii_start().starts_with(b"{")
}

fn text_of(headers: &HeaderMap) -> Option<&str> {
    headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok())
}

/// Parameters in the form of a request's head.
fn map(parameters: &TranscriptionParameters) -> Map<String, Value> {
    match serde_json::to_value(parameters) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(), // fields of a struct are always an object
    }
}

/// Reads a model's answer.
fn transcript(answer: &[u8]) -> Result<Transcript, Failure> {
    let Transcription { text, language, duration, segments } =
        serde_json::from_slice(answer).map_err(|_| Failure::AnswerNotSendable("it is no transcription".to_owned()))?;
    let segments = segments.into_iter().map(|segment| {
        let omni_engine_protocol::task::Segment { start, end, text } = segment;
        Segment { start, end, text }
    });
    Ok(Transcript { text, language, duration, segments: segments.collect() })
}
