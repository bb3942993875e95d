//! Response that passes on what a model answers.

use crate::answer::{AnswerBody, reserve, respond, timing_headers};
use crate::in_flight::InFlightRequest;
use crate::submission::Caller;
use hyper::Response;
use omni_body::StreamKind;
use omni_engine_client::{Answer, AnswerContent};
use omni_ingress::body::RunningUpload;
use omni_ingress::response_headers;
use omni_request_error::Failure;
use omni_supervisor::model::Model;
use std::sync::Arc;
use std::time::Instant;

/// The response to a model's answer, with its times, which are observed here. A stream goes on with the upload of the request's body; any other
/// answer ends it.
///
/// # Errors
/// A header that the model may not set, generated text, or no memory for the answer.
pub(crate) fn pass_on(
    (caller, model): (Caller<'_>, &Model),
    (mut answer, mut request): (Answer, InFlightRequest),
    upload: Option<RunningUpload>,
    submitted: Instant,
) -> Result<Response<AnswerBody>, Failure> {
    if let Some(Err(failure)) = answer.head.as_ref().map(|head| response_headers::check(&head.headers)) {
        request.cancel_uncounted();
        return Err(failure);
    }
    if matches!(&answer.content, AnswerContent::Stream(reader) if reader.kind() == StreamKind::Generation) {
        request.cancel_uncounted();
        return Err(Failure::AnswerNotSendable("generated text was not asked for".to_owned()));
    }
    let answered = observe((caller, model), answer.sent_at, submitted);
    let is_whole = !matches!(answer.content, AnswerContent::Stream(_));
    if is_whole {
        request.on_end();
        request.release_body();
    }
    let permit = reserve(&mut answer, caller.parts.version, &model.body_budget)?;
    if is_whole {
        request.on_stream_end(true);
    }
    let (instance, sent_at, swap) = (Arc::clone(&answer.instance), answer.sent_at, answer.swap);
    let mut response = respond(answer, request, upload, permit);
    timing_headers(response.headers_mut(), (&instance.version, submitted), sent_at, swap, answered);
    Ok(response)
}

/// Observes the times of an answer that has begun now, to a request that was sent to its instance at `sent_at`. Returns that moment.
pub(crate) fn observe((caller, model): (Caller<'_>, &Model), sent_at: Instant, submitted: Instant) -> Instant {
    let (metrics, answered) = (&model.metrics, Instant::now());
    metrics.observe_wait(sent_at.saturating_duration_since(submitted));
    metrics.model_time.observe(answered.saturating_duration_since(sent_at).as_secs_f64());
    metrics.first_byte.observe(answered.saturating_duration_since(caller.arrived).as_secs_f64());
    answered
}
