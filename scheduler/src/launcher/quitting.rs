//! The end of the node, as the launcher is told of it.

use super::LauncherHandle;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::launcher::ToLauncher;
use std::time::Duration;

/// For the launcher's last workers to end. Under systemd it stays, and this is waited for in vain: keep it short.
const QUIT_WITHIN: Duration = Duration::from_secs(3);

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

    /// Tells the launcher that the node ends, and waits until it has closed the connection: nothing is left then.
    pub async fn quit(&self) {
        let mut connected = self.connected.subscribe();
        self.routes().quitting = true;
        let told = async {
            loop {
                let _ = connected.wait_for(|connected| *connected).await;
                if self.outbox.send(ToLauncher::Quit).await.is_err() {
                    return;
                }
                let _ = connected.wait_for(|connected| !connected).await;
                // One that makes way has not read it: the next one is told.
                if self.routes().renewals == 0 {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(QUIT_WITHIN, told).await;
    }
}
