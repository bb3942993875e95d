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
//! Invariants: until the successor is prepared, nothing has changed here. From then on an instance finishes for this scheduler the requests
//! that it was sent, over its existing data connection, and all others are forwarded to the successor. No connection is refused, none is
//! closed while a request may be in the air.

mod changes;
mod handle;
mod predecessor;
mod successor;
mod unfinished;

pub use handle::SuccessorHandle;
pub use predecessor::{InheritedSenders, Predecessor};
pub use successor::{Handover, hand_over};
pub use unfinished::{PredecessorWatch, UnfinishedWork};

use crate::node::Node;
use crate::paths::PathError;
use omni_control_api::Upgrade;
use omni_engine_protocol::packet::PacketError;
use omni_node_protocol::takeover::PROTOCOL;
use std::io;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Receiver of the result of a takeover.
pub type UpgradeReply = oneshot::Sender<Result<Upgrade, String>>;

/// Reason that a second takeover is refused for.
pub const ALREADY: &str = "the node is being taken over already";

/// Requests a takeover as soon as there can be one, and returns the receiver of its result.
///
/// # Errors
/// The reason that there can be none.
pub async fn request(
    node: &Node,
    upgrades: &mpsc::Sender<UpgradeReply>,
) -> Result<oneshot::Receiver<Result<Upgrade, String>>, String> {
    node.can_be_handed_over().await?;
    let (answer, answered) = oneshot::channel();
    upgrades.try_send(answer).map_err(|_| ALREADY.to_owned())?;
    Ok(answered)
}

/// Failure of a takeover.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// Successor that cannot be started.
    #[error("the successor could not be started")]
    Start(#[from] PathError),
    /// Broken connection between the two.
    #[error("the {0} cannot be spoken to")]
    Wire(&'static str, #[source] PacketError),
    /// Successor that cannot serve, with its reason.
    #[error("the successor cannot serve: {0}")]
    Failed(String),
    /// Successor without a reply.
    #[error("the successor said nothing within {0:?}")]
    Silent(Duration),
    /// Message out of order.
    #[error("the {0} does not keep to the order of a takeover")]
    Order(&'static str),
    /// Predecessor of an incompatible version.
    #[error(
        "the running scheduler hands over in version {0}, this one takes version {PROTOCOL}: kill -USR2 it, then start this one"
    )]
    Version(u32),
    /// Socket of the predecessor that cannot be used.
    #[error("what the running scheduler has handed over cannot be used")]
    Handed(#[source] io::Error),
}
