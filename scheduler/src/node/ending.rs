//! The end of the node when it must not take longer: no request is waited for.

use super::Node;
use crate::model::Message;
use std::time::Duration;

/// For the models' tasks to hear of it.
const HEARD_WITHIN: Duration = Duration::from_secs(1);

impl Node {
    /// Kills every instance, whatever it does, and has the launcher end.
    pub async fn end_now(&self) {
        let told = async {
            for model in &self.models() {
                let _ = model.tell(Message::Removed).await; // one that has ended needs no telling
            }
        };
        let _ = tokio::time::timeout(HEARD_WITHIN, told).await;
        self.launcher.quit_now().await;
    }
}
