//! Predecessor's side of a takeover: starts the successor, hands over, and stays until every accepted request is answered.

use crate::Listeners;
use crate::TakeoverError;
use crate::program;
use omni_control_api::Upgrade;
use omni_engine_protocol::packet::PacketError;
use omni_ingress::ListenerPhase;
use omni_log::Kind;
use omni_node_protocol::takeover::{FromSuccessor, Listener, PROTOCOL, ToSuccessor};
use omni_packet_socket::PacketSocket;
use omni_supervisor::model::HandedOver;
use omni_supervisor::node::{Node, SuccessorHandle};
use serde_json::Value;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};

/// Time for each reply, whose work takes a fraction of a second.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// Program of this process, even when its file was removed.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// Capacity of the queue of updates about requests in flight: the largest number of instances of a node, which is the
/// number of user ids for them.
const UPDATES: usize = 4096;
/// Name of the peer in errors.
const PEER: &str = "successor";

/// Process that takes over.
struct Successor {
    socket: Arc<PacketSocket>,
    child: Child,
}

/// Node and listeners to hand over.
#[derive(Debug)]
pub struct Handover<'a> {
    /// The models.
    pub node: &'a Node,
    /// Configuration of this scheduler.
    pub config: &'a Value,
    /// Listening sockets, and the lock.
    pub listeners: Listeners,
    /// Phase of the data listener.
    pub data: &'a watch::Sender<ListenerPhase>,
    /// Phase of the admin listener.
    pub admin: &'a watch::Sender<ListenerPhase>,
    /// Most connections of each listener.
    pub connections: usize,
}

impl Successor {
    /// Starts `program` and waits until the successor is able to serve. Returns the changes of its configuration. On failure no process is
    /// left.
    async fn start(
        program: &Path,
        listeners: &Listeners,
        config: &Value,
    ) -> Result<(Self, Vec<String>), TakeoverError> {
        let (socket, child) = program::start(program)?;
        let socket = PacketSocket::connected(socket).map_err(TakeoverError::Socket)?;
        let mut successor = Self { socket: Arc::new(socket), child };
        let Listeners { data, admin, control, lock } = listeners;
        let handed = [data.as_raw_fd(), admin.as_raw_fd(), control.as_raw_fd(), lock.as_raw_fd()];
        let prepared = async {
            successor.send(&ToSuccessor::Take { protocol: PROTOCOL, config: config.clone() }, &handed).await?;
            match successor.receive().await? {
                FromSuccessor::Prepared { changes } => Ok(changes),
                FromSuccessor::Failed { message } => Err(TakeoverError::Failed(message)),
                FromSuccessor::Serving { .. } => Err(TakeoverError::Order(PEER)),
            }
        };
        match prepared.await {
            Ok(changes) => Ok((successor, changes)),
            Err(error) => {
                successor.kill();
                Err(error)
            }
        }
    }

    /// Gives the node to the successor. Returns true if clients of the successor use TLS.
    async fn give_node(&self, handed: &HandedOver) -> Result<bool, TakeoverError> {
        let HandedOver { busy, logged } = handed.clone();
        self.send(&ToSuccessor::Yours { busy, logged }, &[]).await?;
        match self.receive().await? {
            FromSuccessor::Serving { listen: _, tls } => Ok(tls),
            FromSuccessor::Failed { message } => Err(TakeoverError::Failed(message)),
            FromSuccessor::Prepared { .. } => Err(TakeoverError::Order(PEER)),
        }
    }

    async fn send(&self, message: &ToSuccessor, fds: &[RawFd]) -> Result<(), TakeoverError> {
        self.socket.send_with(message, fds).await.map_err(|error| TakeoverError::Connection(PEER, error))
    }

    async fn send_connection(&self, stream: &TcpStream, listener: Listener) -> Result<(), TakeoverError> {
        self.send(&ToSuccessor::Connection { listener }, &[stream.as_raw_fd()]).await
    }

