//! Limits of a connection, for the listener that accepts it and the parts that serve it.

use std::time::Duration;

/// Limits of a listener and its connections.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Connections at a time; further ones wait in the kernel's queue.
    pub connections: usize,
    /// Connections at a time from one address.
    pub connections_per_address: Option<u32>,
    /// Time for the head of a request, and for the first request of a connection to arrive at all.
    pub header_timeout: Duration,
}

/// Time after which a client that reads nothing of its response counts as gone: for the kernel, in milliseconds, and for small
/// responses over HTTP/2.
pub(crate) const UNREAD_MS: u32 = 120_000;
/// [`UNREAD_MS`] as a duration.
pub(crate) const UNREAD: Duration = Duration::from_millis(UNREAD_MS as u64);
/// Bytes that a client may send of one body over HTTP/2 before it is read.
pub(crate) const STREAM_WINDOW: u32 = 256 * 1024;
/// As [`STREAM_WINDOW`], of all bodies of a connection.
pub(crate) const CONNECTION_WINDOW: u32 = 1024 * 1024;
