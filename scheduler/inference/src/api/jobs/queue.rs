//! Queued requests of Workers AI: `?queueRequest=true`, and the question for their answers.

use super::{failure, kept_json, now, owner, store};
use crate::admission::BatchItem;
use crate::answer::AnswerBody;
use crate::memory::LONGEST_WHOLE;
use crate::state::RunApi;
use crate::submission::Caller;
use bytes::Bytes;
use hyper::Response;
use omni_body::{BodyKind, RequestBody};
use omni_jobs::{Batch, BatchId, Form, ItemReport, JobError, JobStore, Scope, Status};
use omni_request_error::Failure;
use omni_workers_ai::{
    QueueAnswer, QueueAnswers, QueueRequest, QueueUsage, Queued, asks_for_queue, polled_id, queue_answer, queue_request,
};
use serde::Deserialize;
use serde_json::value::RawValue;

/// Items that are read at once.
const PAGE: u32 = 500;

/// Serves a request for the queue of a model; `None`: the request is for the model itself.
///
/// # Errors
/// The queue does not take it, or has no such request.
pub(crate) async fn serve(
    api: &RunApi,
    caller: &Caller<'_>,
    model: &str,
    body: &RequestBody,
) -> Result<Option<Response<AnswerBody>>, Failure> {
    if api.jobs().is_none() || caller.parts.extensions.get::<BatchItem>().is_some() {
        return Ok(None);
    }
    let (owner, is_queued) = (owner(caller.holder), asks_for_queue(caller.parts.uri.query()));
    let json = match body {
        RequestBody::Collected(BodyKind::Json, json) => json,
        _ if is_queued => return Err(Failure::BadRequest("queued requests are JSON".to_owned())),
        _ => return Ok(None),
    };
    let respond = |bytes| {
        let share = api.arrivals.share(caller.holder.map(|holder| &**holder));
        kept_json(bytes, caller.parts.version, &share).map(Some)
    };
    if !is_queued {
        // Only an identifier of the queue asks it: a model may take such an object, too.
        let Some(id) = polled_id(json).as_deref().and_then(BatchId::parse) else { return Ok(None) };
        let store = store(api).await?;
        return match store.batch(Scope::Owner(owner), id).await {
            Ok(batch) => respond(answers(&store, owner, model, batch).await?),
            Err(JobError::NoBatch) => Ok(None),
            Err(error) => Err(failure(&error, "request_id")),
        };
    }
    let store = store(api).await?;
    match queue_request(json)? {
        QueueRequest::Inputs(inputs) => {
            let batch = store.queue(owner, model, inputs, now()).await.map_err(|error| failure(&error, "requests"))?;
            respond(state(&batch, model))
        }
        QueueRequest::Poll(id) => {
            let id = BatchId::parse(&id).ok_or(Failure::NoSuchJob("request"))?;
            let found = store.batch(Scope::Owner(owner), id).await;
            let batch = found.map_err(|error| match error {
                JobError::NoBatch => Failure::NoSuchJob("request"),
                error => failure(&error, "request_id"),
            })?;
            respond(answers(&store, owner, model, batch).await?)
        }
    }
}

/// Answers of queued requests, or their state before.
async fn answers(store: &JobStore, owner: &str, model: &str, batch: Batch) -> Result<Bytes, Failure> {
    if !matches!(&batch.form, Form::WorkersAi { model: of } if of == model) {
        return Err(Failure::NoSuchJob("request"));
    }
    match batch.status() {
        Status::Validating | Status::InProgress | Status::Finalizing | Status::Cancelling => {
            return Ok(state(&batch, model));
        }
        Status::Failed | Status::Completed | Status::Expired | Status::Cancelled => {}
    }
    let (mut responses, mut bytes) = (Vec::new(), 0);
    loop {
        let first = u32::try_from(responses.len()).unwrap_or(u32::MAX);
        let reports = store.reports(Scope::Owner(owner), batch.id, first, PAGE).await;
        let reports = reports.map_err(|error| failure(&error, "request_id"))?;
        if reports.is_empty() {
            break;
        }
        for report in reports {
            bytes += report.result.as_ref().map_or(0, String::len) as u64;
            if bytes > LONGEST_WHOLE {
                return Err(Failure::AnswerNotSendable(format!("it is longer than {LONGEST_WHOLE} bytes")));
            }
            responses.push(answer(report));
        }
    }
    let usage = QueueUsage {
        prompt_tokens: batch.usage.input,
        completion_tokens: batch.usage.output,
        total_tokens: batch.usage.input + batch.usage.output,
    };
    Ok(queue_answer(&QueueAnswers { responses, usage }))
}

fn state(batch: &Batch, model: &str) -> Bytes {
    let counts = batch.counts;
    let begun = counts.completed + counts.failed > 0 || batch.status() != Status::Validating;
    let status = if begun { "running" } else { "queued" };
    let queued = Queued { status, request_id: batch.id.request_id(), model: model.to_owned() };
    queue_answer(&queued)
}

fn answer(report: ItemReport) -> QueueAnswer {
    #[derive(Deserialize)]
    struct Stored<'a> {
        #[serde(borrow)]
        body: Option<&'a RawValue>,
        code: Option<String>,
        message: Option<String>,
    }
    let ItemReport { item, name, success, result } = report;
    let reference = serde_json::from_str(&name).ok().filter(|reference: &serde_json::Value| !reference.is_null());
    let stored = result.as_deref().and_then(|result| serde_json::from_str::<Stored<'_>>(result).ok());
    match stored {
        Some(Stored { body: Some(body), .. }) => QueueAnswer::of_body(item, success, body, reference),
        Some(Stored { code, message, .. }) => {
            let (code, message) = (code.unwrap_or_default(), message.unwrap_or_default());
            QueueAnswer::without_response(item, &code, &message, reference)
        }
        None => QueueAnswer::without_response(item, "not_executed", "the request was not executed", reference),
    }
}
