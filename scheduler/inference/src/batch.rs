//! Costs of requests as members of batches, in the units of `[batching] cost`.

use omni_body::RequestBody;
use omni_config::manifest::Cost;
use omni_engine_protocol::frame::{RequestHead, RequestKind};
use omni_engine_protocol::task::{EmbeddingsInput, RerankInput};
use omni_supervisor::model::content::Content;

/// Bytes of a body for one token of its text.
const TOKEN: u64 = 4;

/// Cost of a request, at least 1; `None`: it is handled alone.
pub(crate) fn batch_cost(content: &Content, head: &RequestHead, body: &RequestBody) -> Option<u64> {
    let batching = &content.manifest.batching;
    if batching.bounds().is_none() || head.kind == Some(RequestKind::CountTokens) {
        return None;
    }
    let cost = match (batching.cost, body) {
        (Cost::Requests, _) | (Cost::Inputs | Cost::Tokens, RequestBody::Streamed(_)) => 1,
        (Cost::Inputs, RequestBody::Collected(_, body)) => inputs(head.kind, body),
        (Cost::Tokens, RequestBody::Collected(_, body)) => (body.len() as u64).div_ceil(TOKEN),
    };
    Some(cost.max(1))
}

/// Number of a request's inputs.
fn inputs(kind: Option<RequestKind>, body: &[u8]) -> u64 {
    let count = match kind {
        Some(RequestKind::Embeddings) => {
            serde_json::from_slice(body).map(|EmbeddingsInput { texts, tokens, .. }| {
                texts.map_or(0, |texts| texts.len()) + tokens.map_or(0, |tokens| tokens.len())
            })
        }
        Some(RequestKind::Rerank) => serde_json::from_slice(body).map(|RerankInput { documents, .. }| documents.len()),
        _ => Ok(1),
    };
    count.unwrap_or(1) as u64 // a body that is malformed is answered at once
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use omni_body::BodyKind;
    use omni_config::name::ModelName;
    use omni_config::node::NodeConfig;
    use omni_node_protocol::id::SnapshotDigest;

    fn cost(manifest: &str, kind: Option<RequestKind>, body: &'static str) -> Option<u64> {
        let name = ModelName::try_from("m".to_owned()).unwrap();
        let snapshot = SnapshotDigest::parse(&"1".repeat(64)).unwrap();
        let content = Content::parse(&name, snapshot, Some(manifest.to_owned()), &NodeConfig::default()).unwrap();
        let head = RequestHead { kind, ..RequestHead::default() };
        batch_cost(&content, &head, &RequestBody::Collected(BodyKind::Json, Bytes::from_static(body.as_bytes())))
    }

    #[test]
    fn a_request_costs_what_the_manifest_counts() {
        let embeddings = Some(RequestKind::Embeddings);
        for (manifest, kind, body, expected) in [
            ("", None, "{}", None),
            ("[batching]\nmax = 8", None, "{}", Some(1)),
            ("[batching]\nmax = 8", Some(RequestKind::CountTokens), "{}", None),
            ("[batching]\nmax = 8\ncost = \"tokens\"", None, "{\"text\": \"0123456789\"}", Some(6)),
            ("[batching]\nmax = 8\ncost = \"tokens\"", None, "", Some(1)),
            ("[batching]\nmax = 8\ncost = \"inputs\"", embeddings, r#"{"texts": ["a", "b", "c"]}"#, Some(3)),
            ("[batching]\nmax = 8\ncost = \"inputs\"", embeddings, r#"{"tokens": [[1, 2], [3]]}"#, Some(2)),
            (
                "[batching]\nmax = 8\ncost = \"inputs\"",
                Some(RequestKind::Rerank),
                r#"{"query": "q", "documents": ["a", "b"]}"#,
                Some(2),
            ),
            ("[batching]\nmax = 8\ncost = \"inputs\"", None, r#"{"texts": ["a", "b"]}"#, Some(1)),
        ] {
            assert_eq!(cost(manifest, kind, body), expected, "{manifest}: {body}");
        }
    }
}
