//! Scheduler and successor: a `SOCK_SEQPACKET` pair that the successor finds as its standard input.
//!
//! A planned takeover. Both run until everything that the first one took is answered, so no client is refused:
//!
//! | the scheduler that serves | its successor |
//! | --- | --- |
//! | `take`, with its configuration and four descriptors | → reads the configuration as it is now, is able to serve |
//! | ← | `prepared`, with what is new in the configuration, or `failed`: then nothing has changed |
//! | lets go of launcher, workers and state | |
//! | `yours` | → adopts the instances, listens |
//! | ← | `serving` |
//! | `asks`, with a socket for a request that no instance has | → answers it |
//! | `connection`, with a client's connection on which nothing is in the air | → serves it |
//! | `has`: an instance has answered some of what it was sent before | → sends it as many more |
//!
//! The end of the connection releases everything.

use crate::id::InstanceId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Version of this wire. The two are of two versions by nature; a successor that cannot follow says `failed`.
pub const PROTOCOL: u32 = 1;

/// To the successor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum ToSuccessor {
    /// The first message. Brings what listens for requests, for questions about health, for the control API, and the
    /// lock of the runtime directory.
    Take {
        /// The speaker's [`PROTOCOL`].
        protocol: u32,
        /// Configuration of the sender; the successor lists the changes for the operator.
        config: serde_json::Value,
    },
    /// The node is the successor's from now on.
    Yours {
        /// Instances that still work for the speaker, and how many requests each has of it.
        busy: BTreeMap<InstanceId, u32>,
        /// Instances whose lines are in the node's log up to these numbers, so that none is written there twice.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        logged: BTreeMap<InstanceId, u64>,
    },
    /// An instance has fewer requests of the sender now.
    Has {
        /// Name of its model.
        model: String,
        /// Which.
        instance: InstanceId,
        /// Requests of the speaker that it has still. With 0 it is the successor's alone.
        requests: u32,
    },
    /// Brings one end of a socket pair, over which the sender forwards one request for models that it took and no
    /// instance has. So it needs no listener, and not the client's protocol.
    Asks {
        /// The request was within its token's limits when it came, and is not counted again.
        admitted: bool,
    },
    /// Brings a client's connection, between two requests of HTTP/1.1, without TLS.
    Connection {
        /// Where it was accepted.
        listener: Listener,
    },
}

/// Listener that accepted a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Listener {
    /// Requests.
    Data,
    /// Health, metrics, capacity.
    Admin,
}

/// From the successor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum FromSuccessor {
    /// The successor has all that it needs.
    Prepared {
        /// A line for each key of its configuration that differs from the sender's.
        changes: Vec<String>,
    },
    /// The successor cannot serve, and ends. Nothing has changed.
    Failed {
        /// Why, for the operator.
        message: String,
    },
    /// The successor takes requests.
    Serving {
        /// Where.
        listen: SocketAddr,
        /// Clients have to use TLS there, also those that are connected.
        tls: bool,
    },
}
