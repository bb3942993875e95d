//! Notifications of the service manager, in the protocol of `sd_notify(3)`; no-ops where there is none.
//!
//! Errors are ignored: there is no other way to notify the manager.

use omni_supervisor::node::Node;
use sd_notify::NotifyState;
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

/// Time for the manager to process notifications.
const BARRIER_TIMEOUT: Duration = Duration::from_secs(5);

/// Status line of the service, in `systemctl status`.
#[derive(Debug, Default)]
pub(crate) struct StatusLine {
    /// Status line that was sent last.
    sent: String,
}

/// Notifies that this process serves, or still serves after a reload.
pub(crate) fn ready() {
    notify(&[NotifyState::Ready]);
}

/// Notifies that a reload has begun, which the manager requested. [`ready`] or [`main_pid`] ends it.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => {
            tracing::warn!(%error, "the service manager is not notified of the reload: the clock cannot be read");
        }
    }
}

/// Notifies that the process with this pid serves from now on.
pub(crate) fn main_pid(pid: u32) {
    notify(&[NotifyState::MainPid(pid), NotifyState::Ready]);
}

/// Waits until the manager has processed all notifications. Until then it may signal another process than the main process that was
/// notified last.
pub(crate) async fn barrier() {
    // The manager closes this descriptor in the order of the messages (`sd_notify_barrier(3)`).
    let Ok((writer, mut reader)) = pipe::pipe() else { return };
    let sent = sd_notify::notify_with_fds(&[NotifyState::Custom("BARRIER=1")], &[writer.as_fd()]);
    drop(writer);
    if sent.is_ok() {
        let _ = tokio::time::timeout(BARRIER_TIMEOUT, reader.read(&mut [0])).await; // closed by the manager, or there is none
    }
}

/// Returns true if there is a service manager.
pub(crate) fn is_managed() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Notifies that the service has begun to end.
pub(crate) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

impl StatusLine {
    /// Sends the status line when it has changed.
    pub(crate) fn update(&mut self, listen: &str, node: &Node) {
        if !is_managed() {
            return;
        }
        let models: Vec<_> = node.models().iter().map(|model| model.view().state).collect();
        let status = status(listen, &models, node.launcher.connected());
        if status != self.sent {
            notify(&[NotifyState::Status(&status)]);
            self.sent = status;
        }
    }
}

fn notify(state: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(state); // fails without a service manager
}

/// Status line: address, number and states of the models, problems of the node.
fn status(listen: &str, models: &[omni_control_api::State], launcher: bool) -> String {
    let ready = models.iter().filter(|state| **state == omni_control_api::State::Ready).count();
    let failed = models.iter().filter(|state| **state == omni_control_api::State::Failed).count();
    let mut line = format!("Serving on {listen}: {} models, {ready} ready", models.len());
    if failed > 0 {
        line += &format!(", {failed} failed");
    }
    if !launcher {
        line += "; no launcher: nothing can be started";
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_control_api::State;

    #[test]
    fn the_status_line_has_states_and_problems() {
        let line = |models: &[State], launcher| status("127.0.0.1:8080", models, launcher);
        assert_eq!(line(&[], true), "Serving on 127.0.0.1:8080: 0 models, 0 ready");
        assert_eq!(line(&[State::Ready, State::Stopped], true), "Serving on 127.0.0.1:8080: 2 models, 1 ready");
        assert_eq!(
            line(&[State::Failed], false),
            "Serving on 127.0.0.1:8080: 1 models, 0 ready, 1 failed; no launcher: nothing can be started"
        );
    }
}
