//! Workers AI API: its routes, and its rendering of values, streams and failures.

#![forbid(unsafe_code)]

mod envelope;
mod error;
mod events;
mod routes;

pub use envelope::{Envelope, envelope};
pub use error::{code_of_handler, error_response};
pub use events::StreamEncoder;
pub use routes::model_of;
