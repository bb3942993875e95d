//! Traces of requests: W3C Trace Context, spans, their export over OTLP.
//!
//! | module | content |
//! | --- | --- |
//! | [`context`] | `traceparent` and `tracestate`: parsing and writing |
//! | [`tracer`] | decision which request is recorded, and its spans |
//! | [`span`] | values of spans |
//! | [`names`] | names of the semantic conventions |
//! | `exporter` | bounded queue of spans, and the thread that delivers them |
//! | `otlp` | form of a delivery |
//!
//! Invariants: no text of a request or of an answer is in a span; whoever records a span never waits; a span that is not delivered is
//! counted.

#![forbid(unsafe_code)]

pub mod context;
mod exporter;
pub mod names;
mod otlp;
pub mod span;
pub mod tracer;

pub use context::{SpanId, TraceContext, TraceId};
pub use exporter::{ExportHeaders, ExportSettings, InvalidHeaders, Resource, SpanCounts};
pub use span::{Span, SpanKind, Value};
pub use tracer::{Recording, Tracer};
