//! Trace of a request: its context for the handler, and the spans of a request that is recorded.
//!
//! ```text
//!   request ─┬─ template
//!            ├─ queue ─┬─ environment
//!            │         ├─ start
//!            │         └─ swap
//!            └─ model ─── tools        (queue and model: for each attempt)
//! ```
//!
//! Invariant: attributes are names that the node knows, and numbers. What a client has written (path, headers, body),
//! and what a model has answered, is in none of them.

use crate::admission::BatchItem;
use hyper::{HeaderMap, Response};
use omni_engine_client::SentTo;
use omni_engine_protocol::frame::RequestKind;
use omni_ingress::ResponseGuard;
use omni_supervisor::metrics::Api;
use omni_traces::{Recording, Span, SpanId, SpanKind, TraceContext, TraceId, Tracer, Value, names};
use omni_usage::{Outcome, Tokens, Units};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Header with the place of a request in its trace.
pub(crate) const TRACEPARENT: &str = "traceparent";
/// Header with what systems of a trace pass on to each other.
pub(crate) const TRACESTATE: &str = "tracestate";
/// Class of the error of a request whose client has left.
const CANCELLED: &str = "cancelled";

/// Trace of one request.
#[derive(Debug)]
pub(crate) struct RequestTrace {
    /// `None`: it belongs to no trace.
    context: Option<TraceContext>,
    /// `None`: it is not recorded.
    span: Option<Arc<RequestSpan>>,
}

/// Name of a request, without any text of its client.
#[derive(Debug)]
pub(crate) struct RequestName {
    /// Method, if it is well known; else [`names::OTHER_METHOD`].
    pub(crate) method: &'static str,
    /// Path with the names of its parameters in braces; `None`: there is no such route.
    pub(crate) route: Option<String>,
}

/// Span of a request. It ends when it is dropped: with the last attempt, and not before the response was written.
#[derive(Debug)]
pub(crate) struct RequestSpan {
    recording: Recording,
    name: RequestName,
    item: Option<BatchItem>,
    result: Mutex<RequestResult>,
}

#[derive(Debug, Default)]
struct RequestResult {
    status: Option<u16>,
    /// Class of the error that has ended an attempt.
    error: Option<&'static str>,
    /// Name of the model, once it is found: another one is the client's text.
    model: Option<String>,
}

/// Spans of one attempt at a request.
#[derive(Debug)]
pub(crate) struct AttemptTrace {
    request: Arc<RequestSpan>,
    /// Span of the model, which the handler's spans belong to.
    id: SpanId,
    operation: &'static str,
    finish_reason: Option<&'static str>,
    tools: Option<ToolTimes>,
}

/// Times of the parser of tool calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ToolTimes {
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    /// Number of calls; `None`: the answer broke off.
    pub(crate) calls: Option<u64>,
}

/// End of an attempt, for its spans.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttemptEnd<'a> {
    pub(crate) submitted: Instant,
    /// `None`: no instance got it.
    pub(crate) sent: Option<&'a SentTo>,
    pub(crate) ended: Instant,
    pub(crate) outcome: Outcome,
    pub(crate) units: &'a Units,
}

impl RequestTrace {
    /// The trace of a request that has arrived now. `name`: that of a request that is recorded.
    pub(crate) fn begin(tracer: &Tracer, headers: &HeaderMap, name: impl FnOnce() -> RequestName) -> Self {
        Self::new(tracer.begin(incoming(headers)), name, None)
    }

    /// The trace of an item of a batch, which is its own.
    pub(crate) fn of_item(tracer: &Tracer, item: &BatchItem, name: impl FnOnce() -> RequestName) -> Self {
        Self::new(tracer.begin(None), name, Some(item))
    }

    fn new(
        (context, recording): (Option<TraceContext>, Option<Recording>),
        name: impl FnOnce() -> RequestName,
        item: Option<&BatchItem>,
    ) -> Self {
        let span = recording.map(|recording| {
            let (name, item) = (name(), item.cloned());
            Arc::new(RequestSpan { recording, name, item, result: Mutex::default() })
        });
        Self { context, span }
    }

    /// Id of the trace.
    pub(crate) fn id(&self) -> Option<TraceId> {
        self.context.as_ref().map(|context| context.trace)
    }

    /// Returns true if the spans of the request are recorded.
    pub(crate) fn is_recorded(&self) -> bool {
        self.span.is_some()
    }

