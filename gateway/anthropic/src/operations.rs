//! Operations of the API, for the OpenAPI document.

use crate::answer::{Message, TokenCount};
use crate::error::ErrorBody;
use crate::request::MessageRequest;
use omni_codec::openapi::{Api, Content, Operation, V1};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use std::borrow::Cow;

/// Operations of this API.
pub const API: Api =
    Api { name: "Anthropic API", servers: V1, failure: &[Content::json::<ErrorBody>()], operations: OPERATIONS };

const OPERATIONS: &[Operation] = &[
    Operation::post(
        "/messages",
        "Message",
        &[Content::json::<MessageWithLimit>()],
        &[Content::json::<Message>(), Content::EVENTS],
    ),
    Operation::post(
        "/messages/count_tokens",
        "Count of the tokens of a message's input",
        &[Content::json::<MessageRequest>()],
        &[Content::json::<TokenCount>()],
    ),
];

/// Schema of a request for a message: that of a count, with a limit of the answer.
struct MessageWithLimit;

impl JsonSchema for MessageWithLimit {
    fn schema_name() -> Cow<'static, str> {
        "MessageWithLimit".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let count = generator.subschema_for::<MessageRequest>();
        let limit = schemars::json_schema!({
            "required": ["max_tokens"],
            "properties": { "max_tokens": { "type": "integer" } },
        });
        schemars::json_schema!({ "allOf": [count, limit] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::ROUTES;
    use omni_codec::openapi::Operations;

    #[test]
    fn schemas_of_all_types() {
        let mut operations = Operations::new(V1);
        operations.add(&API);
        assert_eq!(operations.conflicts(), Vec::<String>::new());
        insta::assert_json_snapshot!(operations.document("Anthropic API", "1"));
    }

    #[test]
    fn every_route_has_an_operation() {
        let operations: Vec<_> = OPERATIONS.iter().map(|operation| (operation.method(), operation.path())).collect();
        let routes: Vec<_> = ROUTES.iter().map(|(path, _)| ("POST".to_owned(), *path)).collect();
        assert_eq!(operations, routes);
    }
}
