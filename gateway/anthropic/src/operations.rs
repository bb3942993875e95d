//! Operations of the API, for the OpenAPI document.

use crate::answer::{Message, TokenCount};
use crate::request::MessageRequest;
use omni_codec::openapi::{AnswerMedia, Operations};

/// Adds the operations of this API.
pub fn add_operations(operations: &mut Operations) {
    operations.post::<MessageRequest, Message<'static>>("/v1/messages", "Message", AnswerMedia::JsonOrEvents);
    let summary = "Count of the tokens of a message's input";
    operations.post::<MessageRequest, TokenCount>("/v1/messages/count_tokens", summary, AnswerMedia::Json);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_of_all_types() {
        let mut operations = Operations::default();
        add_operations(&mut operations);
        assert_eq!(operations.conflicts(), Vec::<String>::new());
        insta::assert_json_snapshot!(operations.document("Anthropic API", "1"));
    }
}
