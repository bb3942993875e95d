//! The successor's side: what it is handed, and when.

use super::changes::changes;
use super::{TakeoverError, Working};
use crate::node::Node;
use crate::packet_socket::PacketSocket;
use crate::startup::Listeners;
use nix::unistd::dup2_stdin;
use omni_engine_protocol::packet::{recv_packet, send_packet};
use omni_ingress::{ClientStream, InheritedConnections};
use omni_log::Kind;
use omni_node_protocol::takeover::{FromSuccessor, Listener, PROTOCOL, ToSuccessor};
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

const WHO: &str = "running scheduler";

/// The scheduler that serves until this one does.
#[derive(Debug)]
pub struct Predecessor {
    socket: OwnedFd,
    /// Its configuration.
    config: Value,
}

/// The same, once it has handed over the node.
#[derive(Debug)]
pub struct Inheritance {
    socket: PacketSocket,
    /// What it has still.
    pub working: Working,
}

/// Where connections go that it hands over. Those that listeners have no room for wait there, as many again; nobody waits
/// for them.
#[derive(Debug)]
pub struct Handed {
    data: mpsc::Sender<ClientStream>,
    asked: mpsc::Sender<ClientStream>,
    admin: mpsc::Sender<ClientStream>,
}

impl Handed {
    /// For so many of each listener, and what those of data and admin get.
    #[must_use]
    pub fn new(data: usize, admin: usize) -> (Self, InheritedConnections, InheritedConnections) {
        let ((to_data, clients), (to_ask, forwarded)) = (mpsc::channel(data), mpsc::channel(data));
        let of_data = InheritedConnections { clients, forwarded };
        let (to_admin, clients) = mpsc::channel(admin);
        let (_, forwarded) = mpsc::channel(1);
        (Self { data: to_data, asked: to_ask, admin: to_admin }, of_data, InheritedConnections { clients, forwarded })
    }
}

impl Predecessor {
    /// Takes what it hands over first. Waits for it; before the runtime starts.
    ///
    /// # Errors
    /// Standard input is no such socket, or the two cannot understand each other.
    pub fn take() -> Result<(Self, Listeners), TakeoverError> {
        let socket = io::stdin().as_fd().try_clone_to_owned().map_err(TakeoverError::Handed)?;
        // The other side hears of this process's end by the end of the socket: there must be one of it.
        let nothing = File::open("/dev/null").map_err(TakeoverError::Handed)?;
        dup2_stdin(nothing).map_err(|errno| TakeoverError::Handed(errno.into()))?;
        let (message, fds) = recv_packet(&socket).map_err(|error| TakeoverError::Wire(WHO, error))?;
        let ToSuccessor::Take { protocol, config } = message else { return Err(TakeoverError::Order(WHO)) };
        let predecessor = Self { socket, config };
        let handed = match <[OwnedFd; 4]>::try_from(fds) {
            Ok([data, admin, control, lock]) if protocol == PROTOCOL => Ok(Listeners {
                data: TcpListener::from(data),
                admin: TcpListener::from(admin),
                control: UnixListener::from(control),
                lock: File::from(lock),
            }),
            Ok(_) => Err(TakeoverError::Version(protocol)),
            Err(_) => Err(TakeoverError::Order(WHO)),
        };
        match handed {
            Ok(listeners) => Ok((predecessor, listeners)),
            Err(error) => {
                predecessor.failed(&error);
                Err(error)
            }
        }
    }

    /// Says why there will be no takeover.
    pub fn failed(&self, error: &(dyn std::error::Error + 'static)) {
        let message = omni_log::chain(error);
        let _ = send_packet(&self.socket, &FromSuccessor::Failed { message }, &[]); // it hears our end, too
    }

    /// Says that this one is able to serve, and what its configuration changes, and waits until the node is its own.
    ///
    /// # Errors
    /// The other one does not hand over.
    pub async fn relieve(self, config: &Value) -> Result<Inheritance, TakeoverError> {
        let socket = PacketSocket::connected(self.socket).map_err(TakeoverError::Handed)?;
        let wire = |error| TakeoverError::Wire(WHO, error);
        let changes = changes(&self.config, config);
        for change in &changes {
            tracing::info!(message_id = Kind::ConfigurationChanged.id(), change, "the configuration has changed");
        }
        socket.send(&FromSuccessor::Prepared { changes }).await.map_err(wire)?;
        match socket.receive().await.map_err(wire)? {
            // It has started this process.
            ToSuccessor::Yours { busy } => Ok(Inheritance { socket, working: Working { pid: parent_id(), busy } }),
            ToSuccessor::Take { .. }
            | ToSuccessor::Has { .. }
            | ToSuccessor::Asks { .. }
            | ToSuccessor::Connection { .. } => Err(TakeoverError::Order(WHO)),
        }
    }
}

impl Inheritance {
    /// Says that requests are taken, and takes what the other one lets go of until it has ended.
    pub async fn follow(self, listen: SocketAddr, tls: bool, node: &Node, handed: Handed) {
        let said = self.socket.send(&FromSuccessor::Serving { listen, tls }).await;
        if let Err(error) = said {
            tracing::warn!(error = omni_log::chain(&error), "the scheduler before this one has gone early");
        }
        while let Ok((message, fds)) = self.socket.receive_with().await {
            match message {
                ToSuccessor::Has { model, instance, requests } => {
                    node.predecessor_has(&model, &instance, requests).await;
                }
                ToSuccessor::Asks { admitted } => give(&handed.asked, fds, |fd| asked(fd, admitted)),
                ToSuccessor::Connection { listener: Listener::Data } => give(&handed.data, fds, client),
                ToSuccessor::Connection { listener: Listener::Admin } => give(&handed.admin, fds, client),
                ToSuccessor::Take { .. } | ToSuccessor::Yours { .. } => {}
            }
        }
        node.predecessor_has_ended().await;
        tracing::info!("the scheduler before this one has ended");
    }
}

/// A connection for each descriptor, made by `make`. It does not wait: what else that scheduler says is heard, though this
/// one has as many connections as it may.
fn give(to: &mpsc::Sender<ClientStream>, fds: Vec<OwnedFd>, make: impl Fn(OwnedFd) -> io::Result<ClientStream>) {
    for fd in fds {
        let lost = match make(fd).map(|stream| to.try_send(stream)) {
            Ok(Ok(())) => continue,
            Ok(Err(TrySendError::Full(_))) => "as many wait already as may be connected".to_owned(),
            Ok(Err(TrySendError::Closed(_))) => "this scheduler takes none any more".to_owned(),
            Err(error) => error.to_string(),
        };
        tracing::warn!("a connection that was handed over is lost: {lost}");
    }
}

fn client(fd: OwnedFd) -> io::Result<ClientStream> {
    let stream = std::net::TcpStream::from(fd);
    stream.set_nonblocking(true)?;
    TcpStream::from_std(stream).map(ClientStream::Tcp)
}

fn asked(fd: OwnedFd, admitted: bool) -> io::Result<ClientStream> {
    let stream = std::os::unix::net::UnixStream::from(fd);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream).map(|stream| ClientStream::Forwarded { stream, admitted })
}
