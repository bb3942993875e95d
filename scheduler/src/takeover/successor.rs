//! The side of the scheduler that serves: starts the successor, lets go, and stays until everything it took is answered.

use super::{Heir, TakeoverError};
use crate::node::Node;
use crate::packet_socket::PacketSocket;
use crate::service;
use crate::startup::{self, Listeners};
use omni_control_api::Upgrade;
use omni_engine_protocol::packet::PacketError;
use omni_ingress::ListenerPhase;
use omni_log::Kind;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::takeover::{FromSuccessor, Listener, PROTOCOL, ToSuccessor};
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};

/// For each of its answers. What it does meanwhile takes a fraction of a second.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
/// The program of this process, also when its file is not there any more.
const OWN_PROGRAM: &str = "/proc/self/exe";
const WHO: &str = "successor";

/// A scheduler that takes over.
struct Successor {
    socket: Arc<PacketSocket>,
    child: Child,
}

/// What there is to hand over.
#[derive(Debug)]
pub struct Estate<'a> {
    /// The models.
    pub node: &'a Node,
    /// What this scheduler was started with.
    pub config: &'a Value,
    /// The sockets that listen, and the lock.
    pub listeners: Listeners,
    /// What the data listener is to do.
    pub data: &'a watch::Sender<ListenerPhase>,
    /// What the admin listener is to do.
    pub admin: &'a watch::Sender<ListenerPhase>,
    /// The most connections of each.
    pub connections: usize,
}

impl Successor {
    /// Starts `program` and waits until it is able to serve; what it says of its configuration. Without that there is no
    /// process left.
    async fn start(
        program: &Path,
        listeners: &Listeners,
        config: &Value,
    ) -> Result<(Self, Vec<String>), TakeoverError> {
        let (socket, child) = startup::start_successor(program)?;
        let socket = PacketSocket::connected(socket).map_err(TakeoverError::Handed)?;
        let mut successor = Self { socket: Arc::new(socket), child };
        let Listeners { data, admin, control, lock } = listeners;
        let handed = [data.as_raw_fd(), admin.as_raw_fd(), control.as_raw_fd(), lock.as_raw_fd()];
        let prepared = async {
            successor.tell(&ToSuccessor::Take { protocol: PROTOCOL, config: config.clone() }, &handed).await?;
            match successor.hear().await? {
                FromSuccessor::Prepared { changes } => Ok(changes),
                FromSuccessor::Failed { message } => Err(TakeoverError::Failed(message)),
                FromSuccessor::Serving { .. } => Err(TakeoverError::Order(WHO)),
            }
        };
        match prepared.await {
            Ok(changes) => Ok((successor, changes)),
            Err(error) => {
                successor.end();
                Err(error)
            }
        }
    }

    /// Tells it that the node is its own; whether it speaks TLS with clients.
    async fn relieve(&self, busy: &BTreeMap<InstanceId, u32>) -> Result<bool, TakeoverError> {
        self.tell(&ToSuccessor::Yours { busy: busy.clone() }, &[]).await?;
        match self.hear().await? {
            FromSuccessor::Serving { listen: _, tls } => Ok(tls),
            FromSuccessor::Failed { message } => Err(TakeoverError::Failed(message)),
            FromSuccessor::Prepared { .. } => Err(TakeoverError::Order(WHO)),
        }
    }

    async fn tell(&self, message: &ToSuccessor, fds: &[RawFd]) -> Result<(), TakeoverError> {
        self.socket.send_with(message, fds).await.map_err(|error| TakeoverError::Wire(WHO, error))
    }

    async fn give(&self, stream: &TcpStream, listener: Listener) -> Result<(), TakeoverError> {
        self.tell(&ToSuccessor::Connection { listener }, &[stream.as_raw_fd()]).await
    }

    async fn hear(&self) -> Result<FromSuccessor, TakeoverError> {
        let heard = tokio::time::timeout(ANSWERS_WITHIN, self.socket.receive()).await;
        heard.map_err(|_| TakeoverError::Silent(ANSWERS_WITHIN))?.map_err(|error| TakeoverError::Wire(WHO, error))
    }

    /// It is of no use.
    fn end(&mut self) {
        // Neither fails but for a process that has ended, and then nothing is left to do.
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

/// Hands the node over to a new process of `program`. `done` is told when the successor serves, or why there is none;
/// returns when all that was taken here is `answered`, or at once with an error when there is no successor. `Ok(false)`:
/// nothing has changed, this scheduler serves on.
///
/// # Errors
/// It was able to serve and then did not, nor did one of this scheduler's own program: nobody serves.
pub async fn hand_over(
    program: &Path,
    estate: Estate<'_>,
    answered: impl Future<Output = ()>,
    done: impl FnOnce(Result<Upgrade, String>),
) -> Result<bool, TakeoverError> {
    let Estate { node, config, listeners, data, admin, connections } = estate;
    let (mut successor, changes) = match Successor::start(program, &listeners, config).await {
        Ok(prepared) => prepared,
        Err(error) => {
            let error = omni_log::chain(&error);
            tracing::error!(message_id = Kind::NotHandedOver.id(), error, "no takeover: this scheduler serves on");
            done(Err(error));
            return Ok(false);
        }
    };
    tracing::info!(successor = successor.child.id(), "handing over");
    data.send_replace(ListenerPhase::Paused);
    admin.send_replace(ListenerPhase::Paused);
    let (told, mut tells) = mpsc::channel(startup::MOST_INSTANCES);
    let busy = node.leave(&told).await;
    drop(told);
    node.context.state.close().await; // before the successor reads it
    let tls = match successor.relieve(&busy).await {
        Ok(tls) => tls,
        Err(error) => {
            tracing::error!(error = omni_log::chain(&error), "the successor failed: the program of before takes over");
            successor.end();
            (successor, _) = Successor::start(Path::new(OWN_PROGRAM), &listeners, config).await?;
            successor.relieve(&busy).await?
        }
    };
    drop(listeners); // who connects from now on is the successor's
    let pid = successor.child.id();
    service::succeeded(pid);
    tracing::info!(
        message_id = Kind::HandedOver.id(),
        successor = pid,
        "the successor serves; finishing what was taken here"
    );
    node.serves_elsewhere(Heir::new(Arc::clone(&successor.socket)));
    let (to_data, mut from_data) = mpsc::channel(connections);
    let (to_admin, mut from_admin) = mpsc::channel(connections);
    // What is plain here would be taken for TLS there, and should not go on for long.
    data.send_replace(if tls { ListenerPhase::ClosingAfterResponse } else { ListenerPhase::HandingOver(to_data) });
    admin.send_replace(ListenerPhase::HandingOver(to_admin));
    done(Ok(Upgrade { pid, changes }));
    let mut answered = std::pin::pin!(answered);
    let is_alone = loop {
        let told = tokio::select! {
            biased;
            Some(stream) = from_data.recv() => successor.give(&stream, Listener::Data).await,
            Some(stream) = from_admin.recv() => successor.give(&stream, Listener::Admin).await,
            Some((model, instance, requests)) = tells.recv() => {
                successor.tell(&ToSuccessor::Has { model, instance, requests }, &[]).await
            }
            () = &mut answered => break false,
        };
        if let Err(TakeoverError::Wire(_, PacketError::Closed)) = told {
            tracing::warn!("the successor has ended already");
            break true;
        }
    };
    if is_alone {
        // Who still waits to be handed over would wait in vain.
        drop((from_data, from_admin, tells));
        answered.await;
    }
    Ok(true)
}
