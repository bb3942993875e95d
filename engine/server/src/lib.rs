//! omni-engine, the native inference engine: a model in memory, served to a node, or alone over HTTP.
//!
//! | module | contents |
//! | --- | --- |
//! | [`model`] | files of a model, and the memory for it |
//! | [`engine`] | the thread that computes |
//! | [`alone`] | a model behind the OpenAI API, without a node |
#![deny(unsafe_code)]

pub mod alone;
pub mod bench;
pub mod bench_drafts;
mod descriptor;
pub mod engine;
pub mod memory;
mod metrics;
pub mod model;
pub mod perplexity;
pub mod tenant;
