//! Streams: virtual timelines. What is put into one takes effect at once; when it is done is modelled, and waited for.

use crate::abi::Handle;

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) context: Handle,
    pub(crate) kind: Kind,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    /// When everything in it is done, by the monotonic clock, in nanoseconds.
    pub(crate) end: u64,
}

/// Which stream it is to its context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Stream 0: it waits for the blocking ones, and they for it.
    Legacy,
    /// A thread's own, or one that the program made.
    Blocking,
    /// Made to run beside stream 0.
    NonBlocking,
}

impl Stream {
    pub(crate) fn new(context: Handle, kind: Kind, flags: u32, priority: i32) -> Self {
        Self { context, kind, flags, priority, end: 0 }
    }
}
