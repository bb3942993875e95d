//! Device memory of every kind, and what the API can be asked about it.

pub(crate) mod access;
pub(crate) mod advise;
pub(crate) mod alloc;
pub(crate) mod allocation;
pub(crate) mod copy;
pub(crate) mod host;
pub(crate) mod managed;
pub(crate) mod narrow;
pub(crate) mod ordered;
pub(crate) mod pointer;
pub(crate) mod pool;
pub(crate) mod pools;
pub(crate) mod prefetch;
pub(crate) mod residency;
pub(crate) mod set;
pub(crate) mod shared_pools;
