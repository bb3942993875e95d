//! Connections to the successor, for requests that were not sent to an instance.
//!
//! Invariant: only the two processes have the sockets, so that nothing else can use them, and the TLS of clients does not matter.

use omni_node_protocol::takeover::ToSuccessor;
use omni_packet_socket::PacketSocket;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use tokio::net::UnixStream;

/// Handle of a successor that serves.
#[derive(Debug, Clone)]
pub struct SuccessorHandle(Arc<PacketSocket>);

impl SuccessorHandle {
    /// Handle over the connection of the takeover.
    #[must_use]
    pub fn new(socket: Arc<PacketSocket>) -> Self {
        Self(socket)
    }

    /// Connects to the successor for one request to a model. `admitted`: its token was checked here. `None`: the successor has ended, or no
    /// descriptors are left.
    pub async fn connect(&self, admitted: bool) -> Option<UnixStream> {
        let (ours, theirs) = StdUnixStream::pair().ok()?;
        ours.set_nonblocking(true).ok()?;
        self.0.send_with(&ToSuccessor::Asks { admitted }, &[theirs.as_raw_fd()]).await.ok()?;
        UnixStream::from_std(ours).ok()
    }
}
