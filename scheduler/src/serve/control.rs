//! Server of the control socket, restarted when the socket is bound again.

use omni_admin::control::Control;
use omni_admin::control_socket::{self, ControlConnections, SocketFile};
use std::os::unix::net::UnixListener;
use tokio::task::JoinHandle;
use tokio::time::Interval;

pub(super) struct ControlServer {
    control: Control,
    pub(super) connections: ControlConnections,
    file: SocketFile,
    task: JoinHandle<()>,
    pub(super) checks: Interval,
}

impl ControlServer {
    pub(super) fn start(listener: UnixListener, file: SocketFile, control: Control, limit: u32) -> Self {
        let connections = ControlConnections::new(limit);
        let task = tokio::spawn(control_socket::serve(listener, connections.clone(), control.clone()));
        let checks = tokio::time::interval(control_socket::CHECK_INTERVAL);
        Self { control, connections, file, task, checks }
    }

    /// Binds and serves the socket again when its file was removed. Returns a second descriptor of the new socket.
    pub(super) fn rebind_if_removed(&mut self) -> Option<UnixListener> {
        let [listener, second] = self.file.rebind_if_removed()?;
        self.stop_accepting();
        let serve = control_socket::serve(listener, self.connections.clone(), self.control.clone());
        self.task = tokio::spawn(serve);
        Some(second)
    }

    /// Stops accepting connections. Open ones are served to their end.
    pub(super) fn stop_accepting(&self) {
        self.task.abort();
    }
}
