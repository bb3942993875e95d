//! Forward pass on random models with every operation that a description has: against a plain computation in 64 bits, and
//! against itself, bit for bit, whatever is computed together.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panics")]

mod accuracy;
mod hostile;
mod invariance;
mod lifecycle;
mod model;
mod reference;
mod runner;
