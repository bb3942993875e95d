//! End of the node: the launcher ends with it.

use crate::handle::LauncherHandle;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::launcher::ToLauncher;
use std::time::Duration;

/// Bound on the wait for the launcher's last workers. Under systemd the launcher stays and the whole time passes: keep it
/// short.
const QUIT_TIMEOUT: Duration = Duration::from_secs(3);

impl LauncherHandle {
    /// Ends every instance at once, then as [`Self::quit`].
    pub async fn quit_now(&self) {
        let all: Vec<InstanceId> = self.routes().instances.keys().cloned().collect();
        all.into_iter().for_each(|instance| self.kill(instance));
        self.quit().await;
        if self.connected() {
            tracing::warn!("the launcher has not ended all instances yet: it ends with the last of them");
        }
    }

    /// Has the launcher end, and waits until it has closed the connection: no instance is left then.
    pub async fn quit(&self) {
        let mut connected = self.connected.subscribe();
        self.routes().quitting = true;
        let ended = async {
            loop {
                let _ = connected.wait_for(|connected| *connected).await;
                if self.outbox.send(ToLauncher::Quit).await.is_err() {
                    return;
                }
                let _ = connected.wait_for(|connected| !connected).await;
                // A launcher that restarts with another configuration has not read the request: its successor gets it.
                if self.routes().renewals == 0 {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(QUIT_TIMEOUT, ended).await;
    }
}
