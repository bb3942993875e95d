//! `/v1/images/generations`, and images over the run API.

use super::ApiRequest;
use super::call::{Call, ModelInput};
use crate::answer::{AnswerBody, Document, Used};
use bytes::Bytes;
use hyper::Response;
use hyper::header::HeaderValue;
use omni_body::BodyPermit;
use omni_config::manifest::Kind;
use omni_engine_protocol::frame::RequestKind;
use omni_engine_protocol::task::{Image, ImageInput, ImagesAnswer};
use omni_ingress::body::IncomingBody;
use omni_openai::{image_answer, image_request};
use omni_request_error::Failure;
use omni_supervisor::clock::unix_ms;
use omni_workers_ai::{accepts_images, decode_file};

impl ApiRequest<'_> {
    pub(super) async fn images(&self, incoming: &mut IncomingBody) -> Result<Response<AnswerBody>, Failure> {
        let (body, permit) = self.receive_json(incoming).await?;
        let request = image_request(&body)?;
        let input = ImageInput {
            prompt: request.prompt,
            negative_prompt: request.negative_prompt,
            n: request.n,
            width: request.size.map(|(width, _)| width),
            height: request.size.map(|(_, height)| height),
            seed: request.seed,
            steps: request.steps,
            guidance: None,
        };
        let input = ModelInput::json(RequestKind::TextToImage, input, (permit, 0))?;
        let draw = async |call: Call<'_>| {
            let render = |answer: &[u8]| {
                let images = images(answer, request.n as usize)?;
                let files = images.iter().map(|image| image.data.as_str());
                Ok(Document::json(image_answer(unix_ms() / 1000, files)).with_usage(used(images.len())))
            };
            call.document(input, render).await
        };
        self.with_call(&request.model, Kind::TextToImage, body, draw).await
    }
}

/// Serves a request over the run API, with the image's bytes if the client asks for them.
pub(crate) async fn native_images(
    call: Call<'_>,
    body: &Bytes,
    permit: Option<BodyPermit>,
) -> Result<Response<AnswerBody>, Failure> {
    let request = omni_workers_ai::image_request(body)?;
    let input = ImageInput {
        prompt: request.prompt,
        negative_prompt: request.negative_prompt,
        n: 1,
        width: request.width,
        height: request.height,
        seed: request.seed,
        steps: request.steps,
        guidance: request.guidance,
    };
    let input = ModelInput::json(RequestKind::TextToImage, input, (permit, 0))?;
    let as_bytes = accepts_images(&call.caller.parts.headers);
    let render = |answer: &[u8]| {
        let images = images(answer, 1)?;
        let not_an_image = || Failure::AnswerNotSendable("it is no image in base64".to_owned());
        let Image { media_type, data } = images.first().ok_or_else(not_an_image)?;
        if !as_bytes {
            return Ok(Document::json(omni_workers_ai::image_answer(data)).with_usage(used(1)));
        }
        let media_type = Some(media_type).filter(|media_type| media_type.starts_with("image/"));
        let media_type = media_type.and_then(|media_type| HeaderValue::from_str(media_type).ok());
        let bytes = decode_file(data).ok_or_else(not_an_image)?;
        Ok(Document { media_type: media_type.ok_or_else(not_an_image)?, bytes, used: used(1) })
    };
    call.document(input, render).await
}

fn used(images: usize) -> Used {
    Used { images: images as u64, ..Used::default() }
}

/// Reads a model's answer with so many images.
fn images(answer: &[u8], asked: usize) -> Result<Vec<Image>, Failure> {
    let ImagesAnswer { images } =
        serde_json::from_slice(answer).map_err(|_| Failure::AnswerNotSendable("it is no list of images".to_owned()))?;
    match images.len() {
        given if given == asked => Ok(images),
        given => Err(Failure::AnswerNotSendable(format!("it has {given} images, {asked} were asked for"))),
    }
}
