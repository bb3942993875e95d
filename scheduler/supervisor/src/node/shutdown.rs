//! End of the node: after the requests in flight, or at once.

use super::Node;
use crate::model::Message;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Longest wait for the end of all models at shutdown, beyond their own drain.
const SHUTDOWN_MARGIN: Duration = Duration::from_secs(20);
/// Longest wait for the models' actors to take the message.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

impl Node {
    /// Stops every model and waits for their ends. Requests in flight may finish within each model's drain.
    pub async fn shut_down(&self) {
        self.draining.store(true, Ordering::Release);
        self.end_foreign();
        let models = self.models();
        let limit = self.longest_drain() + SHUTDOWN_MARGIN;
        let all_ended = async {
            for model in &models {
                let _ = model.send(Message::Removed).await;
            }
            for model in &models {
                let mut view = model.subscribe();
                while view.changed().await.is_ok() {}
            }
        };
        if tokio::time::timeout(limit, all_ended).await.is_err() {
            tracing::error!(?limit, "some models did not end; their workers are left to the launcher");
        }
        self.launcher.quit().await;
    }

    /// Longest drain of all models.
    #[must_use]
    pub fn longest_drain(&self) -> Duration {
        let contents = self.models().into_iter().filter_map(|model| model.admission().content);
        contents.map(|content| content.manifest.timeouts.drain).max().unwrap_or_default()
    }

    /// Kills every instance, busy or not, and has the launcher end. Each worker gets the message over its own socket, too,
    /// as there may be no launcher.
    pub async fn end_now(&self) {
        let sent = async {
            for model in &self.models() {
                let _ = model.send(Message::Kill).await; // a model that has ended has no instances
            }
        };
        let _ = tokio::time::timeout(KILL_TIMEOUT, sent).await;
        self.launcher.quit_now().await;
    }
}
