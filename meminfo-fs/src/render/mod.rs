//! Texts of the files, one function each: values in, text out. Pure.
//!
//! Rendered for every `open`. Each has the form of the kernel's own file, and leaves out unknown values.

mod cpuinfo;
mod loadavg;
mod meminfo;
mod stat;
mod uptime;

pub(crate) use cpuinfo::cpuinfo;
pub(crate) use loadavg::{Load, loadavg};
pub use meminfo::render as meminfo;
pub(crate) use stat::stat;
pub(crate) use uptime::uptime;

/// `/proc/swaps` without swap: the line with the names of the columns.
pub(crate) const SWAPS: &[u8] = b"Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
