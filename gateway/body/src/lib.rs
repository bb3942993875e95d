//! Bodies of requests and responses, as the HTTP front and the clients of model instances share them: the budget of memory and
//! descriptors that they may take ([`BodyBudget`]), and request bodies on their way to a model ([`RequestBody`]), and typed chunks of
//! streamed responses ([`Chunks`]).

#![forbid(unsafe_code)]

mod budget;
mod chunks;
mod metrics;
mod request;

pub use budget::{BodyBudget, BodyPermit, BudgetShare, READ_GRACE, ResponsePermit, SlowReader, UploadPermit};
pub use chunks::{Chunk, ChunkBuffer, Chunks, StreamKind};
pub use metrics::BodyMetrics;
pub use request::{BodyKind, BodyReader, BodySocket, RequestBody};
