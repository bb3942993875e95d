//! The node's page without its effects: what a browser gets, made from snapshots of the node's state.
//!
//! ```text
//! Snapshot, once a second ─▶ Feed ─┬─ Rows      state as the page shows it; its differences are encoded once
//!                                  ├─ EventLog  failures, stops, roll-outs
//!                                  └─ History   an hour and a day of each model, in bounded memory
//! ```
//!
//! Nothing here knows a clock, a socket or a watcher: `omni-admin` takes the snapshots and sends what is encoded.
#![forbid(unsafe_code)]

mod assets;
mod events;
mod feed;
mod history;
mod jobs;
mod rows;
mod snapshot;
mod text;

pub use assets::{ASSETS, Asset};
pub use feed::{Audience, Feed};
pub use history::Span;
pub use snapshot::{Counters, Latency, ModelSample, NodeSample, Share, Snapshot};
