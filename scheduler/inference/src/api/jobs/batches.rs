//! `/v1/batches`: creation, state, lists, cancellation.

use super::{JobsRequest, batch_id, failure, file_id, now};
use crate::answer::AnswerBody;
use hyper::Response;
use omni_ingress::body::IncomingBody;
use omni_jobs::{Batch, BatchId, Form, NewBatch, Page, Status};
use omni_openai::batch::{
    BatchErrors, BatchList, BatchObject, BatchUsage, InputDetails, LineFault, OutputDetails, PageQuery, RequestCounts,
    batch_request,
};
use omni_request_error::Failure;

impl JobsRequest<'_> {
    pub(super) async fn create(&self, incoming: &mut IncomingBody) -> Result<Response<AnswerBody>, Failure> {
        let (json, _permit) = self.request.receive_json(incoming).await?;
        let request = batch_request(&json)?;
        let new = NewBatch {
            owner: self.owner.to_owned(),
            input: file_id(&request.input_file_id)?,
            endpoint: request.endpoint,
            metadata: request.metadata,
            output_expires_after: request.output_expires_after,
        };
        let batch = self.store.create(new, now()).await.map_err(|error| failure(&error, "input_file_id"))?;
        self.respond(&object(batch))
    }

    pub(super) async fn batch(&self, id: BatchId) -> Result<Response<AnswerBody>, Failure> {
        self.respond(&object(self.find(id).await?))
    }

    /// Batch of this API.
    async fn find(&self, id: BatchId) -> Result<Batch, Failure> {
        let batch = self.store.batch(self.scope(), id).await.map_err(|error| failure(&error, "id"))?;
        match batch.form {
            Form::OpenAi { .. } => Ok(batch),
            Form::WorkersAi { .. } => Err(Failure::NoSuchJob("batch")),
        }
    }

    pub(super) async fn cancel(&self, id: BatchId) -> Result<Response<AnswerBody>, Failure> {
        self.find(id).await?;
        let batch = self.store.cancel(self.scope(), id, now()).await.map_err(|error| failure(&error, "id"))?;
        self.respond(&object(batch))
    }

    pub(super) async fn batches(&self) -> Result<Response<AnswerBody>, Failure> {
        let PageQuery { after, limit, purpose: _ } = PageQuery::parse(self.request.parts.uri.query())?;
        let after = after.map(|after| batch_id(&after)).transpose()?;
        let list = async |page| {
            let batches = self.store.batches(self.scope(), page).await;
            batches.map_err(|error| failure(&error, "after"))
        };
        let batches = list(Page { after, limit }).await?;
        let has_more = match batches.last().filter(|_| batches.len() == limit) {
            Some(last) => !list(Page { after: Some(last.id), limit: 1 }).await?.is_empty(),
            None => false,
        };
        self.respond(&BatchList::new(batches.into_iter().map(object).collect(), has_more))
    }
}

/// A batch in the form of the API.
fn object(batch: Batch) -> BatchObject {
    let (status, times, counts, usage) = (batch.status(), batch.times, batch.counts, batch.usage);
    let ended = |as_what: Status| times.ended.filter(|_| status == as_what).map(|at| at.seconds());
    let fault = |error: omni_jobs::LineError| {
        let omni_jobs::LineError { code, line, message, param } = error;
        LineFault { code, line, message, param }
    };
    BatchObject {
        id: batch.id.to_string(),
        object: "batch",
        endpoint: match batch.form {
            Form::OpenAi { endpoint } => endpoint,
            Form::WorkersAi { model } => format!("/ai/run/{model}"),
        },
        model: batch.model,
        errors: BatchErrors::new(batch.errors.into_iter().map(fault).collect()),
        input_file_id: batch.input.to_string(),
        completion_window: "24h",
        status: status.name(),
        output_file_id: batch.output.map(|id| id.to_string()),
        error_file_id: batch.error.map(|id| id.to_string()),
        created_at: times.created.seconds(),
        in_progress_at: times.in_progress.map(|at| at.seconds()),
        expires_at: times.expires.seconds(),
        finalizing_at: times.finalizing.map(|at| at.seconds()),
        completed_at: ended(Status::Completed),
        failed_at: ended(Status::Failed),
        expired_at: ended(Status::Expired),
        cancelling_at: times.cancelling.map(|at| at.seconds()),
        cancelled_at: ended(Status::Cancelled),
        request_counts: RequestCounts { total: counts.total, completed: counts.completed, failed: counts.failed },
        usage: BatchUsage {
            input_tokens: usage.input,
            input_tokens_details: InputDetails { cached_tokens: usage.cached },
            output_tokens: usage.output,
            output_tokens_details: OutputDetails { reasoning_tokens: usage.reasoning },
            total_tokens: usage.input.saturating_add(usage.output),
        },
        metadata: batch.metadata.and_then(|metadata| serde_json::from_str(&metadata).ok()),
    }
}
