//! Traces of requests: W3C Trace Context, spans, their export over OTLP.
//!
//! | module | content |
//! | --- | --- |
//! | [`context`] | `traceparent` and `tracestate`: parsing and writing |
//! | [`tracer`] | decision which request is recorded, and its spans |
//! | [`span`] | values of spans |
//! | [`names`] | names of the semantic conventions |
//! | `exporter` | bounded queue of spans, and the thread that delivers them |
//! | `otlp`, `resource` | form of a delivery, and what it says of the process |
//!
//! Invariants: no text of a request or of an answer is in a span; whoever records a span never waits; a span that is
//! not delivered is counted.

#![forbid(unsafe_code)]

pub mod context;
mod exporter;
pub mod names;
mod otlp;
mod resource;
pub mod span;
pub mod tracer;

pub use context::{SpanId, TraceContext, TraceId};
pub use exporter::{ExportHeaders, ExportSettings, InvalidHeaders, SpanCounts};
pub use resource::Resource;
pub use span::{Span, SpanKind, Value};
pub use tracer::{Recording, Tracer};
