//! Validation of answers that must be JSON.
#![forbid(unsafe_code)]
