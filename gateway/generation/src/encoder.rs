//! Rendering of an answer for a client: one encoder for each API.

use crate::completion::Completion;
use crate::delta::Delta;
use crate::finish::{Finish, Usage};
use crate::piece::TokenInfo;
use bytes::BytesMut;
use omni_request_error::Failure;

/// Renderer of one streamed answer as server-sent events.
///
/// ```text
///  start ──▶ (deltas | finish of a choice)* ──▶ end
///    └──────────────┴──▶ error
/// ```
///
/// Invariants: the calls come in the order of the diagram, `finish` once for each choice and nothing for a choice after it; an
/// encoder writes whole events.
pub trait ResponseEncoder: Send {
    /// Events before the first part.
    fn start(&mut self, out: &mut BytesMut);

    /// Parts of a choice that came together. `tokens`: those with log probabilities, if the client asked for them.
    fn deltas(&mut self, choice: usize, deltas: &[Delta], tokens: &[TokenInfo], out: &mut BytesMut);

    /// End of a choice.
    fn finish(&mut self, choice: usize, finish: &Finish, out: &mut BytesMut);

    /// End of the answer, with the usage of all choices.
    fn end(&mut self, usage: &Usage, out: &mut BytesMut);

    /// Failure in mid-stream: the last event.
    fn error(&mut self, failure: &StreamFailure<'_>, out: &mut BytesMut);

    /// Returns true if a part is held until the end of the stream.
    fn holds(&self, _delta: &Delta) -> bool {
        false
    }

    /// The whole answer of a request that does not stream: one JSON document.
    fn whole(&mut self, completion: &Completion, out: &mut BytesMut);
}

/// Failure of an answer whose beginning the client has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamFailure<'a> {
    /// Cause.
    pub failure: &'a Failure,
    /// Id of the request, if it is text.
    pub request_id: Option<&'a str>,
}
