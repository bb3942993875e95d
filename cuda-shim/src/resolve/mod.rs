//! Finding functions: libc's own ones for us, ours for everybody who looks for the driver's.

pub(crate) mod elf;
pub(crate) mod libc_own;
