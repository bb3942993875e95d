//! Tracer: decides which requests are recorded, and makes their spans.
//!
//! Invariant: a request whose caller says whether its trace is recorded is treated as its caller says; of the others,
//! this share is.

use crate::context::{SpanId, TraceContext, TraceId};
use crate::exporter::{ExportSettings, Exporter, SpanCounts};
use crate::span::{Span, SpanKind};
use std::borrow::Cow;
use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use uuid::Uuid;

/// Tracer of a process.
#[derive(Debug, Default)]
pub struct Tracer {
    export: Option<Export>,
}

#[derive(Debug)]
struct Export {
    exporter: Arc<Exporter>,
    /// Share of requests without a trace that are recorded, from 0 to 1.
    sample: f64,
}

/// Recording of one request: the ids and the clock of its spans.
#[derive(Debug)]
pub struct Recording {
    exporter: Arc<Exporter>,
    trace: TraceId,
    /// Span of the request.
    root: SpanId,
    /// Span of the client that has sent it.
    remote: Option<SpanId>,
    /// The same moment on both clocks: spans of one request never disagree.
    clock: (Instant, Duration),
}

impl Tracer {
    /// A tracer that records this share of requests without a trace, and exports their spans.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(settings: ExportSettings, sample: f64) -> io::Result<Self> {
        let exporter = Arc::new(Exporter::start(settings)?);
        Ok(Self { export: Some(Export { exporter, sample }) })
    }

    /// Context of a request that has arrived now, and its recording. A tracer without an export begins no traces:
    /// whoever gets the request decides for itself.
    #[must_use]
    pub fn begin(&self, incoming: Option<TraceContext>) -> (Option<TraceContext>, Option<Recording>) {
        let Some(Export { exporter, sample }) = &self.export else { return (incoming, None) };
        let (context, remote) = match incoming {
            Some(context) => {
                let remote = Some(context.span);
                (context, remote)
            }
            None => {
                let is_sampled = *sample > 0.0 && random(fastrand::Rng::f64) < *sample;
                (TraceContext::new(new_trace_id(), new_span_id(), is_sampled), None)
            }
        };
        if !context.is_sampled() {
            return (Some(context), None);
        }
        let root = if remote.is_some() { new_span_id() } else { context.span };
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let clock = (Instant::now(), since_epoch);
        let recording = Recording { exporter: Arc::clone(exporter), trace: context.trace, root, remote, clock };
        (Some(context.with_span(root)), Some(recording))
    }

    /// Counts of spans since the start.
    #[must_use]
    pub fn counts(&self) -> SpanCounts {
        self.export.as_ref().map(|export| export.exporter.counts()).unwrap_or_default()
    }
}

impl Recording {
    /// Id of a new span.
    #[must_use]
    pub fn new_id(&self) -> SpanId {
        new_span_id()
    }

    /// Moment at which the request arrived.
    #[must_use]
    pub fn arrived(&self) -> Instant {
        self.clock.0
    }

    /// The span of the request, which ends now.
    #[must_use]
    pub fn request_span(&self, name: impl Into<Cow<'static, str>>) -> Span {
        let times = (self.arrived(), Instant::now());
        Span { id: self.root, parent: self.remote, ..self.span(name, SpanKind::Server, times) }
    }

    /// A span within that of the request.
    #[must_use]
    pub fn span(&self, name: impl Into<Cow<'static, str>>, kind: SpanKind, times: (Instant, Instant)) -> Span {
        let (begin, end) = times;
        Span {
            trace: self.trace,
            id: new_span_id(),
            parent: Some(self.root),
            name: name.into(),
            kind,
            times: (self.unix_nanos(begin), self.unix_nanos(end.max(begin))),
            attributes: Vec::new(),
            is_error: false,
        }
    }

    /// Queues a span for the collector.
    pub fn send(&self, span: Span) {
        self.exporter.send(span);
    }

    fn unix_nanos(&self, at: Instant) -> u64 {
        let (instant, since_epoch) = self.clock;
        let since_epoch = match at.checked_duration_since(instant) {
            Some(after) => since_epoch + after,
            None => since_epoch.saturating_sub(instant.saturating_duration_since(at)),
        };
        u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
    }
}

fn random<T>(draw: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
    thread_local! {
        // The system's chance is its seed: the time is the same on many nodes that start together.
        static CHANCE: RefCell<fastrand::Rng> =
            RefCell::new(fastrand::Rng::with_seed(Uuid::now_v7().as_u64_pair().1));
    }
    CHANCE.with_borrow_mut(draw)
}

fn new_trace_id() -> TraceId {
    loop {
        if let Some(id) = TraceId::new(random(|chance| chance.u128(..))) {
            return id;
        }
    }
}

fn new_span_id() -> SpanId {
    loop {
        if let Some(id) = SpanId::new(random(|chance| chance.u64(..))) {
            return id;
        }
    }
}

#[cfg(test)]
#[path = "tracer_tests.rs"]
mod tests;
