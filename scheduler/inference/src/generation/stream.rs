//! An answer of generated text as server-sent events.

use super::choice::Parts;
use super::{Event, Generation};
use crate::memory::{AnswerMemory, LONGEST_HELD, size, size_of_tokens};
use crate::outcome::count_failure;
use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame};
use omni_body::BodyPermit;
use omni_generation::encoder::StreamFailure;
use omni_generation::{Delta, ResponseEncoder};
use omni_ingress::StreamCut;
use omni_request_error::Failure;
use omni_supervisor::metrics::Api;
use omni_supervisor::model::Model;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Bytes that are rendered before they are written, when more lie ready.
const WRITE: usize = 64 * 1024;

/// A streamed answer: cancels its request when it is dropped before its end.
pub struct GenerationBody {
    generation: Generation,
    encoder: Box<dyn ResponseEncoder>,
    /// Model and API, for the outcome.
    model: Arc<Model>,
    api: Api,
    /// Request id.
    id: Vec<u8>,
    /// Rendered bytes that were not written yet.
    out: BytesMut,
    memory: AnswerMemory,
    /// Memory of what the answer needs of the request.
    _kept: BodyPermit,
    ended: bool,
}

impl fmt::Debug for GenerationBody {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("GenerationBody").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl GenerationBody {
    pub(crate) fn new(
        (mut generation, kept): (Generation, BodyPermit),
        mut encoder: Box<dyn ResponseEncoder>,
        (model, api, id): (&Arc<Model>, Api, &[u8]),
    ) -> Self {
        let mut out = BytesMut::new();
        encoder.start(&mut out);
        generation.cancel_at_deadline();
        let memory = AnswerMemory::new(&model.body_budget, LONGEST_HELD);
        Self {
            generation,
            encoder,
            model: Arc::clone(model),
            api,
            id: id.to_vec(),
            out,
            memory,
            _kept: kept,
            ended: false,
        }
    }

    /// Counts what is held of parts until the end.
    fn hold(&mut self, parts: &Parts) -> Result<(), Failure> {
        let holds = |delta: &&Delta| self.encoder.holds(delta) || self.generation.holds(delta);
        let held: u64 = parts.deltas.iter().filter(holds).map(size).sum();
        // Tokens belong to the text, and may come without any.
        let tokens = if self.encoder.holds(&Delta::Content(String::new())) { size_of_tokens(&parts.tokens) } else { 0 };
        self.memory.hold(held + tokens)
    }

    fn on_event(&mut self, event: Event) {
        if let Event::Parts(_, parts) = &event
            && let Err(failure) = self.hold(parts)
        {
            return self.fail(&failure);
        }
        let out = &mut self.out;
        match event {
            Event::Begun(_) => {}
            Event::Parts(choice, parts) => {
                if !parts.deltas.is_empty() || !parts.tokens.is_empty() {
                    self.encoder.deltas(choice, &parts.deltas, &parts.tokens, out);
                }
                if let Some(finish) = &parts.finish {
                    self.encoder.finish(choice, finish, out);
                }
            }
            Event::End(usage) => {
                self.encoder.end(&usage, out);
                match self.memory.reserve(out.len() as u64) {
                    Ok(()) => {
                        self.generation.on_complete();
                        self.ended = true;
                    }
                    Err(failure) => self.fail_unwritten(&failure),
                }
            }
            Event::Failed(failure) => self.fail(&failure),
            Event::NotSent => self.fail(&Failure::ShuttingDown),
        }
    }

    /// Fails with what was not written yet: whole events, which nobody has.
    fn fail_unwritten(&mut self, failure: &Failure) {
        self.out.clear();
        self.fail(failure);
    }

    fn fail(&mut self, failure: &Failure) {
        self.generation.cancel();
        count_failure(&self.model, self.api, failure, &self.id);
        let request_id = std::str::from_utf8(&self.id).ok();
        self.encoder.error(&StreamFailure { failure, request_id }, &mut self.out);
        self.ended = true;
    }
}

impl Body for GenerationBody {
    type Data = Bytes;
    type Error = StreamCut;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, StreamCut>>> {
        let body = self.get_mut();
        while !body.ended && body.out.len() < WRITE {
            match body.generation.poll(context) {
                Poll::Ready(event) => body.on_event(event),
                Poll::Pending => break,
            }
        }
        if !body.ended
            && let Err(failure) = body.memory.reserve(body.out.len() as u64)
        {
            body.fail_unwritten(&failure);
        }
        match (body.out.is_empty(), body.ended) {
            (false, _) => Poll::Ready(Some(Ok(Frame::data(body.out.split().freeze())))),
            (true, true) => Poll::Ready(None),
            (true, false) => Poll::Pending,
        }
    }
}
