//! Services of the node that models use.

use crate::clock::{Clock, unix_ms};
use omni_capacity::CapacityHandle;
use omni_config::node::NodeConfig;
use omni_gpu::GpuHandle;
use omni_launcher_client::LauncherHandle;
use omni_node_protocol::id::InstanceId;
use omni_store::StateStore;
use omni_task::Watchdog;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Activity of the node: the number of models with requests, and when it last changed.
#[derive(Debug)]
pub(crate) struct Activity {
    busy_models: AtomicI64,
    changed_unix_ms: AtomicU64,
}

impl Default for Activity {
    fn default() -> Self {
        Self { busy_models: AtomicI64::new(0), changed_unix_ms: AtomicU64::new(unix_ms()) }
    }
}

impl Activity {
    /// A model became busy or idle.
    pub(crate) fn on_change(&self, is_busy: bool) {
        self.busy_models.fetch_add(if is_busy { 1 } else { -1 }, Ordering::Relaxed);
        self.touch();
    }

    /// Counts this moment as one of activity.
    pub(crate) fn touch(&self) {
        self.changed_unix_ms.store(unix_ms(), Ordering::Relaxed);
    }

    /// Time of the last activity, in milliseconds since the Unix epoch; `None` while a model has requests.
    #[must_use]
    pub(crate) fn idle_since(&self) -> Option<u64> {
        let is_busy = self.busy_models.load(Ordering::Relaxed) > 0;
        (!is_busy).then(|| self.changed_unix_ms.load(Ordering::Relaxed))
    }
}

/// Services of the node, as the actor of a model uses them.
#[derive(Debug, Clone)]
pub(crate) struct ModelServices {
    pub(crate) clock: Clock,
    pub(crate) config: Arc<NodeConfig>,
    pub(crate) runtime_dir: PathBuf,
    pub(crate) launcher: LauncherHandle,
    pub(crate) capacity: CapacityHandle,
    pub(crate) gpu: GpuHandle,
    pub(crate) store: Arc<StateStore>,
    pub(crate) activity: Arc<Activity>,
    pub(crate) watchdog: Watchdog,
}

impl ModelServices {
    /// Socket of an instance's worker.
    pub(crate) fn instance_socket(&self, id: &InstanceId) -> PathBuf {
        instances_dir(&self.runtime_dir).join(format!("{id}.sock"))
    }
}

/// Folder of the workers' sockets.
pub(crate) fn instances_dir(runtime_dir: &Path) -> PathBuf {
    runtime_dir.join("instances")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_is_idle_when_no_model_is_busy() {
        let activity = Activity::default();
        assert!(activity.idle_since().is_some());
        activity.on_change(true);
        activity.on_change(true);
        activity.on_change(false);
        assert_eq!(activity.idle_since(), None);
        activity.on_change(false);
        assert!(activity.idle_since().is_some());
    }
}