    async fn receive(&self) -> Result<FromSuccessor, TakeoverError> {
        let reply = tokio::time::timeout(REPLY_TIMEOUT, self.socket.receive()).await;
        reply
            .map_err(|_| TakeoverError::NoReply(REPLY_TIMEOUT))?
            .map_err(|error| TakeoverError::Connection(PEER, error))
    }

    fn kill(&mut self) {
        // Both calls fail only if the process has ended.
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

/// Hands the node over to a new process of `program`. Calls `done` when the successor serves, or when there is none, and returns when all
/// accepted requests are `answered`. `Ok(false)`: nothing has changed, and this scheduler keeps serving.
///
/// # Errors
/// The successor was prepared and then did not serve, and neither did a process of this scheduler's own program: nothing serves the node.
pub async fn hand_over(
    program: &Path,
    handover: Handover<'_>,
    answered: impl Future<Output = ()>,
    done: impl FnOnce(Result<Upgrade, String>),
) -> Result<bool, TakeoverError> {
    let Handover { node, config, listeners, data, admin, connections } = handover;
    let (mut successor, changes) = match Successor::start(program, &listeners, config).await {
        Ok(prepared) => prepared,
        Err(error) => {
            let error = omni_log::chain(&error);
            tracing::error!(message_id = Kind::NotHandedOver.id(), error, "no takeover: this scheduler keeps serving");
            done(Err(error));
            return Ok(false);
        }
    };
    tracing::info!(successor = successor.child.id(), "handing over");
    data.send_replace(ListenerPhase::Paused);
    admin.send_replace(ListenerPhase::Paused);
    let (in_flight, mut changes_in_flight) = mpsc::channel(UPDATES);
    let handed = node.release(&in_flight).await;
    drop(in_flight);
    node.store().close().await; // before the successor reads it
    let tls = match successor.give_node(&handed).await {
        Ok(tls) => tls,
        Err(error) => {
            tracing::error!(
                error = omni_log::chain(&error),
                "the successor failed: the program of this scheduler takes over"
            );
            successor.kill();
            (successor, _) = Successor::start(Path::new(OWN_PROGRAM), &listeners, config).await?;
            successor.give_node(&handed).await?
        }
    };
    drop(listeners); // new connections are for the successor
    let pid = successor.child.id();
    tracing::info!(
        message_id = Kind::HandedOver.id(),
        successor = pid,
        "the successor serves; finishing open requests"
    );
    node.set_successor(SuccessorHandle::new(Arc::clone(&successor.socket)));
    let (to_data, mut from_data) = mpsc::channel(connections);
    let (to_admin, mut from_admin) = mpsc::channel(connections);
    // A successor with TLS would read plain HTTP as TLS. Connections without TLS are closed after their next response.
    data.send_replace(if tls { ListenerPhase::ClosingAfterResponse } else { ListenerPhase::HandingOver(to_data) });
    admin.send_replace(ListenerPhase::HandingOver(to_admin));
    done(Ok(Upgrade { pid, changes }));
    let mut answered = std::pin::pin!(answered);
    let has_ended = loop {
        let sent = tokio::select! {
            biased;
            Some(stream) = from_data.recv() => successor.send_connection(&stream, Listener::Data).await,
            Some(stream) = from_admin.recv() => successor.send_connection(&stream, Listener::Admin).await,
            Some((model, instance, requests)) = changes_in_flight.recv() => {
                successor.send(&ToSuccessor::Has { model, instance, requests }, &[]).await
            }
            () = &mut answered => break false,
        };
        if let Err(TakeoverError::Connection(_, PacketError::Closed)) = sent {
            tracing::warn!("the successor has ended");
            break true;
        }
    };
    if has_ended {
        // Without receivers, connections that wait for their hand-over are closed now.
        drop((from_data, from_admin, changes_in_flight));
        answered.await;
    }
    Ok(true)
}
