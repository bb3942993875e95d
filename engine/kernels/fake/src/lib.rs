//! Backend with a simulated clock, for exact tests of scheduling.
//!
//! It computes no model. The "keys and values" of a position are a hash of its token and of those of all positions
//! before it, read from the blocks of the cache; the next token is a function of that hash. So a wrong block, a stale
//! one, a lost copy or a second writer changes the tokens that follow, which [`Reference`] tells without any blocks.
//!
//! | module | contents |
//! | --- | --- |
//! | [`backend`] | the backend; it refuses plans that break the contract |
//! | [`clock`] | the clock, and what a step costs on it |
//! | [`reference`](mod@reference) | tokens of a sequence that is computed alone |
//! | [`stepped`] | a backend whose steps a test computes |
#![forbid(unsafe_code)]

pub mod backend;
pub mod clock;
pub mod reference;
pub mod stepped;

pub use backend::{LAYERS, SimulatedBackend};
pub use clock::{Clock, Cost};
pub use reference::Reference;
pub use stepped::Stepped;
