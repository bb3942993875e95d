//! `/v1/embeddings`, and embeddings over the run API: vectors of texts.

use super::ApiRequest;
use super::call::{Call, ModelInput};
use crate::answer::{AnswerBody, Document, Used};
use crate::generation::tokens_of;
use bytes::Bytes;
use hyper::Response;
use omni_body::BodyPermit;
use omni_config::manifest::Kind;
use omni_engine_protocol::frame::RequestKind;
use omni_engine_protocol::task::{EmbeddingsAnswer, EmbeddingsInput};
use omni_ingress::body::IncomingBody;
use omni_openai::{Input, embedding_answer, embedding_request};
use omni_request_error::Failure;

impl ApiRequest<'_> {
    pub(super) async fn embeddings(&self, incoming: &mut IncomingBody) -> Result<Response<AnswerBody>, Failure> {
        let (body, permit) = self.receive_json(incoming).await?;
        let mut request = embedding_request(&body)?;
        let name = request.model.clone();
        let embed = async |call: Call<'_>| {
            let inputs = std::mem::take(&mut request.inputs);
            let (count, estimate) = (inputs.len(), estimate(&inputs));
            let input = input(inputs, request.dimensions);
            let input = ModelInput::json(RequestKind::Embeddings, input, (permit, 0))?;
            let render = |answer: &[u8]| {
                let answer = vectors(answer, count)?;
                let said = answer.header.usage.map(|usage| usage.prompt_tokens);
                let (dimensions, tokens) = (answer.header.dimensions, said.unwrap_or(estimate));
                let document = Document::json(embedding_answer(&request, answer.numbers, dimensions, tokens));
                Ok(document.with_usage(Used::input_tokens(said, estimate)))
            };
            call.document(input.with_session(request.session.clone()), render).await
        };
        self.with_call(&name, Kind::Embeddings, body, embed).await
    }
}

/// Serves a request over the run API.
pub(crate) async fn native_embeddings(
    call: Call<'_>,
    body: &Bytes,
    permit: Option<BodyPermit>,
) -> Result<Response<AnswerBody>, Failure> {
    let texts = omni_workers_ai::embedding_texts(body)?;
    let (count, estimate) = (texts.len(), texts.iter().map(|text| tokens_of(text)).sum());
    let input = EmbeddingsInput { texts: Some(texts), ..EmbeddingsInput::default() };
    let input = ModelInput::json(RequestKind::Embeddings, input, (permit, 0))?;
    let render = |answer: &[u8]| {
        let answer = vectors(answer, count)?;
        let vectors: Vec<Vec<f32>> = (0..count).map(|at| answer.embedding(at).collect()).collect();
        let said = answer.header.usage.map(|usage| usage.prompt_tokens);
        Ok(Document::json(omni_workers_ai::embedding_answer(&vectors)).with_usage(Used::input_tokens(said, estimate)))
    };
    call.document(input, render).await
}

/// Reads a model's answer to so many inputs.
fn vectors(answer: &[u8], asked: usize) -> Result<EmbeddingsAnswer<'_>, Failure> {
    let answer = EmbeddingsAnswer::parse(answer).map_err(|error| Failure::AnswerNotSendable(error.to_string()))?;
    match answer.header.count {
        given if given == asked => Ok(answer),
        given => Err(Failure::AnswerNotSendable(format!("it has {given} embeddings for {asked} inputs"))),
    }
}

/// Inputs are all texts or all tokens.
fn input(inputs: Vec<Input>, dimensions: Option<u32>) -> EmbeddingsInput {
    let (mut texts, mut tokens) = (Vec::new(), Vec::new());
    for input in inputs {
        match input {
            Input::Text(text) => texts.push(text),
            Input::Tokens(ids) => tokens.push(ids),
        }
    }
    let texts = Some(texts).filter(|texts| !texts.is_empty());
    EmbeddingsInput { texts, tokens: Some(tokens).filter(|tokens| !tokens.is_empty()), dimensions }
}

fn estimate(inputs: &[Input]) -> u64 {
    let tokens = inputs.iter().map(|input| match input {
        Input::Text(text) => tokens_of(text),
        Input::Tokens(tokens) => tokens.len() as u64,
    });
    tokens.sum()
}
