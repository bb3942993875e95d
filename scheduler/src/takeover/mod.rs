//! A planned takeover: this scheduler starts its successor, a new process of the program that is on disk now, and hands
//! it the node while both run. `omnictl upgrade` asks for it; the messages are in `omni_node_protocol::takeover`.
//!
//! What always holds: until the successor has said that it is able to serve, nothing has changed here. From then on an
//! instance finishes for this scheduler what it has been sent, over the data connection of this life, and everything
//! else is asked again at the successor. No connection is refused, none is closed while a request may be in the air.

mod before;
mod changes;
mod heir;
mod predecessor;
mod successor;

pub use before::{Before, Working};
pub use heir::Heir;
pub use predecessor::{Handed, Predecessor};
pub use successor::{Estate, hand_over};

use crate::node::Node;
use crate::paths::PathError;
use omni_control_api::Upgrade;
use omni_engine_protocol::packet::PacketError;
use omni_node_protocol::takeover::PROTOCOL;
use std::io;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Hears what came of a takeover, or why there was none.
pub type Answer = oneshot::Sender<Result<Upgrade, String>>;

/// Why there is no second takeover.
pub const ALREADY: &str = "the node is being taken over already";

/// Asks for a takeover as soon as there can be one, and returns where its answer comes.
///
/// # Errors
/// Why there can be none.
pub async fn ask(
    node: &Node,
    upgrades: &mpsc::Sender<Answer>,
) -> Result<oneshot::Receiver<Result<Upgrade, String>>, String> {
    node.can_be_handed_over().await?;
    let (answer, answered) = oneshot::channel();
    upgrades.try_send(answer).map_err(|_| ALREADY.to_owned())?;
    Ok(answered)
}

/// A takeover did not come about.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// There is no successor.
    #[error("the successor could not be started")]
    Start(#[from] PathError),
    /// One of the two cannot be heard.
    #[error("the {0} cannot be spoken to")]
    Wire(&'static str, #[source] PacketError),
    /// The successor says why it cannot serve.
    #[error("the successor cannot serve: {0}")]
    Failed(String),
    /// It says nothing.
    #[error("the successor said nothing within {0:?}")]
    Silent(Duration),
    /// It says something else.
    #[error("the {0} does not keep to the order of a takeover")]
    Order(&'static str),
    /// The predecessor is of a version that cannot be followed.
    #[error(
        "the running scheduler hands over in version {0}, this one takes version {PROTOCOL}: kill -USR2 it, then start this one"
    )]
    Version(u32),
    /// A socket of the predecessor cannot be used.
    #[error("what the running scheduler has handed over cannot be used")]
    Handed(#[source] io::Error),
}
