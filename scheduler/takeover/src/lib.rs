//! Planned takeover: a scheduler starts its successor, a new process of the program that is on disk now, and hands it the node while both
//! run. `omnictl upgrade` requests it; the messages are in `omni_node_protocol::takeover`.
//!
//! ```text
//! predecessor                                   successor
//! start ───────────── sockets, configuration ─▶ set up
//!        ◀──────────────────────────── prepared
//! accept nothing, release instances
//!        ─────────── yours, unfinished work ──▶ adopt all instances, listen
//!        ◀───────────────────────────── serving
//! forward requests, hand over idle connections, finish open requests, end
//! ```
//!
//! Invariants: until the successor is prepared, nothing has changed here. From then on, an instance answers the requests of this scheduler that
//! it has already, over its existing data connection; all others are forwarded to the successor. No connection is refused, and none is
//! closed while a request may be on its way.

#![forbid(unsafe_code)]

mod changes;
mod listeners;
mod predecessor;
mod program;
mod successor;

pub use listeners::Listeners;
pub use predecessor::{Inheritance, InheritedSenders, Predecessor};
pub use successor::{Handover, hand_over};

use omni_control_api::Upgrade;
use omni_engine_protocol::packet::PacketError;
use omni_node_protocol::takeover::PROTOCOL;
use omni_supervisor::Node;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Sender of the result of a takeover to its requester.
pub type UpgradeReply = oneshot::Sender<Result<Upgrade, String>>;

/// Reason for the refusal of a second takeover.
pub const ALREADY_REQUESTED: &str = "the node is being taken over already";

/// Requests a takeover once the node can be handed over, and returns the receiver of its result.
///
/// # Errors
/// Reason why it cannot be handed over.
pub async fn request(
    node: &Node,
    upgrades: &mpsc::Sender<UpgradeReply>,
) -> Result<oneshot::Receiver<Result<Upgrade, String>>, String> {
    node.can_be_handed_over().await?;
    let (answer, answered) = oneshot::channel();
    upgrades.try_send(answer).map_err(|_| ALREADY_REQUESTED.to_owned())?;
    Ok(answered)
}

/// Failure of a takeover.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// Successor that cannot be started.
    #[error("the successor could not be started: cannot {step} {}", program.display())]
    Start {
        /// The step, as a verb.
        step: &'static str,
        /// Program of the successor.
        program: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// Broken connection between the two.
    #[error("the connection to the {0} is broken")]
    Connection(&'static str, #[source] PacketError),
    /// Successor that cannot serve, with its reason.
    #[error("the successor cannot serve: {0}")]
    Failed(String),
    /// Successor that does not reply.
    #[error("the successor did not reply within {0:?}")]
    NoReply(Duration),
    /// Message out of order.
    #[error("the {0} sent a message out of order")]
    Order(&'static str),
    /// Predecessor of an incompatible version.
    #[error(
        "the running scheduler hands over in version {0}, this one takes version {PROTOCOL}: kill -USR2 it, then start this one"
    )]
    Version(u32),
    /// Socket of a takeover that cannot be used.
    #[error("a socket of the takeover cannot be used")]
    Socket(#[source] io::Error),
}
