//! The scheduler that serves from now on, for who still has requests that no instance was given.
//!
//! [`super::successor`] makes it, [`crate::http`] asks. What always holds: only the two processes know of the sockets that
//! go this way, so nobody else can use them, and what clients have to speak does not matter.

use crate::packet_socket::PacketSocket;
use omni_node_protocol::takeover::ToSuccessor;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use tokio::net::UnixStream;

/// A successor that serves.
#[derive(Debug, Clone)]
pub struct Heir(Arc<PacketSocket>);

impl Heir {
    pub(super) fn new(socket: Arc<PacketSocket>) -> Self {
        Self(socket)
    }

    /// A connection to it, for one request to a model, which was `admitted` here or was not asked for its token yet; `None`
    /// when it has ended, or no descriptors are left.
    pub async fn ask(&self, admitted: bool) -> Option<UnixStream> {
        let (ours, theirs) = StdUnixStream::pair().ok()?;
        ours.set_nonblocking(true).ok()?;
        self.0.send_with(&ToSuccessor::Asks { admitted }, &[theirs.as_raw_fd()]).await.ok()?;
        UnixStream::from_std(ours).ok()
    }
}
