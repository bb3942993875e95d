//! `/v1/rerank`, and ranking over the run API: relevance of documents.

use super::call::{Call, ModelInput, bytes_of};
use super::{ApiRequest, openai_head};
use crate::answer::{AnswerBody, Document, Used};
use crate::generation::tokens_of;
use bytes::Bytes;
use hyper::Response;
use omni_body::BodyPermit;
use omni_config::manifest::Kind;
use omni_engine_protocol::frame::RequestKind;
use omni_engine_protocol::task::{RerankAnswer, RerankInput};
use omni_ingress::body::IncomingBody;
use omni_openai::{rerank_answer, rerank_request};
use omni_request_error::Failure;

impl ApiRequest<'_> {
    pub(super) async fn rerank(&self, incoming: &mut IncomingBody) -> Result<Response<AnswerBody>, Failure> {
        let (body, permit) = self.receive_json(incoming).await?;
        let request = rerank_request(&body)?;
        let name = request.model.clone();
        let rank = async |call: Call<'_>| {
            let head = openai_head(call.caller.id, &request.model);
            let input = input(&request.query, &request.documents, request.top_n);
            let input = ModelInput::json(RequestKind::Rerank, input, (permit, bytes_of(&request.documents)))?;
            let render = |answer: &[u8]| {
                let RerankAnswer { scores, usage } = scores(answer, request.documents.len())?;
                let estimate = estimate(&request.query, &request.documents);
                let said = usage.map(|usage| usage.prompt_tokens);
                let document = Document::json(rerank_answer(&head, &request, &scores, said.unwrap_or(estimate)));
                Ok(document.with_usage(Used::input_tokens(said, estimate)))
            };
            call.document(input.with_session(request.session.clone()), render).await
        };
        self.with_call(&name, Kind::Rerank, body, rank).await
    }
}

/// Serves a request over the run API.
pub(crate) async fn native_rerank(
    call: Call<'_>,
    body: &Bytes,
    permit: Option<BodyPermit>,
) -> Result<Response<AnswerBody>, Failure> {
    let request = omni_workers_ai::rerank_request(body)?;
    let input = input(&request.query, &request.documents, request.top_k);
    let input = ModelInput::json(RequestKind::Rerank, input, (permit, bytes_of(&request.documents)))?;
    let render = |answer: &[u8]| {
        let answer = scores(answer, request.documents.len())?;
        let said = answer.usage.map(|usage| usage.prompt_tokens);
        let used = Used::input_tokens(said, estimate(&request.query, &request.documents));
        Ok(Document::json(omni_workers_ai::rerank_answer(&request, &answer.scores)).with_usage(used))
    };
    call.document(input, render).await
}

fn input(query: &str, documents: &[String], top_n: usize) -> RerankInput {
    let top_n = Some(u32::try_from(top_n.min(documents.len())).unwrap_or(u32::MAX));
    RerankInput { query: query.to_owned(), documents: documents.to_vec(), top_n }
}

/// Reads a model's answer for so many documents.
fn scores(answer: &[u8], asked: usize) -> Result<RerankAnswer, Failure> {
    let answer: RerankAnswer =
        serde_json::from_slice(answer).map_err(|_| Failure::AnswerNotSendable("it is no list of scores".to_owned()))?;
    match answer.scores.len() {
        given if given == asked => Ok(answer),
        given => Err(Failure::AnswerNotSendable(format!("it has {given} scores for {asked} documents"))),
    }
}

fn estimate(query: &str, documents: &[String]) -> u64 {
    documents.iter().map(|text| tokens_of(text)).sum::<u64>() + tokens_of(query)
}
