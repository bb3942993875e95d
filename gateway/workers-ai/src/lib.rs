//! Workers AI API: its routes, and its rendering of failures.

#![forbid(unsafe_code)]

mod error;
mod routes;

pub use error::{code_of_handler, error_response};
pub use routes::{model_name, model_of};
