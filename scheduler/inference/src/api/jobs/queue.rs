//! Queued requests of Workers AI: `?queueRequest=true`, and the question for their answers.

use super::{ANSWER_TIMEOUT, failure, kept_json, now, owner, store};
use crate::admission::BatchItem;
use crate::answer::{AnswerBody, Document};
use crate::memory::LONGEST_WHOLE;
use crate::state::RunApi;
use crate::submission::Caller;
use bytes::Bytes;
use hyper::Response;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use omni_body::{BodyKind, BodyPermit, RequestBody};
use omni_jobs::{Batch, BatchId, Form, ItemReport, JobError, JobStore, Scope, Status};
use omni_request_error::Failure;
use omni_workers_ai::{
    QueueAnswer, QueueAnswers, QueueRequest, QueueUsage, Queued, asks_for_queue, code_of_item, no_queue, not_json,
    polled_id, queue_answer, queue_request,
};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::time::Instant;

/// Items that are read at once.
const PAGE: u32 = 500;
/// Bytes of results that are read at once.
const PAGE_BYTES: u64 = 16 << 20;
/// Bytes of an answer beside its result and its reference, those of an error included.
const EACH: u64 = 256;
const TOO_LONG: &str = "the results of the requests are longer together than one answer may be: queue fewer at once";

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
    if caller.parts.extensions.get::<BatchItem>().is_some() {
        return Ok(None);
    }
    let (owner, is_queued) = (owner(caller.holder), asks_for_queue(caller.parts.uri.query())?);
    if api.jobs().is_none() {
        return if is_queued { Err(no_queue().into()) } else { Ok(None) };
    }
    let json = match body {
        RequestBody::Collected(BodyKind::Json, json) => json,
        _ if is_queued => return Err(not_json(&media(&caller.parts.headers)).into()),
        _ => return Ok(None),
    };
    let share = api.arrivals.share(caller.holder.map(|holder| &**holder));
    let version = caller.parts.version;
    let poll = async |store: &JobStore, batch| {
        let mut memory = share.body();
        let json = answers(store, owner, model, batch, &mut memory).await?;
        let permit = memory.split(json.len() as u64);
        drop(memory);
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        Document::json(json).kept_response(Some(permit), version, &share, deadline).map(Some)
    };
    if !is_queued {
        // Only an identifier of the queue asks it: a model may take such an object, too.
        let Some(id) = polled_id(json).as_deref().and_then(BatchId::parse) else { return Ok(None) };
        let store = store(api).await?;
        return match store.batch(Scope::Owner(owner), id).await {
            Ok(batch) => poll(&store, batch).await,
            Err(JobError::NoBatch) => Ok(None),
            Err(error) => Err(failure(&error, "request_id")),
        };
    }
    let store = store(api).await?;
    match queue_request(json)? {
        QueueRequest::Inputs(inputs) => {
            let batch = store.queue(owner, model, inputs, now()).await.map_err(|error| failure(&error, "requests"))?;
            kept_json(state(&batch, model), version, &share).map(Some)
        }
        QueueRequest::Poll(id) => {
            let id = BatchId::parse(&id).ok_or(Failure::NoSuchJob("request"))?;
            let found = store.batch(Scope::Owner(owner), id).await;
            let batch = found.map_err(|error| match error {
                JobError::NoBatch => Failure::NoSuchJob("request"),
                error => failure(&error, "request_id"),
            })?;
            poll(&store, batch).await
        }
    }
}

/// Media types of a body.
fn media(headers: &HeaderMap) -> String {
    let types = headers.get_all(CONTENT_TYPE).iter().map(|media| String::from_utf8_lossy(media.as_bytes()));
    types.collect::<Vec<_>>().join(", ")
}

