//! Successor's side of a takeover: sets up beside the predecessor, takes the node over, and receives connections and requests from it.

use crate::Listeners;
use crate::TakeoverError;
use crate::changes::changes;
use nix::unistd::dup2_stdin;
use omni_engine_protocol::packet::{recv_packet, send_packet};
use omni_ingress::{ClientStream, InheritedConnections};
use omni_log::Kind;
use omni_node_protocol::takeover::{FromSuccessor, Listener, PROTOCOL, ToSuccessor};
use omni_packet_socket::PacketSocket;
use omni_supervisor::model::HandedOver;
use omni_supervisor::node::{Node, UnfinishedWork};
use serde_json::Value;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::parent_id;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// Name of the peer in errors.
const PEER: &str = "running scheduler";

/// Connection to the predecessor, before it hands over the node.
#[derive(Debug)]
pub struct Predecessor {
    socket: OwnedFd,
    /// The predecessor's configuration.
    config: Value,
}

/// Connection to the predecessor, after it has handed over the node.
#[derive(Debug)]
pub struct Inheritance {
    socket: PacketSocket,
    /// Unfinished work of the predecessor.
    pub unfinished: UnfinishedWork,
}

/// Queues of inherited connections to the listeners, each as long as its listener may have connections. Further ones are dropped, since
/// the sender does not wait.
#[derive(Debug)]
pub struct InheritedSenders {
    data: mpsc::Sender<ClientStream>,
    forwarded: mpsc::Sender<ClientStream>,
    admin: mpsc::Sender<ClientStream>,
}

impl InheritedSenders {
    /// Makes queues of these lengths, with the receivers of the data and the admin listener.
    #[must_use]
    pub fn new(data: usize, admin: usize) -> (Self, InheritedConnections, InheritedConnections) {
        let ((to_data, clients), (to_forward, forwarded)) = (mpsc::channel(data), mpsc::channel(data));
        let data_receivers = InheritedConnections { clients, forwarded };
        let (to_admin, clients) = mpsc::channel(admin);
        let (_, forwarded) = mpsc::channel(1);
        (
            Self { data: to_data, forwarded: to_forward, admin: to_admin },
            data_receivers,
            InheritedConnections { clients, forwarded },
        )
    }
}

impl Predecessor {
    /// Connects to the predecessor over standard input, and receives its sockets. Blocks; to be called before the runtime starts.
    ///
    /// # Errors
    /// Standard input is not the socket of a takeover, or the versions do not match.
    pub fn connect() -> Result<(Self, Listeners), TakeoverError> {
        let socket = io::stdin().as_fd().try_clone_to_owned().map_err(TakeoverError::Socket)?;
        // The end of the socket tells the predecessor that this process has ended, so only one descriptor of it may exist.
        let null = File::open("/dev/null").map_err(TakeoverError::Socket)?;
        dup2_stdin(null).map_err(|errno| TakeoverError::Socket(errno.into()))?;
        let (message, fds) = recv_packet(&socket).map_err(|error| TakeoverError::Connection(PEER, error))?;
        let ToSuccessor::Take { protocol, config } = message else { return Err(TakeoverError::Order(PEER)) };
        let predecessor = Self { socket, config };
        let handed = match <[OwnedFd; 4]>::try_from(fds) {
            Ok([data, admin, control, lock]) if protocol == PROTOCOL => Ok(Listeners {
                data: TcpListener::from(data),
                admin: TcpListener::from(admin),
                control: UnixListener::from(control),
                lock: File::from(lock),
            }),
            Ok(_) => Err(TakeoverError::Version(protocol)),
            Err(_) => Err(TakeoverError::Order(PEER)),
        };
        match handed {
            Ok(listeners) => Ok((predecessor, listeners)),
            Err(error) => {
                predecessor.report_failure(&error);
                Err(error)
            }
        }
    }

