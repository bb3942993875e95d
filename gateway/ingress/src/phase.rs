//! Phases of a listener, which its connections follow.
//!
//! ```text
//! Accepting ─▶ Paused ─▶ HandingOver            (plain TCP here and at the successor)
//!     │           └────▶ ClosingAfterResponse   (TLS at the successor)
//!     └─────────────────▶ Closing
//! ```

use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// Phase of a listener.
#[derive(Debug, Clone)]
pub enum ListenerPhase {
    /// Connections are accepted and served.
    Accepting,
    /// No connection is accepted; those that are open are served on.
    Paused,
    /// Connections are closed as soon as their open requests are answered.
    Closing,
    /// Idle connections are handed to a successor, which has the listening socket.
    HandingOver(mpsc::Sender<TcpStream>),
    /// As `HandingOver`, for connections that cannot be handed over (TLS): each is closed after its next response.
    ClosingAfterResponse,
}
