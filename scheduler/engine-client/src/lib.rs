//! The scheduler's end of an engine's data connection: requests and credit out, answers and streams in.
//!
//! | module | contents |
//! | --- | --- |
//! | [`connection`] | [`DataConnection`]: frames over the data socket, cancellations over a second one |
//! | [`execution`] | where a request was sent, and what its handler reported, for the record of its usage |
//! | [`request`] | a request before it is sent: head, body, where its answer goes |
//! | [`requests`] | [`RequestTable`]: requests of one model until their last frames |
//! | [`answer`] | an answer on its way to the client |
//! | [`mod@stream`] | a streamed answer: typed chunks, bounded by credit |
//! | [`waits`] | a request's waits for its instance |
//! | [`violation`] | frames that an engine may not send |
//!
//! Contents are passed on as the engine sent them; how a chunk or a value is rendered for a client is up to the codec of
//! the API that the client uses.

#![forbid(unsafe_code)]

mod answer;
mod connection;
mod execution;
mod request;
mod requests;
mod stream;
mod violation;
mod waits;

pub use answer::{Answer, AnswerContent, ReplySender, Unanswered};
pub use connection::{ConnectionError, DataConnection, EngineEnds, split_frame};
pub use execution::{Execution, InstanceName, SentTo};
pub use request::{NewerParameter, Request};
pub use requests::{FrameOutcome, Recipient, RequestTable};
pub use stream::{StreamEnd, StreamRead, StreamReader, StreamWriter, stream};
pub use violation::ProtocolViolation;
pub use waits::{Period, StartTimes, Swap};
