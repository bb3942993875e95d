//! Requests to models: from an HTTP request through the queue of a model to the response, and on to the successor of a
//! scheduler that hands over.
#![forbid(unsafe_code)]

mod admission;
pub mod answer;
mod api;
mod api_kind;
mod arrivals;
mod aside;
mod attempt;
mod batch;
mod data;
mod file_body;
mod forward;
mod generation;
pub mod head;
mod in_flight;
mod jobs_handle;
mod memory;
mod outcome;
mod passed;
mod refusal;
mod run;
mod state;
mod submission;
mod templates;
mod text_model;
mod trace;

pub use admission::{BatchItem, ItemFailure};
pub use answer::AnswerBody;
pub use api::APIS;
pub use data::DataApi;
pub use forward::{Forwarder, Listener};
pub use jobs_handle::{JobCounts, JobsHandle, StoreState};
pub use refusal::refuse;
pub use state::RunApi;
pub use text_model::check_content;
