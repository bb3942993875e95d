//! The engine as a model of a node: the engine's end of `omni-engine-protocol`.
//!
//! ```text
//!  worker ──control, descriptor 3──▶ run ── loads the model, then for each `attach`:
//!
//!  scheduler ──data──▶ reader thread ──▶ a task for each request ──▶ engine's thread
//!            ──cancel─▶ cancel thread ──┘          │ events
//!            ◀──data── writer thread ◀── frames ───┘
//! ```
//!
//! Exit codes: 0 after `stop`; 1 when trying again may help; `PERMANENT_FAILURE` when it cannot.

mod answer;
mod connection;
mod control;
mod frames;
mod registry;
mod request;

pub use control::{run, run_on, run_with};
