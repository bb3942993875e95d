//! Relevance of documents in the native form of the Workers AI API: `{"query", "contexts": [{"text"}], "top_k"}`, answered with
//! `{"response": [{"id", "score"}]}`.

use crate::envelope::enveloped;
use bytes::Bytes;
use omni_codec::{body, bounds};
use omni_generation::InvalidRequest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most documents of a request.
const MOST_DOCUMENTS: usize = 4096;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NativeRerankRequest")]
pub(crate) struct RerankBody {
    query: String,
    contexts: Vec<Context>,
    top_k: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NativeRerankContext")]
struct Context {
    text: String,
}

/// A request to rank documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RerankRequest {
    /// Question.
    pub query: String,
    /// Documents, at least one.
    pub documents: Vec<String>,
    /// Number of results.
    pub top_k: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "NativeRanking")]
pub(crate) struct RerankAnswer {
    /// The best first.
    response: Vec<RerankResult>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "NativeRankingResult")]
struct RerankResult {
    /// Number of the document in the request.
    id: usize,
    /// Relevance.
    score: f64,
}

/// Reads the body of a request.
///
/// # Errors
/// A body that is not of the form.
pub fn rerank_request(json: &[u8]) -> Result<RerankRequest, InvalidRequest> {
    let body: RerankBody = body::parse(json, &[])?;
    bounds::length("query", &body.query, usize::MAX)?;
    bounds::count("contexts", body.contexts.len(), 1..=MOST_DOCUMENTS)?;
    let top_k = bounds::within("top_k", body.top_k, 1..=u32::MAX)?;
    let documents: Vec<String> = body.contexts.into_iter().map(|context| context.text).collect();
    let top_k = top_k.map_or(documents.len(), |top_k| top_k as usize);
    Ok(RerankRequest { query: body.query, documents, top_k })
}

/// The answer to a request. `scores`: one for each document.
#[must_use]
pub fn rerank_answer(request: &RerankRequest, scores: &[f64]) -> Bytes {
    let ranked = omni_openai::ranked(scores).into_iter().take(request.top_k);
    enveloped(&RerankAnswer { response: ranked.map(|(id, score)| RerankResult { id, score }).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_contexts_come_first() {
        let body = r#"{"query": "q", "contexts": [{"text": "a"}, {"text": "b"}, {"text": "c"}], "top_k": 2}"#;
        let request = rerank_request(body.as_bytes()).unwrap();
        assert_eq!(request.documents, ["a", "b", "c"]);
        let expected = r#"{"result":{"response":[{"id":2,"score":0.75},{"id":0,"score":0.5}]},"success":true,"errors":[],"messages":[]}"#;
        assert_eq!(rerank_answer(&request, &[0.5, 0.25, 0.75]), expected);
    }

    #[test]
    fn refused_requests() {
        for (body, expected) in [
            (r#"{"query": "q", "contexts": []}"#, "`contexts` is empty"),
            (r#"{"query": "", "contexts": [{"text": "a"}]}"#, "`query` is empty"),
            (r#"{"contexts": [{"text": "a"}]}"#, "`query` is missing"),
            (r#"{"query": "q", "contexts": ["a"]}"#, "`contexts[0]`"),
            (r#"{"query": "q", "contexts": [{"text": "a"}], "top_k": 0}"#, "`top_k` is 0: it has to be from 1"),
            (r#"{"query": "q", "documents": ["a"]}"#, "there is no parameter `documents`"),
        ] {
            let message = rerank_request(body.as_bytes()).unwrap_err().message;
            assert!(message.contains(expected), "{message}");
        }
    }
}
