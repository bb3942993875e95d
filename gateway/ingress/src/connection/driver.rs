//! Polling of one connection: hyper's own future, and the timeouts that hyper does not have.
//!
//! Timeouts: for the first request, for a client to read its response, for an idle HTTP/2 connection. One timer serves the first two,
//! which never run at the same time.

use super::ConnectionConfig;
use super::socket::Socket;
use super::state::ConnectionState;
use crate::phase::ListenerPhase;
use hyper::body::{Body, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};

/// Time for the first request of a connection when all are closed: it may be on its way already, and would be reset.
const FIRST_REQUEST: Duration = Duration::from_secs(1);
/// Time for a client to close an HTTP/2 connection after its GOAWAY.
pub(super) const GOAWAY_GRACE: Duration = Duration::from_secs(5);

/// Hyper's part of a connection.
pub(super) trait HttpConnection {
    /// Polls the connection to its end: true if it ended without an error.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool>;

    /// Takes no further requests.
    fn shut_down(self: Pin<&mut Self>);
}

impl<S, B> HttpConnection for auto::Connection<'_, TokioIo<Socket>, S, TokioExecutor>
where
    S: hyper::service::Service<Request<Incoming>, Response = Response<B>>,
    S::Future: 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    TokioExecutor: auto::HttpServerConnExec<S::Future, B>,
{
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        Future::poll(self, context).map(|ended| ended.is_ok())
    }

    fn shut_down(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Drives a connection to its end. Returns whether hyper has finished it well.
pub(super) async fn drive<C: HttpConnection>(
    mut connection: Pin<Box<C>>,
    state: &Arc<ConnectionState>,
    config: &ConnectionConfig,
    mut phase: watch::Receiver<ListenerPhase>,
    is_tcp: bool,
) -> bool {
    let limits = config.limits;
    let mut phases = phase.clone();
    phases.mark_changed(); // the first turn looks at the phase as well
    let mut end_phase = pin!(async move { phase.wait_for(is_end).await.ok().map(|end| end.clone()) });
    let mut timer = pin!(tokio::time::sleep(limits.header_timeout));
    let mut idle = IdleTimeout::default();
    let (mut end, mut is_shut_down, mut awaits_first, mut read_by) = (None, false, true, None);
    poll_fn(|context| {
        state.io.begin_turn();
        state.wake_on_request_end(context);
        // `end_phase` wakes the task; polling it costs more than a look at whether the phase has changed.
        let has_changed = end.is_none() && phases.has_changed().unwrap_or(true);
        if has_changed {
            phases.mark_unchanged();
        }
        if has_changed && let Poll::Ready(change) = end_phase.as_mut().poll(context) {
            let change = change.unwrap_or(ListenerPhase::Closing); // the sender is gone: the listener is closed
            if matches!(change, ListenerPhase::Closing) && !state.requests.has_begun() {
                let first = timer.deadline().min(Instant::now() + FIRST_REQUEST);
                timer.as_mut().reset(first);
            }
            let end = end.insert(match change {
                ListenerPhase::HandingOver(_) if !is_tcp => ListenerPhase::ClosingAfterResponse,
                change => change,
            });
            state.deadlines.end(Instant::now().into_std());
            if matches!(end, ListenerPhase::ClosingAfterResponse) {
                state.end.close_after_next_response();
            }
        }
        // Until hyper has told the two versions apart, which can be never, it has no timeout of its own.
        awaits_first &= !state.requests.has_begun();
        if awaits_first && read_by.is_none() && timer.as_mut().poll(context).is_ready() {
            return Poll::Ready(false);
        }
        loop {
            // A client that breaks the protocol or the connection is answered by hyper, as far as possible.
            if let Poll::Ready(went_well) = connection.as_mut().poll(context) {
                return Poll::Ready(went_well);
            }
            state.end_turn();
            state.wake_on_request_end(context);
            // While the client reads nothing, hyper polls nothing of the response, not even its deadline.
            if let Some(deadline) = state.deadlines.next() {
                if read_by.replace(deadline) != Some(deadline) {
                    timer.as_mut().reset(deadline.into());
                }
                if timer.as_mut().poll(context).is_ready() || state.deadlines.is_evicted(context) {
                    state.end.cut();
                    return Poll::Ready(false);
                }
            }
            let expired = idle.poll(state, limits.header_timeout, context);
            if expired == Some(IdleExpiry::GoawayIgnored) {
                return Poll::Ready(false);
            }
            if is_shut_down || !(expired.is_some() || end.as_ref().is_some_and(|end| may_shut_down(end, state))) {
                return Poll::Pending;
            }
            if expired.is_some() {
                config.check.metrics.closed("idle");
            }
            is_shut_down = true;
            state.end.on_shutdown();
            connection.as_mut().shut_down();
        }
    })
    .await
}

/// Timeout of an idle HTTP/2 connection, which pings alone do not keep.
#[derive(Default)]
struct IdleTimeout {
    /// Made at the first poll after a request.
    timer: Option<Pin<Box<Sleep>>>,
    has_expired: bool,
}

/// Expiry of the idle timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IdleExpiry {
    /// Idle for too long: the client gets a GOAWAY.
    Idle,
    /// The client has not closed the connection after its GOAWAY.
    GoawayIgnored,
}

impl IdleTimeout {
    fn poll(&mut self, state: &ConnectionState, timeout: Duration, context: &mut Context<'_>) -> Option<IdleExpiry> {
        if !state.io.is_http2() || !state.requests.has_begun() {
            return None; // hyper's own timeout, or that of the first request
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        while timer.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            // The timeout of a connection in use is checked again: it starts at the end of the last response, and is not over before.
            let expiry = state.idle_since().unwrap_or(now) + timeout;
            if state.idle_since().is_some() && expiry <= now {
                timer.as_mut().reset(now + GOAWAY_GRACE);
                let again = std::mem::replace(&mut self.has_expired, true);
                return Some(if again { IdleExpiry::GoawayIgnored } else { IdleExpiry::Idle });
            }
            timer.as_mut().reset(expiry);
        }
        None
    }
}

fn is_end(phase: &ListenerPhase) -> bool {
    match phase {
        ListenerPhase::Accepting | ListenerPhase::Paused => false,
        ListenerPhase::Closing | ListenerPhase::HandingOver(_) | ListenerPhase::ClosingAfterResponse => true,
    }
}

/// Returns true if hyper may shut the connection down now; an HTTP/1.1 connection is handed to the successor then.
fn may_shut_down(end: &ListenerPhase, state: &ConnectionState) -> bool {
    match end {
        ListenerPhase::Accepting | ListenerPhase::Paused => false,
        ListenerPhase::Closing => state.requests.has_begun() || state.io.is_http2(),
        ListenerPhase::ClosingAfterResponse => state.io.is_http2(), // over HTTP/1.1 a response says so
        ListenerPhase::HandingOver(_) if state.io.is_http2() => true,
        ListenerPhase::HandingOver(successor) if state.is_idle() => {
            state.end.hand_off(successor.clone());
            true
        }
        ListenerPhase::HandingOver(_) => false,
    }
}
