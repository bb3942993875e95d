//! Protocol between the CUDA shim and the worker about GPU memory.
//!
//! Both parts have a fixed size, little-endian as the machine is, and no dependency: the shim has only libc, and the
//! worker reads them from a process that it does not trust.
//!
//! | part | place | writers | module |
//! | --- | --- | --- | --- |
//! | accounting file | `OMNI_GPU_ACCOUNT` | the shims of one instance | [`account`] |
//! | control socket | `OMNI_GPU_CONTROL`, `SOCK_SEQPACKET` | worker and shims | [`control`] |
//!
//! Nothing here maps, locks or sends: only layouts and the code that reads and writes them.

pub mod account;
pub mod control;
pub mod env;