/// Answers of queued requests, or their state before. `memory`: for what is held until the answer is sent.
async fn answers(
    store: &JobStore,
    owner: &str,
    model: &str,
    batch: Batch,
    memory: &mut BodyPermit,
) -> Result<Bytes, Failure> {
    if !matches!(&batch.form, Form::WorkersAi { model: of } if of == model) {
        return Err(Failure::NoSuchJob("request"));
    }
    match batch.status() {
        Status::Validating | Status::InProgress | Status::Finalizing | Status::Cancelling => {
            return Ok(state(&batch, model));
        }
        Status::Failed | Status::Completed | Status::Expired | Status::Cancelled => {}
    }
    let unread = |error: JobError| failure(&error, "request_id");
    let scope = Scope::Owner(owner);
    let results = store.results_bytes(scope, batch.id).await.map_err(unread)?;
    let others = EACH.saturating_mul(batch.counts.total);
    let left = LONGEST_WHOLE.saturating_sub(others);
    // A page, the answers, and the document that repeats them.
    let needed = results.min(PAGE_BYTES).saturating_add(results.min(left).saturating_add(others).saturating_mul(2));
    if !memory.grow(needed, Instant::now()) {
        return Err(Failure::AnswerNotKept);
    }
    let (mut answers, mut first) = (Answers::new(left), 0);
    loop {
        let reports = store.reports(scope, batch.id, first, PAGE, answers.left).await.map_err(unread)?;
        let Some(last) = reports.last() else { break };
        first = last.item.saturating_add(1);
        reports.iter().for_each(|report| answers.add(report));
    }
    let usage = QueueUsage {
        prompt_tokens: batch.usage.input,
        completion_tokens: batch.usage.output,
        total_tokens: batch.usage.input.saturating_add(batch.usage.output),
    };
    let responses = answers.finish()?;
    Ok(queue_answer(&QueueAnswers { responses: &responses, usage }))
}

fn state(batch: &Batch, model: &str) -> Bytes {
    let counts = batch.counts;
    let begun = counts.completed + counts.failed > 0 || batch.status() != Status::Validating;
    let status = if begun { "running" } else { "queued" };
    let queued = Queued { status, request_id: batch.id.request_id(), model: model.to_owned() };
    queue_answer(&queued)
}

/// Stored result of an item: the body of its response, or an error without one.
#[derive(Deserialize)]
struct Stored<'a> {
    #[serde(borrow)]
    body: Option<&'a RawValue>,
    code: Option<String>,
    message: Option<String>,
}

/// Body of a response of the run API.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    errors: Option<&'a RawValue>,
}

/// List of answers, within a bound.
struct Answers {
    json: Vec<u8>,
    /// Bytes of results and references that may follow.
    left: u64,
}

impl Answers {
    fn new(left: u64) -> Self {
        Self { json: b"[".to_vec(), left }
    }

