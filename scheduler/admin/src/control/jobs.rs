//! Batches of the node, of all owners.

use super::{Control, Refusal, json};
use hyper::{Response, StatusCode};
use omni_control_api::{Job, Jobs, Model, State};
use omni_inference::{AnswerBody, JobsHandle};
use omni_jobs::{Batch, BatchId, Form, JobError, JobStore, Page, Scope, UnixMillis, Work};
use omni_supervisor::clock::unix_ms;
use std::collections::BTreeMap;

/// Batches that are listed.
const LISTED: usize = 100;
/// Characters of a model's reason.
const REASON_WIDTH: usize = 200;

/// The newest batches.
pub(super) async fn list(control: &Control) -> Result<Response<AnswerBody>, Refusal> {
    let store = store(control).await?;
    let batches =
        store.batches(Scope::Node, Page { after: None, limit: LISTED }).await.map_err(|error| refusal(&error))?;
    let obstacles = Obstacles::read(control, &store).await;
    Ok(json(&Jobs {
        jobs: batches.into_iter().map(|batch| obstacles.job(batch)).collect(),
        disk_bytes: store.disk_used(),
        disk_bytes_limit: control.config.jobs.disk.bytes(),
    }))
}

/// The newest batches; none while the store is not open or cannot be read, which its own messages say.
pub(crate) async fn newest(control: &Control, most: usize) -> Vec<Job> {
    let Some(store) = control.run.jobs().and_then(JobsHandle::opened) else { return Vec::new() };
    let batches = store.batches(Scope::Node, Page { after: None, limit: most }).await.unwrap_or_default();
    let obstacles = Obstacles::read(control, &store).await;
    batches.into_iter().map(|batch| obstacles.job(batch)).collect()
}

/// State of a batch.
pub(super) async fn show(control: &Control, id: &str) -> Result<Response<AnswerBody>, Refusal> {
    let store = store(control).await?;
    let batch = store.batch(Scope::Node, parse(id)?).await.map_err(|error| refusal(&error))?;
    Ok(json(&Obstacles::read(control, &store).await.job(batch)))
}

/// Cancels a batch.
pub(super) async fn cancel(control: &Control, id: &str) -> Result<Response<AnswerBody>, Refusal> {
    let now = UnixMillis(unix_ms());
    let batch = store(control).await?.cancel(Scope::Node, parse(id)?, now).await.map_err(|error| refusal(&error))?;
    Ok(json(&job(batch, Vec::new())))
}

/// Reasons for which requests of batches wait, whatever the load.
struct Obstacles(BTreeMap<BatchId, Vec<String>>);

impl Obstacles {
    /// Reads the requests that wait, and the state of their models; none while the store cannot be read.
    async fn read(control: &Control, store: &JobStore) -> Self {
        let work = store.work().await.unwrap_or_default();
        let mut obstacles = BTreeMap::<BatchId, Vec<String>>::new();
        for Work { batch, model, .. } in work.into_iter().filter(|work| work.pending > 0 && !work.stopping) {
            let obstacle = control.run.node().find(&model).and_then(|model| obstacle(&model.view()));
            if let Some(obstacle) = obstacle {
                obstacles.entry(batch).or_default().push(obstacle);
            }
        }
        Self(obstacles)
    }

    fn job(&self, batch: Batch) -> Job {
        let waits = self.0.get(&batch.id).cloned().unwrap_or_default();
        job(batch, waits)
    }
}

/// Reason for which a model takes no request now; `None`: it takes them, or starts for them.
fn obstacle(model: &Model) -> Option<String> {
    let name = &model.name;
    if model.held {
        return Some(format!("{name} was stopped by hand: `omnictl start {name}`"));
    }
    let reason = model.message.as_deref().or(model.directory.refused.as_deref());
    let reason = reason.and_then(|reason| reason.lines().rfind(|line| !line.trim().is_empty()));
    let reason: String = reason.unwrap_or("the node does not say why").chars().take(REASON_WIDTH).collect();
    match model.state {
        State::Failed => Some(format!("{name} cannot start: {reason}")),
        State::Stopped if model.version.is_none() => Some(format!("{name} is refused: {reason}")),
        State::Preparing => Some(format!("{name} is being prepared: its environment or its weights")),
        State::Stopped | State::Starting | State::Ready | State::Draining => None,
    }
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

fn job(batch: Batch, waits: Vec<String>) -> Job {
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
        waits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_takes_no_request_is_an_obstacle() {
        let model = |state, held, version: Option<&str>| Model {
            state,
            held,
            version: version.map(str::to_owned),
            message: Some("Traceback\n  File\nValueError: no\n".to_owned()),
            ..Model::unseen("m".to_owned())
        };
        for (model, expected) in [
            (model(State::Stopped, true, Some("v")), Some("m was stopped by hand: `omnictl start m`")),
            (model(State::Failed, false, Some("v")), Some("m cannot start: ValueError: no")),
            (model(State::Stopped, false, None), Some("m is refused: ValueError: no")),
            (model(State::Preparing, false, Some("v")), Some("m is being prepared: its environment or its weights")),
            (model(State::Stopped, false, Some("v")), None),
            (model(State::Ready, false, Some("v")), None),
        ] {
            assert_eq!(obstacle(&model).as_deref(), expected, "{model:?}");
        }
    }
}
