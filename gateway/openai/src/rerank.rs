//! Ranking of documents: `/v1/rerank`, in the form that Jina and Cohere have made common.

use crate::head::AnswerHead;
use bytes::Bytes;
use omni_codec::body::{self, Unsupported};
use omni_codec::{TextOr, bounds, sampling};
use omni_generation::InvalidRequest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most documents.
const MOST_DOCUMENTS: usize = 4096;

const UNSUPPORTED: Unsupported = &[
    ("max_chunks_per_doc", "documents are never cut"),
    ("max_tokens_per_doc", "documents are never cut"),
    ("rank_fields", "send texts"),
    ("truncate_prompt_tokens", "documents are never cut"),
];

/// Body of a request.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RerankBody {
    /// Model.
    model: String,
    /// Question.
    query: String,
    /// Documents.
    documents: Vec<TextOr<Document>>,
    /// Number of results, the best first; all if absent.
    #[schemars(range(min = 1))]
    top_n: Option<u32>,
    /// Documents in the results; `true` if absent.
    return_documents: Option<bool>,
    /// Session: requests of one session go to one instance of the model.
    user: Option<String>,
}

/// A document.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Document {
    /// Text.
    text: String,
}

/// A request to rank documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RerankRequest {
    /// Model, by the name that the client sent.
    pub model: String,
    /// Question.
    pub query: String,
    /// Documents, at least one.
    pub documents: Vec<String>,
    /// Number of results.
    pub top_n: usize,
    /// Documents in the results.
    pub return_documents: bool,
    /// Name of a session, whose requests go to one instance.
    pub session: Option<String>,
}

/// Reads the body of a request.
///
/// # Errors
/// A body that is not of the form, or a parameter that cannot be honoured.
pub fn rerank_request(json: &[u8]) -> Result<RerankRequest, InvalidRequest> {
    let body: RerankBody = body::parse(json, UNSUPPORTED)?;
    bounds::length("model", &body.model, 256)?;
    bounds::length("query", &body.query, usize::MAX)?;
    bounds::count("documents", body.documents.len(), 1..=MOST_DOCUMENTS)?;
    let top_n = bounds::within("top_n", body.top_n, 1..=u32::MAX)?;
    let documents = body.documents.into_iter().map(|document| match document {
        TextOr::Text(text) => text,
        TextOr::Other(document) => document.text,
    });
    let documents: Vec<String> = documents.collect();
    Ok(RerankRequest {
        model: body.model,
        query: body.query,
        top_n: top_n.map_or(documents.len(), |top_n| (top_n as usize).min(documents.len())),
        documents,
        return_documents: body.return_documents.unwrap_or(true),
        session: sampling::session([("user", body.user), ("user", None)])?,
    })
}

/// Answer with ranked documents.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RerankAnswer<'a> {
    /// Id.
    id: String,
    /// Model.
    model: &'a str,
    /// Results, the best first.
    results: Vec<RerankResult<'a>>,
    /// Tokens.
    usage: RerankUsage,
}

/// A ranked document.
#[derive(Debug, Serialize, JsonSchema)]
struct RerankResult<'a> {
    /// Number of the document in the request.
    index: usize,
    /// Relevance.
    relevance_score: f64,
    /// Document, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<ResultDocument<'a>>,
}

/// Document of a result.
#[derive(Debug, Serialize, JsonSchema)]
struct ResultDocument<'a> {
    /// Text.
    text: &'a str,
}

/// Tokens of the question and all documents.
#[derive(Debug, Serialize, JsonSchema)]
struct RerankUsage {
    /// Tokens.
    total_tokens: u64,
}

/// Numbers of documents with their scores, the best first, equal ones in their order; scores that are no numbers come last.
#[must_use]
pub fn ranked(scores: &[f64]) -> Vec<(usize, f64)> {
    let mut ranked: Vec<(usize, f64)> = scores.iter().copied().enumerate().collect();
    let key = |score: f64| if score.is_nan() { f64::NEG_INFINITY } else { score };
    ranked.sort_by(|(_, left), (_, right)| key(*right).total_cmp(&key(*left)));
    ranked
}

/// The answer to a request. `scores`: one for each document.
#[must_use]
pub fn rerank_answer(head: &AnswerHead, request: &RerankRequest, scores: &[f64], tokens: u64) -> Bytes {
    let results = ranked(scores).into_iter().take(request.top_n).map(|(index, relevance_score)| {
        let text = request.documents.get(index).filter(|_| request.return_documents);
        RerankResult { index, relevance_score, document: text.map(|text| ResultDocument { text }) }
    });
    let answer = RerankAnswer {
        id: format!("rerank-{}", head.id),
        model: &head.model,
        results: results.collect(),
        usage: RerankUsage { total_tokens: tokens },
    };
    Bytes::from(serde_json::to_vec(&answer).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = r#"{"model": "m", "query": "q", "documents": ["a", {"text": "b"}, "c"]"#;

    fn answer(parameters: &str, scores: &[f64]) -> String {
        let request = rerank_request(format!("{BODY}{parameters}}}").as_bytes()).unwrap();
        let head = AnswerHead { id: "1a".into(), created: 1, model: "m".into() };
        String::from_utf8(rerank_answer(&head, &request, scores, 9).to_vec()).unwrap()
    }

    #[test]
    fn the_best_come_first() {
        assert_eq!(
            answer(r#", "top_n": 2"#, &[0.5, 0.25, 0.75]),
            r#"{"id":"rerank-1a","model":"m","results":[{"index":2,"relevance_score":0.75,"document":{"text":"c"}},{"index":0,"relevance_score":0.5,"document":{"text":"a"}}],"usage":{"total_tokens":9}}"#
        );
        assert_eq!(
            answer(r#", "return_documents": false"#, &[f64::NAN, 0.5, 0.5]),
            r#"{"id":"rerank-1a","model":"m","results":[{"index":1,"relevance_score":0.5},{"index":2,"relevance_score":0.5},{"index":0,"relevance_score":null}],"usage":{"total_tokens":9}}"#
        );
    }

    #[test]
    fn refused_requests() {
        for (body, expected) in [
            (r#"{"model": "m", "query": "q", "documents": []}"#, "`documents` is empty"),
            (r#"{"model": "m", "query": "", "documents": ["a"]}"#, "`query` is empty"),
            (r#"{"model": "m", "documents": ["a"]}"#, "`query` is missing"),
            (
                r#"{"model": "m", "query": "q", "documents": ["a"], "top_n": 0}"#,
                "`top_n` is 0: it has to be from 1 to 4294967295",
            ),
            (
                r#"{"model": "m", "query": "q", "documents": ["a"], "rank_fields": []}"#,
                "`rank_fields` is not supported: send texts",
            ),
        ] {
            assert_eq!(rerank_request(body.as_bytes()).unwrap_err().message, expected);
        }
    }
}
