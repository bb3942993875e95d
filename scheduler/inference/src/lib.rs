//! Requests to models: from an HTTP request through the queue of a model to the response, and on to the successor of a
//! scheduler that hands over.
#![forbid(unsafe_code)]

pub mod answer;
mod api;
mod api_kind;
mod arrivals;
mod aside;
mod attempt;
mod batch;
mod data;
mod forward;
mod generation;
pub mod head;
mod in_flight;
mod memory;
mod outcome;
mod passed;
mod refusal;
mod run;
mod state;
mod submission;
mod templates;

pub use answer::AnswerBody;
pub use api::APIS;
pub use api::jobs::{JobCounts, JobsHandle, StoreState};
pub use data::{DataApi, ItemFailure};
pub use forward::{Forwarder, Listener};
pub use refusal::refuse;
pub use state::RunApi;
pub use templates::check_content;
