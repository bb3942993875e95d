//! Device memory of every kind, and what the API can be asked about it.

pub(crate) mod alloc;
pub(crate) mod allocation;
pub(crate) mod managed;
pub(crate) mod pool;
pub(crate) mod residency;
