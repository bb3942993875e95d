//! Models: `/v1/models` and `/v1/models/{model}`.

use bytes::Bytes;
use schemars::JsonSchema;
use serde::Serialize;

/// A model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Model {
    /// Name.
    pub id: String,
    /// `model`.
    pub object: &'static str,
    /// Time since which this version of the model is known, in seconds since 1970.
    pub created: u64,
    /// Owner.
    pub owned_by: String,
}

/// List of models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ModelList {
    /// `list`.
    pub object: &'static str,
    /// Models.
    pub data: Vec<Model>,
}

impl Model {
    /// A model by its name.
    #[must_use]
    pub fn new(id: impl Into<String>, created: u64) -> Self {
        Self { id: id.into(), object: "model", created, owned_by: "omni".to_owned() }
    }
}

/// The answer with one model.
#[must_use]
pub fn model_answer(model: &Model) -> Bytes {
    Bytes::from(serde_json::to_vec(model).unwrap_or_default())
}

/// The answer with all models.
#[must_use]
pub fn model_list_answer(models: Vec<Model>) -> Bytes {
    Bytes::from(serde_json::to_vec(&ModelList { object: "list", data: models }).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_listed_by_name() {
        let model = Model::new("@cf/meta/llama", 1_700_000_000);
        let one = r#"{"id":"@cf/meta/llama","object":"model","created":1700000000,"owned_by":"omni"}"#;
        assert_eq!(model_answer(&model), one);
        assert_eq!(model_list_answer(vec![model]), format!("{{\"object\":\"list\",\"data\":[{one}]}}"));
    }
}
