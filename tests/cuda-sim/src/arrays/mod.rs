//! Arrays and mipmapped arrays: memory in rows of elements that only copies reach; texture and surface objects, which
//! are handles and nothing more, because no kernel reads through them.
//!
//! An array takes the bytes of its elements, without what a card adds for its own order of them. Sparse arrays, and
//! those whose memory is mapped later, take none; they hold bytes all the same, since nothing here needs the mapping.

pub(crate) mod batches;
pub(crate) mod copies;
pub(crate) mod create;
mod format;
pub(crate) mod mipmap;
pub(crate) mod narrow;
pub(crate) mod objects;
mod shape;
mod table;
mod volume;

pub(crate) use copies::Solid;
pub(crate) use shape::Shape;
pub(crate) use table::{adopt, bytes, end_context};
