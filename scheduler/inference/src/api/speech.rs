//! `/v1/audio/speech`, and speech over the run API: sound of a text.

use super::ApiRequest;
use super::call::{Call, ModelInput};
use crate::answer::{AnswerBody, Document};
use bytes::Bytes;
use hyper::Response;
use omni_body::BodyPermit;
use omni_config::manifest::Kind;
use omni_engine_protocol::frame::RequestKind;
use omni_engine_protocol::task::SpeechInput;
use omni_ingress::body::IncomingBody;
use omni_openai::audio::{SpeechFormat, speech_request};
use omni_request_error::Failure;
use omni_workers_ai::{accepts_json_alone, audio_answer};

impl ApiRequest<'_> {
    pub(super) async fn speech(&self, incoming: &mut IncomingBody) -> Result<Response<AnswerBody>, Failure> {
        let (body, permit) = self.receive_json(incoming).await?;
        let request = speech_request(&body)?;
        let input = SpeechInput {
            text: request.input,
            voice: request.voice,
            language: None,
            format: Some(request.format.name().to_owned()),
            speed: Some(request.speed),
        };
        let input = ModelInput::json(RequestKind::TextToSpeech, input, (permit, 0))?;
        let speak = async |call: Call<'_>| call.file(input).await;
        self.with_call(&request.model, Kind::TextToSpeech, body, speak).await
    }
}

/// Serves a request over the run API.
pub(crate) async fn native_speech(
    call: Call<'_>,
    body: &Bytes,
    permit: Option<BodyPermit>,
) -> Result<Response<AnswerBody>, Failure> {
    let request = omni_workers_ai::speech_request(body)?;
    let input = SpeechInput {
        text: request.text,
        voice: request.voice,
        language: request.language,
        format: request.format.map(SpeechFormat::name).map(str::to_owned),
        speed: request.speed,
    };
    let input = ModelInput::json(RequestKind::TextToSpeech, input, (permit, 0))?;
    if accepts_json_alone(&call.caller.parts.headers) {
        return call.document(input, |file| Ok(Document::json(audio_answer(file)))).await;
    }
    call.file(input).await
}
