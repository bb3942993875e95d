//! What the CUDA shim and the worker say to each other about GPU memory.
//!
//! Two things, both of fixed size, little-endian as the machine is, without any dependency: the shim has only libc, and
//! the worker must be able to read them from a process that it does not trust.
//!
//! | what | where | who writes | module |
//! | --- | --- | --- | --- |
//! | accounting file | `OMNI_GPU_ACCOUNT` | the shims of one instance | [`account`] |
//! | control socket | `OMNI_GPU_CONTROL`, `SOCK_SEQPACKET` | worker listens, each shim connects | [`control`] |
//!
//! Nothing here maps, locks or sends: these are shapes and the code that reads and writes them.

pub mod account;
pub mod control;
pub mod env;
