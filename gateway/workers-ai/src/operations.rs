//! Operations of the API, for the OpenAPI document.

use crate::text::{EnvelopedAnswer, TextRequest};
use omni_codec::openapi::{AnswerMedia, Operations};

/// Adds the operations of this API.
pub fn add_operations(operations: &mut Operations) {
    let summary = "Request to a model; the body is the model's own unless it generates text";
    operations.post::<TextRequest, EnvelopedAnswer>("/ai/run/{model}", summary, AnswerMedia::JsonOrEvents);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_of_all_types() {
        let mut operations = Operations::default();
        add_operations(&mut operations);
        assert_eq!(operations.conflicts(), Vec::<String>::new());
        insta::assert_json_snapshot!(operations.document("Workers AI API", "1"));
    }

    #[test]
    fn types_of_all_apis_stand_side_by_side() {
        let mut operations = Operations::default();
        add_operations(&mut operations);
        omni_openai::add_operations(&mut operations);
        assert_eq!(operations.conflicts(), Vec::<String>::new());
        assert!(operations.document("all", "1")["paths"].as_object().unwrap().len() > 10);
    }
}
