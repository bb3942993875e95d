//! HTTP front of a node or a router: listeners with TLS, connections with their limits, bodies of requests, and the hand-over of
//! connections to a successor. It knows no model and no process: requests go to a handler that the binary gives it.
//!
//! ```text
//! listener ─▶ connection (one hyper, several limits that hyper has not) ─▶ check of the head ─▶ handler of the binary
//!                  │                                                                              │ body, forward
//!                  └─ hand-off: of an idle connection to a successor, of a large body to a model ◀┘
//! ```

#![forbid(unsafe_code)]

pub mod body;
mod body_handoff;
mod check;
mod connection;
pub mod descriptors;
pub mod forward;
mod limits;
mod listener;
mod metrics;
mod phase;
mod response;
pub mod response_headers;
pub mod tls;
mod whole_body;

pub use body_handoff::RawBodyHandoff;
pub use check::{HostNames, RenderRefusal, RequestCheck};
pub use connection::{AlreadyAdmitted, ClientStream, ConnectionConfig, http_builder};
pub use limits::ConnectionLimits;
pub use listener::{InheritedConnections, serve};
pub use metrics::HttpMetrics;
pub use phase::ListenerPhase;
pub use response::{BodyUnread, ReadDeadline, ResponseBody, ResponseGuard, StreamCut, reserve_response};
pub use whole_body::{receive_pieces, receive_whole};