    fn add(&mut self, report: &ItemReport) {
        let reference = raw(&report.name).filter(|name| name.get() != "null" && self.take(name.get()));
        let is_left_out = report.left_out || report.result.as_ref().is_some_and(|result| !self.take(result));
        let result = report.result.as_deref().filter(|_| !is_left_out);
        let stored = result.and_then(|result| serde_json::from_str::<Stored<'_>>(result).ok());
        let (result, errors) = match stored {
            Some(Stored { body: Some(body), .. }) => parts(body),
            Some(Stored { code, message, .. }) => {
                (None, error(&code.unwrap_or_default(), &message.unwrap_or_default()).map(Cow::Owned))
            }
            None if is_left_out => (None, error("result_too_long", TOO_LONG).map(Cow::Owned)),
            None => (None, error("not_executed", "the request was not executed").map(Cow::Owned)),
        };
        let success = report.success && !is_left_out;
        let answer = QueueAnswer { id: report.item, result, success, external_reference: reference, errors };
        if self.json.len() > 1 {
            self.json.push(b',');
        }
        let _ = serde_json::to_writer(&mut self.json, &answer); // texts can always be written
    }

    /// Counts a text; returns false if it is longer than what is left.
    fn take(&mut self, text: &str) -> bool {
        let left = self.left.checked_sub(text.len() as u64);
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }

    fn finish(mut self) -> Result<Box<RawValue>, Failure> {
        self.json.push(b']');
        let json = String::from_utf8(self.json).ok().and_then(|json| RawValue::from_string(json).ok());
        json.ok_or(Failure::JobsUnavailable)
    }
}

fn raw(json: &str) -> Option<&RawValue> {
    serde_json::from_str(json).ok()
}

/// Result and errors of a body of the run API. Another body, as bytes or a text that the model answered with, is the
/// result itself.
fn parts(body: &RawValue) -> (Option<&RawValue>, Option<Cow<'_, RawValue>>) {
    let envelope = body.get().starts_with('{').then(|| serde_json::from_str::<Envelope<'_>>(body.get()).ok()).flatten();
    let Some(Envelope { result, errors }) = envelope else { return (Some(body), None) };
    let has_some = |errors: &&RawValue| {
        errors.get().strip_prefix('[').is_some_and(|first| !first.trim_ascii_start().starts_with(']'))
    };
    (result, errors.filter(has_some).map(Cow::Borrowed))
}

fn error(code: &str, message: &str) -> Option<Box<RawValue>> {
    serde_json::value::to_raw_value(&[json!({ "code": code_of_item(code), "message": message, "type": code })]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn report(item: u32, name: &str, success: bool, result: Option<&str>) -> ItemReport {
        ItemReport { item, name: name.to_owned(), success, result: result.map(str::to_owned), left_out: false }
    }

    fn listed(left: u64, reports: &[ItemReport]) -> Value {
        let mut answers = Answers::new(left);
        reports.iter().for_each(|report| answers.add(report));
        serde_json::from_str(answers.finish().unwrap().get()).unwrap()
    }

    #[test]
    fn answers_of_every_kind() {
        let good = r#"{"body":{"result":{"response":"hi"},"success":true,"errors":[ ],"messages":[]}}"#;
        let bad = r#"{"body":{"result":null,"success":false,"errors":[{"code":5004,"message":"no"}]}}"#;
        let answers = listed(
            1000,
            &[
                report(0, "\"r1\"", true, Some(good)),
                report(1, "null", false, Some(bad)),
                report(2, "null", true, Some(r#"{"body":"plain"}"#)),
                report(3, "null", false, Some(r#"{"code":"batch_expired","message":"late"}"#)),
                report(4, "null", false, None),
            ],
        );
        let expected = json!([
            {"id": 0, "result": {"response": "hi"}, "success": true, "external_reference": "r1"},
            {"id": 1, "result": null, "success": false, "external_reference": null,
             "errors": [{"code": 5004, "message": "no"}]},
            {"id": 2, "result": "plain", "success": true, "external_reference": null},
            {"id": 3, "result": null, "success": false, "external_reference": null,
             "errors": [{"code": 3007, "message": "late", "type": "batch_expired"}]},
            {"id": 4, "result": null, "success": false, "external_reference": null,
             "errors": [{"code": 3040, "message": "the request was not executed", "type": "not_executed"}]},
        ]);
        assert_eq!(answers, expected);
    }

    #[test]
    fn results_beyond_the_bound_have_an_error_of_their_own() {
        let result = r#"{"body":{"result":"0123456789"}}"#;
        let mut reports = [0, 1, 2].map(|item| report(item, "7", true, Some(result)));
        reports[2] = ItemReport { result: None, left_out: true, ..reports[2].clone() };
        let answers = listed(result.len() as u64 + 2, &reports);
        let seen = |at: usize| (answers[at]["success"].clone(), answers[at]["errors"][0]["type"].clone());
        assert_eq!(seen(0), (json!(true), Value::Null));
        assert_eq!(seen(1), (json!(false), json!("result_too_long")));
        assert_eq!(seen(2), (json!(false), json!("result_too_long")));
        let references = [0, 1, 2].map(|at| answers[at]["external_reference"].clone());
        assert_eq!(references, [json!(7), json!(7), Value::Null]);
    }
}
