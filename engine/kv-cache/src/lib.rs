//! Blocks of the key-value cache: pool, references, prefixes that requests share. Pure.
//!
//! ```text
//!            allocate              publish, release             find, share
//!   free ───────────────▶ used ─────────────────────▶ cached ───────────────▶ used
//!    ▲                     │                            │
//!    └──────release────────┘                            └── allocate, when none is free: least recently used first
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | [`digest`] | names of prefixes: chained hashes |
//! | [`pool`] | states of all blocks |
//! | [`table`] | blocks of one sequence |
//!
//! Invariants: free + cached + used blocks are all blocks; a block with a reference is never evicted; [`Pool::release`]
//! is the one place that frees. [`Pool::audit`] verifies them.
#![forbid(unsafe_code)]

pub mod digest;
pub mod pool;
pub mod table;

pub use digest::{Digest, Root};
pub use pool::{Pool, PoolFault};
pub use table::BlockTable;