    /// A further attempt at the request, if it is recorded.
    pub(crate) fn attempt(&self, operation: &'static str) -> Option<AttemptTrace> {
        let request = Arc::clone(self.span.as_ref()?);
        let id = request.recording.new_id();
        Some(AttemptTrace { request, id, operation, finish_reason: None, tools: None })
    }

    /// Adds the headers for the handler, whose spans belong to that of the attempt.
    pub(crate) fn add_headers(&self, headers: &mut Vec<(String, String)>, attempt: Option<&AttemptTrace>) {
        let Some(context) = &self.context else { return };
        let parent = match attempt {
            Some(attempt) => context.with_span(attempt.id).traceparent(),
            None => context.traceparent(),
        };
        headers.push((TRACEPARENT.to_owned(), parent));
        headers.extend(context.tracestate().map(|state| (TRACESTATE.to_owned(), state.to_owned())));
    }

    /// Records a part of the request that ends now.
    pub(crate) fn record(&self, name: &'static str, began: Instant, is_error: bool) {
        if let Some(RequestSpan { recording, .. }) = self.span.as_deref() {
            let span = recording.span(name, SpanKind::Internal, (began, Instant::now()));
            recording.send(Span { is_error, ..span });
        }
    }

    /// Notes the model that the request is for.
    pub(crate) fn on_model(&self, name: &str) {
        if let Some(span) = &self.span {
            span.result(|result| result.model = Some(name.to_owned()));
        }
    }

    /// Notes the response. The span of the request ends once it was written.
    pub(crate) fn on_response<B>(&self, mut response: Response<B>) -> Response<B> {
        if let Some(span) = &self.span {
            span.result(|result| result.status = Some(response.status().as_u16()));
            let others = response.extensions_mut().remove::<ResponseGuard>();
            response.extensions_mut().insert(ResponseGuard::new((others, Arc::clone(span))));
        }
        response
    }
}

/// Context that a client has sent.
fn incoming(headers: &HeaderMap) -> Option<TraceContext> {
    let of = |name| headers.get_all(name).iter().map(|value| value.as_bytes());
    TraceContext::of_headers(of(TRACEPARENT), of(TRACESTATE))
}

