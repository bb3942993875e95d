//! OpenAPI document of a node: data listener, admin listener and control API.

pub(crate) mod admin;
pub(crate) mod control;

use bytes::Bytes;
use omni_codec::openapi::{Api, Content, Operation, Operations, V1};
use serde_json::{Map, Value};
use std::sync::LazyLock;

/// The document as in the response to `GET /openapi.json`. Made from the types of all APIs at the first request.
pub(crate) static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| {
    let document = operations().document("Omni", env!("CARGO_PKG_VERSION"));
    serde_json::to_vec(&document).unwrap_or_default().into()
});

/// The document itself.
const API: Api = Api {
    name: "OpenAPI",
    servers: &[admin::SERVER, control::SERVER],
    failure: &[],
    operations: &[Operation::get("/openapi.json", "This document", &[Content::json::<Map<String, Value>>()])],
};

fn operations() -> Operations {
    let mut operations = Operations::new(V1);
    for api in omni_inference::APIS.into_iter().chain([&admin::API, &control::API, &control::RUN, &API]) {
        operations.add(api);
    }
    operations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_of_a_node() {
        let operations = operations();
        assert_eq!(operations.conflicts(), Vec::<String>::new());
        insta::assert_json_snapshot!(operations.document("Omni", "1"));
    }

    #[test]
    fn every_operation_is_in_the_document() {
        let document: Value = serde_json::from_slice(&DOCUMENT).unwrap();
        let listed = |path: &&Value| {
            path.as_object().unwrap().keys().filter(|key| ["get", "post", "delete"].contains(&key.as_str())).count()
        };
        let count = document["paths"].as_object().unwrap().values().map(|path| listed(&path)).sum::<usize>();
        let apis = omni_inference::APIS.into_iter().chain([&admin::API, &control::API, &control::RUN, &API]);
        assert_eq!(count, apis.map(|api| api.operations.len()).sum::<usize>());
    }
}
