//! Failures of requests: one enum for all causes, the HTTP status of each, and whether and when a client should retry.
//!
//! Codecs of the APIs render a [`Failure`] with their own error codes and bodies; status and retry advice are the same
//! for all of them and are decided here.

#![forbid(unsafe_code)]

mod failure;
mod invalid;
mod retry;
mod status;

pub use failure::{BuildProgress, Failure};
pub use invalid::{InvalidCode, InvalidRequest};
pub use retry::{RetryAdvice, retry_after_seconds};
