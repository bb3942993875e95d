//! Directories that root works in, held by descriptor.
//!
//! Every operation names one entry of an open directory and follows no link, so that a directory or file that is exchanged
//! for another one meanwhile is not reached ([`Dir`]). Which directories another user could exchange is found by
//! [`way::changeable`]; what of the runtime directory belongs to root and what to the scheduler's user, by [`runtime`].

mod dir;
mod path_error;
mod retry;
pub mod runtime;
pub mod way;

pub use dir::Dir;
pub use path_error::PathError;
pub use retry::retry;
