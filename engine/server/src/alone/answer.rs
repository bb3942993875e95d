//! Answers of generated text: as server-sent events, or as one document.

use super::generation::{Generation, Progress};
use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame};
use omni_generation::encoder::StreamFailure;
use omni_generation::{Completion, ResponseEncoder};
use omni_request_error::Failure;
use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Bytes that are rendered before they are written, when more lie ready.
const WRITE: usize = 64 * 1024;
/// Bytes of a short document.
const WHOLE: usize = 2048;

/// A streamed answer: cancels its request when it is dropped before its end.
pub(super) struct AnswerBody {
    generation: Generation,
    encoder: Box<dyn ResponseEncoder>,
    /// Rendered bytes that were not written yet.
    out: BytesMut,
    ended: bool,
}

impl fmt::Debug for AnswerBody {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("AnswerBody").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl AnswerBody {
    /// The stream of an answer that has begun.
    pub(super) fn new(generation: Generation, mut encoder: Box<dyn ResponseEncoder>) -> Self {
        let mut out = BytesMut::new();
        encoder.start(&mut out);
        Self { generation, encoder, out, ended: false }
    }

    fn on_progress(&mut self, progress: Progress) {
        let out = &mut self.out;
        match progress {
            Progress::Parts(choice, parts) => {
                if !parts.deltas.is_empty() || !parts.tokens.is_empty() {
                    self.encoder.deltas(choice, &parts.deltas, &parts.tokens, out);
                }
                if let Some(finish) = &parts.finish {
                    self.encoder.finish(choice, finish, out);
                }
            }
            Progress::End(usage) => {
                self.encoder.end(&usage, out);
                self.ended = true;
            }
            Progress::Failed(failure) => {
                self.encoder.error(&StreamFailure { failure: &failure, request_id: None }, out);
                self.ended = true;
            }
        }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let body = self.get_mut();
        while !body.ended && body.out.len() < WRITE {
            match body.generation.poll(context) {
                Poll::Ready(progress) => body.on_progress(progress),
                Poll::Pending => break,
            }
        }
        match (body.out.is_empty(), body.ended) {
            (false, _) => Poll::Ready(Some(Ok(Frame::data(body.out.split().freeze())))),
            (true, true) => Poll::Ready(None),
            (true, false) => Poll::Pending,
        }
    }
}

/// Collects a whole answer as a document.
///
/// # Errors
/// The answer has failed.
pub(super) async fn collect(
    mut generation: Generation,
    mut encoder: Box<dyn ResponseEncoder>,
) -> Result<Bytes, Failure> {
    let mut completion =
        Completion { choices: vec![Default::default(); generation.choices()], ..Completion::default() };
    loop {
        match generation.next().await {
            Progress::Parts(number, parts) => {
                if let Some(choice) = completion.choices.get_mut(number) {
                    choice.extend(&parts.deltas, &parts.tokens);
                    choice.finish = parts.finish.or(choice.finish.take());
                }
            }
            Progress::End(usage) => {
                completion.usage = usage;
                let mut out = BytesMut::with_capacity(WHOLE);
                encoder.whole(&completion, &mut out);
                return Ok(out.freeze());
            }
            Progress::Failed(failure) => return Err(failure),
        }
    }
}
