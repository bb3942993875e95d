//! What the service manager is told, in the protocol of `sd_notify(3)`; nothing where there is none.
//!
//! [`crate::serve`] speaks for the process that serves, [`crate::takeover`] for the moment at which that becomes another
//! one. Nothing here fails: a manager that does not listen cannot be helped.

use crate::node::Node;
use sd_notify::NotifyState;
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

/// For the manager to take in what it was told.
const HEARS_WITHIN: Duration = Duration::from_secs(5);

/// What it is told of the process that serves.
#[derive(Debug, Default)]
pub struct Service {
    /// The line of `systemctl status`, as it was said.
    said: String,
}

/// This process serves, or serves on after a reload.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// A reload that the manager asked for has begun; [`ready`] or [`succeeded`] ends it.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "the service manager is not told of the reload: there is no clock"),
    }
}

/// Another process serves from now on.
pub fn succeeded(by: u32) {
    tell(&[NotifyState::MainPid(by), NotifyState::Ready]);
}

/// Returns when the manager has taken in all that it was told. Until then a signal of it may be meant for a process that was
/// told to be its main one and is not yet.
pub async fn is_heard() {
    // The manager closes this descriptor in the order of the messages (`sd_notify_barrier(3)`).
    let Ok((held, mut closed)) = pipe::pipe() else { return };
    let asked = sd_notify::notify_with_fds(&[NotifyState::Custom("BARRIER=1")], &[held.as_fd()]);
    drop(held);
    if asked.is_ok() {
        let _ = tokio::time::timeout(HEARS_WITHIN, closed.read(&mut [0])).await; // its end, or nobody hears
    }
}

/// Whether there is a manager.
pub fn is_managed() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// The end has begun.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

impl Service {
    /// Says how the node is, when that has changed.
    pub fn status(&mut self, listen: &str, node: &Node) {
        if !is_managed() {
            return;
        }
        let models: Vec<_> = node.models().iter().map(|model| model.view().state).collect();
        let status = status(listen, &models, node.launcher.connected());
        if status != self.said {
            tell(&[NotifyState::Status(&status)]);
            self.said = status;
        }
    }
}

fn tell(state: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(state); // no service manager: nobody to tell
}

/// One line: where, how many models and how they are, and what is wrong with the node.
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
    fn the_line_says_how_many_and_what_is_wrong() {
        let line = |models: &[State], launcher| status("127.0.0.1:8080", models, launcher);
        assert_eq!(line(&[], true), "Serving on 127.0.0.1:8080: 0 models, 0 ready");
        assert_eq!(line(&[State::Ready, State::Stopped], true), "Serving on 127.0.0.1:8080: 2 models, 1 ready");
        assert_eq!(
            line(&[State::Failed], false),
            "Serving on 127.0.0.1:8080: 1 models, 0 ready, 1 failed; no launcher: nothing can be started"
        );
    }
}
