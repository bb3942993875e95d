//! Use of resources by running instances, as their workers report it.

use omni_node_protocol::instance::{GpuUsage, Stats};
use omni_supervisor::model::{Message, Model};
use omni_supervisor::node::Node;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Time for workers to report their use; those that do not are left out.
const STATS_TIMEOUT: Duration = Duration::from_millis(300);

/// Length of the queue of reports, which is more than a model has instances.
const REPORTS: usize = 4096;

/// Queries the use of every running instance, all at once; the sum for each model.
pub(crate) async fn resource_use(node: &Node) -> Vec<(Arc<Model>, Option<Stats>)> {
    let mut asked = Vec::new();
    for model in node.models() {
        let (sender, receiver) = mpsc::channel(REPORTS);
        if model.send(Message::Stats(sender)).await {
            asked.push((model, receiver));
        }
    }
    let limit = tokio::time::Instant::now() + STATS_TIMEOUT;
    let mut all = Vec::with_capacity(asked.len());
    for (model, mut receiver) in asked {
        let mut sum = None;
        // Ends when all have reported, or are gone.
        while let Ok(Some(stats)) = tokio::time::timeout_at(limit, receiver.recv()).await {
            sum = Some(sum.map_or(stats, |sum| sum_of(sum, &stats)));
        }
        model.metrics.memory.set(sum.map_or(0, |sum| i64::try_from(sum.memory_bytes).unwrap_or(i64::MAX)));
        all.push((model, sum));
    }
    all
}

fn sum_of(a: Stats, b: &Stats) -> Stats {
    let gpu = match (a.gpu, b.gpu) {
        (Some(a), Some(b)) => Some(GpuUsage {
            managed_bytes: a.managed_bytes.saturating_add(b.managed_bytes),
            resident_bytes: a.resident_bytes.saturating_add(b.resident_bytes),
            device_bytes: a.device_bytes.saturating_add(b.device_bytes),
            host_bytes: a.host_bytes.saturating_add(b.host_bytes),
        }),
        (one, other) => one.or(other),
    };
    Stats {
        memory_bytes: a.memory_bytes.saturating_add(b.memory_bytes),
        memory_limit_bytes: a.memory_limit_bytes.saturating_add(b.memory_limit_bytes),
        cpu_usec: a.cpu_usec.saturating_add(b.cpu_usec),
        pids: a.pids.saturating_add(b.pids),
        pss_bytes: a.pss_bytes.map_or(b.pss_bytes, |bytes| Some(bytes.saturating_add(b.pss_bytes.unwrap_or(0)))),
        gpu,
    }
}
