//! Batches of the node, of all owners.

use super::{Control, Refusal, json};
use hyper::{Response, StatusCode};
use omni_control_api::{Job, Jobs};
use omni_inference::{AnswerBody, JobsHandle};
use omni_jobs::{Batch, BatchId, Form, JobError, JobStore, Page, Scope, UnixMillis};
use omni_supervisor::clock::unix_ms;

/// Batches that are listed.
const LISTED: usize = 100;

/// The newest batches.
pub(super) async fn list(control: &Control) -> Result<Response<AnswerBody>, Refusal> {
    let store = store(control).await?;
    let batches =
        store.batches(Scope::Node, Page { after: None, limit: LISTED }).await.map_err(|error| refusal(&error))?;
    Ok(json(&Jobs {
        jobs: batches.into_iter().map(job).collect(),
        disk_bytes: store.disk_used(),
        disk_bytes_limit: control.config.jobs.disk.bytes(),
    }))
}

/// The newest batches; none while the store is not open or cannot be read, which its own messages say.
pub(crate) async fn newest(control: &Control, most: usize) -> Vec<Job> {
    let Some(store) = control.run.jobs().and_then(JobsHandle::opened) else { return Vec::new() };
    let batches = store.batches(Scope::Node, Page { after: None, limit: most }).await.unwrap_or_default();
    batches.into_iter().map(job).collect()
}

/// State of a batch.
pub(super) async fn show(control: &Control, id: &str) -> Result<Response<AnswerBody>, Refusal> {
    let batch = store(control).await?.batch(Scope::Node, parse(id)?).await.map_err(|error| refusal(&error))?;
    Ok(json(&job(batch)))
}

/// Cancels a batch.
pub(super) async fn cancel(control: &Control, id: &str) -> Result<Response<AnswerBody>, Refusal> {
    let now = UnixMillis(unix_ms());
    let batch = store(control).await?.cancel(Scope::Node, parse(id)?, now).await.map_err(|error| refusal(&error))?;
    Ok(json(&job(batch)))
}

async fn store(control: &Control) -> Result<JobStore, Refusal> {
    let unavailable = |status, detail: &str| Refusal { status, kind: "about:blank", detail: detail.to_owned() };
    let jobs = control.run.jobs();
    let jobs =
        jobs.ok_or_else(|| unavailable(StatusCode::CONFLICT, "this node takes no batch jobs: [jobs] enabled"))?;
    jobs.store().await.map_err(|failure| unavailable(StatusCode::SERVICE_UNAVAILABLE, &failure.to_string()))
}

fn parse(id: &str) -> Result<BatchId, Refusal> {
    BatchId::parse(id).ok_or_else(|| refusal(&JobError::NoBatch))
}

fn refusal(error: &JobError) -> Refusal {
    let (status, kind) = match error {
        JobError::NoBatch => (StatusCode::NOT_FOUND, "no-such-batch"),
        JobError::Ended(_) => (StatusCode::CONFLICT, "ended"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "about:blank"),
    };
    Refusal { status, kind, detail: error.to_string() }
}

fn job(batch: Batch) -> Job {
    let status = batch.status().name().to_owned();
    let fault = |error: omni_jobs::LineError| match error.line {
        Some(line) => format!("line {line}: {}", error.message),
        None => error.message,
    };
    Job {
        id: batch.id.to_string(),
        owner: batch.owner,
        endpoint: match batch.form {
            Form::OpenAi { endpoint } => endpoint,
            Form::WorkersAi { .. } => "/ai/run".to_owned(),
        },
        model: batch.model,
        status,
        total: batch.counts.total,
        completed: batch.counts.completed,
        failed: batch.counts.failed,
        input_tokens: batch.usage.input,
        output_tokens: batch.usage.output,
        created_unix_ms: batch.times.created.0,
        expires_unix_ms: batch.times.expires.0,
        ended_unix_ms: batch.times.ended.map(|at| at.0),
        errors: batch.errors.into_iter().map(fault).collect(),
    }
}
