//! Stream-ordered allocation: pools.

/// A memory pool.
#[derive(Debug)]
pub(crate) struct Pool {}
