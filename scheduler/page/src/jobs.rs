//! Batches as the page shows them. Pure.

use crate::text::ending;
use omni_control_api::Job;
use serde::Serialize;

/// A batch.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct JobRow {
    id: String,
    endpoint: String,
    model: Option<String>,
    status: String,
    total: u64,
    completed: u64,
    failed: u64,
    created_ms: u64,
    expires_ms: u64,
    ended_ms: Option<u64>,
    /// Name of the token that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    /// First fault for which it was refused, or for which requests of it wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
}

impl JobRow {
    pub(crate) fn new(job: &Job) -> Self {
        Self {
            id: job.id.clone(),
            endpoint: job.endpoint.clone(),
            model: job.model.clone(),
            status: job.status.clone(),
            total: job.total,
            completed: job.completed,
            failed: job.failed,
            created_ms: job.created_unix_ms,
            expires_ms: job.expires_unix_ms,
            ended_ms: job.ended_unix_ms,
            owner: Some(job.owner.clone()).filter(|owner| !owner.is_empty()),
            fault: job.errors.iter().chain(&job.waits).next().map(|fault| ending(fault)),
        }
    }

    /// The batch as anyone may see it.
    pub(crate) fn for_anyone(&self) -> Self {
        Self { owner: None, fault: None, ..self.clone() }
    }
}