    /// Reports to the predecessor why there will be no takeover.
    pub fn report_failure(&self, error: &(dyn std::error::Error + 'static)) {
        let message = omni_log::chain(error);
        let _ = send_packet(&self.socket, &FromSuccessor::Failed { message }, &[]); // the end of this process shows it, too
    }

    /// Reports that this scheduler is able to serve, with the changes of its configuration, and waits for the node.
    ///
    /// # Errors
    /// The predecessor does not hand over the node.
    pub async fn take_over(self, config: &Value) -> Result<Inheritance, TakeoverError> {
        let socket = PacketSocket::connected(self.socket).map_err(TakeoverError::Socket)?;
        let broken = |error| TakeoverError::Connection(PEER, error);
        let changes = changes(&self.config, config);
        for change in &changes {
            tracing::info!(message_id = Kind::ConfigurationChanged.id(), change, "the configuration has changed");
        }
        socket.send(&FromSuccessor::Prepared { changes }).await.map_err(broken)?;
        match socket.receive().await.map_err(broken)? {
            // The predecessor is the parent of this process.
            ToSuccessor::Yours { busy, logged } => Ok(Inheritance {
                socket,
                unfinished: UnfinishedWork { pid: parent_id(), handed: HandedOver { busy, logged } },
            }),
            ToSuccessor::Take { .. }
            | ToSuccessor::Has { .. }
            | ToSuccessor::Asks { .. }
            | ToSuccessor::Connection { .. } => Err(TakeoverError::Order(PEER)),
        }
    }
}

impl Inheritance {
    /// Reports that this scheduler serves, and receives what the predecessor hands over until it has ended.
    pub async fn follow(self, listen: SocketAddr, tls: bool, node: &Node, senders: InheritedSenders) {
        let sent = self.socket.send(&FromSuccessor::Serving { listen, tls }).await;
        if let Err(error) = sent {
            tracing::warn!(error = omni_log::chain(&error), "the predecessor ended before this scheduler served");
        }
        while let Ok((message, fds)) = self.socket.receive_with().await {
            match message {
                ToSuccessor::Has { model, instance, requests } => {
                    node.on_predecessor_in_flight(&model, &instance, requests).await;
                }
                ToSuccessor::Asks { admitted } => queue(&senders.forwarded, fds, |fd| forwarded(fd, admitted)),
                ToSuccessor::Connection { listener: Listener::Data } => queue(&senders.data, fds, client),
                ToSuccessor::Connection { listener: Listener::Admin } => queue(&senders.admin, fds, client),
                ToSuccessor::Take { .. } | ToSuccessor::Yours { .. } => {}
            }
        }
        node.on_predecessor_exit().await;
        tracing::info!("the predecessor has ended");
    }
}

/// Queues a connection for each descriptor, made by `make`. Does not wait for room, so that further messages are received while the queue
/// is full.
fn queue(to: &mpsc::Sender<ClientStream>, fds: Vec<OwnedFd>, make: impl Fn(OwnedFd) -> io::Result<ClientStream>) {
    for fd in fds {
        let reason = match make(fd).map(|stream| to.try_send(stream)) {
            Ok(Ok(())) => continue,
            Ok(Err(TrySendError::Full(_))) => "the queue is full".to_owned(),
            Ok(Err(TrySendError::Closed(_))) => "this scheduler accepts no connections any more".to_owned(),
            Err(error) => error.to_string(),
        };
        tracing::warn!("a connection from the predecessor was dropped: {reason}");
    }
}

fn client(fd: OwnedFd) -> io::Result<ClientStream> {
    let stream = std::net::TcpStream::from(fd);
    stream.set_nonblocking(true)?;
    TcpStream::from_std(stream).map(ClientStream::Tcp)
}

fn forwarded(fd: OwnedFd, admitted: bool) -> io::Result<ClientStream> {
    let stream = std::os::unix::net::UnixStream::from(fd);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream).map(|stream| ClientStream::Forwarded { stream, admitted })
}
