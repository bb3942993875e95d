//! Durable batch jobs: uploaded files, batches over them, and the result of every item, in one store.
//!
//! The gateway creates files and batches through [`JobStore`]; a dispatcher asks it for work, claims items, sends them
//! to models and reports each [`Claim`]; [`JobStore::tend`] does what is due: validation, expiry, output files,
//! removal. No clock is read here: callers say what time it is.
//!
//! Invariants:
//! - an acknowledged change survives the end of the process and a power failure;
//! - an item has at most one result, whatever was executed twice: the primary key of its row, inserted in the same
//!   transaction as it is counted;
//! - an attempt is counted and committed before the item is handed out, so that one that kills its instance, or the
//!   whole node, comes to an end;
//! - a row never refers to bytes that are not on the disk: files are flushed before the commit that names them;
//! - memory is bounded: uploads, validation and output files pass through buffers, and a queue has a bound.

#![forbid(unsafe_code)]

mod claim;
mod disk;
mod error;
mod files;
mod id;
mod idle;
mod lifecycle;
mod line;
mod output;
mod permits;
mod progress;
mod readers;
mod results;
mod schema;
mod shared;
mod store;
mod table;
mod tend;
mod time;
mod turns;
mod types;
mod upload;
mod validate;
mod writer;

pub use claim::{Claim, Request};
pub use error::{JobError, OpenError};
pub use files::Content;
pub use id::{BatchId, FileId};
pub use idle::{Demand, Grant, Load, Settings, plan};
pub use lifecycle::{Cut, Ending, Event, Interruption, MAX_DEATHS, MAX_LOST, Phase, Status};
pub use output::ItemReport;
pub use store::{JobStore, NewBatch};
pub use table::items::Recorded;
pub use time::UnixMillis;
pub use types::{
    Batch, Counts, FileInfo, Form, ItemResult, Limits, LineError, Page, Purpose, Scope, Times, Usage, Work,
};
pub use upload::Upload;