impl RequestSpan {
    fn result<T>(&self, with: impl FnOnce(&mut RequestResult) -> T) -> T {
        with(&mut self.result.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for RequestSpan {
    fn drop(&mut self) {
        let Self { recording, name: RequestName { method, route }, item, .. } = &*self;
        let shown = if *method == names::OTHER_METHOD { "HTTP" } else { method };
        let mut span = match route {
            Some(route) => recording.request_span(format!("{shown} {route}")),
            None => recording.request_span(shown),
        };
        span.set(names::HTTP_REQUEST_METHOD, *method);
        span.attributes.extend(route.iter().map(|route| (names::HTTP_ROUTE, Value::from(route.clone()))));
        if let Some(item) = item {
            span.set(names::OMNI_BATCH, item.batch.to_string());
            span.set(names::OMNI_BATCH_ITEM, u64::from(item.number));
        }
        let (status, error, model) = self.result(|result| (result.status, result.error, result.model.take()));
        span.attributes.extend(model.map(|model| (names::GEN_AI_REQUEST_MODEL, model.into())));
        span.attributes.extend(status.map(|status| (names::HTTP_RESPONSE_STATUS_CODE, u64::from(status).into())));
        match (status, error) {
            (None, error) => span.fail(error.unwrap_or(CANCELLED)),
            (Some(status), _) if status >= 500 => span.fail(status.to_string()),
            // An answer that broke off after its head. A refusal is the client's fault, and no error of the server.
            (Some(status), Some(error)) if status < 400 => span.fail(error),
            (Some(_), _) => {}
        }
        recording.send(span);
    }
}

impl AttemptTrace {
    /// Notes why the generation has ended.
    pub(crate) fn on_finish(&mut self, reason: &'static str) {
        self.finish_reason = Some(reason);
    }

    /// Notes the times of the parser of tool calls.
    pub(crate) fn on_tools(&mut self, times: ToolTimes) {
        self.tools = Some(times);
    }

    /// Records the attempt at its end.
    pub(crate) fn record(self, model: (&str, Api), end: &AttemptEnd<'_>) {
        let error = error_class(end.outcome);
        if error.is_some() {
            self.request.result(|result| result.error = error);
        }
        let recording = &self.request.recording;
        self.queue_spans(end).into_iter().chain(self.model_spans(model, end)).for_each(|span| recording.send(span));
    }

    /// Spans of the wait for an instance, and of its parts.
    fn queue_spans(&self, end: &AttemptEnd<'_>) -> Vec<Span> {
        let recording = &self.request.recording;
        let sent_at = end.sent.map_or(end.ended, |sent| sent.at);
        let mut queue = recording.span(names::QUEUE, SpanKind::Internal, (end.submitted, sent_at));
        let Some(sent) = end.sent else {
            error_class(end.outcome).into_iter().for_each(|error| queue.fail(error));
            return vec![queue];
        };
        let waits = [
            sent.start.environment.map(|wait| (names::ENVIRONMENT, wait.from, wait.until)),
            sent.start.instance.map(|wait| (names::START, wait.from, wait.until)),
            sent.swap.map(|swap| (names::SWAP, swap.from, swap.until)),
        ];
        let parts = waits.into_iter().flatten().filter_map(|(name, from, until)| {
            let times = (from.max(end.submitted), until.min(sent_at));
            let part = Span { parent: Some(queue.id), ..recording.span(name, SpanKind::Internal, times) };
            (times.0 < times.1).then_some(part)
        });
        let mut spans: Vec<Span> = parts.collect();
        spans.push(queue);
        spans
    }

    /// Spans of the model and of the parser of its answer; none if no instance got the request.
    fn model_spans(&self, (model, api): (&str, Api), end: &AttemptEnd<'_>) -> Vec<Span> {
        let Some(sent) = end.sent else { return Vec::new() };
        let recording = &self.request.recording;
        let name = format!("{} {model}", self.operation);
        let mut span = Span { id: self.id, ..recording.span(name, SpanKind::Client, (sent.at, end.ended)) };
        span.set(names::GEN_AI_OPERATION_NAME, self.operation);
        span.set(names::GEN_AI_PROVIDER_NAME, names::PROVIDER);
        span.set(names::GEN_AI_REQUEST_MODEL, model.to_owned());
        span.set(names::OMNI_API, api.label());
        span.set(names::OMNI_MODEL_VERSION, sent.instance.version.clone());
        span.set(names::OMNI_INSTANCE, sent.instance.id.clone());
        set_units(&mut span, end.units);
        if let Some(reason) = self.finish_reason {
            span.set(names::GEN_AI_RESPONSE_FINISH_REASONS, Value::List(reason));
        }
        error_class(end.outcome).into_iter().for_each(|error| span.fail(error));
        let tools = self.tools.map(|times| {
            let mut tools = recording.span(names::TOOLS, SpanKind::Internal, (times.began, times.ended));
            tools.attributes.extend(times.calls.map(|calls| (names::OMNI_TOOL_CALLS, calls.into())));
            Span { parent: Some(self.id), ..tools }
        });
        tools.into_iter().chain([span]).collect()
    }
}

fn set_units(span: &mut Span, units: &Units) {
    if let Some(Tokens { input, output, cached, reasoning, source: _ }) = units.tokens {
        span.set(names::GEN_AI_USAGE_INPUT_TOKENS, input);
        span.set(names::GEN_AI_USAGE_OUTPUT_TOKENS, output);
        let rare = [
            (names::GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS, cached),
            (names::GEN_AI_USAGE_REASONING_OUTPUT_TOKENS, reasoning),
        ];
        rare.into_iter().filter(|(_, count)| *count > 0).for_each(|(key, count)| span.set(key, count));
    }
    span.set(names::OMNI_BYTES_OUT, units.bytes_out);
}

fn error_class(outcome: Outcome) -> Option<&'static str> {
    match outcome {
        Outcome::Complete => None,
        Outcome::Failed => Some("failed"),
        Outcome::Cancelled => Some(CANCELLED),
        Outcome::Deadline => Some("timeout"),
    }
}

/// Operation of a request of this kind; `None`: the handler's own.
pub(crate) fn operation(kind: Option<RequestKind>) -> &'static str {
    match kind {
        Some(RequestKind::TextGeneration) => names::CHAT,
        Some(RequestKind::Embeddings) => names::EMBEDDINGS,
        Some(RequestKind::Rerank) => names::RERANK,
        Some(RequestKind::SpeechToText) => names::SPEECH_TO_TEXT,
        Some(RequestKind::TextToSpeech) => names::TEXT_TO_SPEECH,
        Some(RequestKind::TextToImage) => names::TEXT_TO_IMAGE,
        Some(RequestKind::CountTokens) => names::COUNT_TOKENS,
        None => names::RUN,
    }
}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;
