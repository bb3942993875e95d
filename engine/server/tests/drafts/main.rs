//! Draft models: exact answers, costs, blocks, refusals.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail as tests do")]

mod asked;
mod double;
mod exact;
mod models;
mod simulated;
#[path = "../shared/tiny.rs"]
mod tiny;

use omni_engine::model::{Model, open_draft};
use tiny::{Shape, TINY};

#[test]
fn other_vocabularies_are_refused_with_both_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let model = Model::open(&tiny::bytes(&path("model.gguf"), TINY, 0)).unwrap();
    let larger = tiny::bytes(&path("larger.gguf"), TINY, 40);
    let message = open_draft(&model, &larger).map(drop).unwrap_err().to_string();
    assert!(message.contains("299 tokens and the model one of 259"), "{message}");
    let larger = Model::open(&larger).unwrap();
    let message = open_draft(&larger, &path("model.gguf")).map(drop).unwrap_err().to_string();
    assert!(message.contains("259 tokens and the model one of 299"), "{message}");
    let missing = open_draft(&model, &path("none.gguf")).map(drop).unwrap_err().to_string();
    assert!(missing.contains("none.gguf"), "{missing}");
    assert!(open_draft(&model, &tiny::bytes(&path("other.gguf"), Shape { seed: 8, ..TINY }, 0)).is_ok());
}
