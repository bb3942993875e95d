//! A request's task: from its body to its last frame.

use super::frames::{cancelled, frame, json, refusal};
use super::registry::Signals;
use super::request::{Refused, SharedRef};
use crate::engine::{Event, Events, FinishReason, Submission, Token, Work, unscored};
use crate::model::shown;
use omni_engine_protocol::frame::{
    AnswerHead, Kind, MAX_ANSWER, MAX_CHUNK, RequestHead, RequestKind, flags, split_head,
};
use omni_engine_protocol::generation::{self, FinishEvent, GenerationEvent, TokenEvent, UsageReport};
use omni_engine_protocol::task::{EMBEDDINGS_TYPE, EmbeddingsHeader, TokenCount};
use omni_tokenizer::{Detokenizer, Place, Special, Tokenizer};
use serde_json::to_vec;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Sender;
use tokio::task::spawn_blocking;

/// Largest body, in bytes.
const MOST_BODY: u64 = 64 << 20;
/// Text that is sent at once where more is there, in bytes.
const PIECE: usize = 16 << 10;

/// Request as it came.
pub(super) struct Incoming {
    pub(super) id: u64,
    pub(super) payload: Vec<u8>,
    pub(super) body: Option<OwnedFd>,
    pub(super) is_streamed: bool,
}

/// The reader of frames is gone: the connection has ended.
struct Gone;

/// Answers a request. Its last frame is always sent, unless the connection has ended.
pub(super) async fn answer(shared: SharedRef, incoming: Incoming, mut signals: Signals, frames: Sender<Vec<u8>>) {
    let id = incoming.id;
    let last = tokio::select! {
        biased;
        status = &mut signals.cancelled => cancelled(id, status.unwrap_or(499)),
        last = compute(&shared, incoming, &signals.credit, &frames) => match last {
            Ok(last) => last,
            Err(Gone) => return,
        },
    };
    let _ = frames.send(last).await;
}

/// Computes an answer, and returns its last frame.
async fn compute(
    shared: &SharedRef,
    incoming: Incoming,
    credit: &tokio::sync::Semaphore,
    frames: &Sender<Vec<u8>>,
) -> Result<Vec<u8>, Gone> {
    let id = incoming.id;
    let submitted = {
        let shared = Arc::clone(shared);
        // Tokens of a long prompt and grammars take their time.
        spawn_blocking(move || prepare(&shared, incoming)).await
    };
    let work = match submitted {
        Ok(Ok(work)) => work,
        Ok(Err(refused)) => return Ok(refusal(id, &refused)),
        Err(_) => return Ok(refusal(id, &Refused::invalid(None, "the request could not be read"))),
    };
    match work {
        Prepared::Count(tokens) => {
            Ok(json(Kind::Response, flags::JSON, 200, id, &TokenCount { tokens: tokens as u64 }))
        }
        Prepared::Generate(submission, echo) => {
            let repeated = echo.then(|| (Arc::clone(&submission.prompt), scores(&submission)));
            match shared.engine.submit(submission) {
                Ok(events) => Text { shared, id, credit, frames, begun: false }.send(events, repeated).await,
                Err(failure) => Ok(refusal(id, &Refused::from(&failure))),
            }
        }
        Prepared::Embed(submissions) => Ok(embeddings(shared, id, submissions).await),
    }
}

/// Request in tokens.
enum Prepared {
    Count(usize),
    /// Text, with the tokens of the prompt before it or without.
    Generate(Submission, bool),
    Embed(Vec<Submission>),
}

fn prepare(shared: &SharedRef, incoming: Incoming) -> Result<Prepared, Refused> {
    let malformed = |_| Refused::invalid(None, "the request has no head");
    let (head, body) = split_head(&incoming.payload).map_err(malformed)?;
    let head: RequestHead = serde_json::from_slice(head).map_err(|error| Refused::invalid(None, error.to_string()))?;
    let deadline = Instant::now() + Duration::from_millis(head.timeout_ms);
    let mut streamed = Vec::new();
    let body = match (incoming.is_streamed, incoming.body) {
        (false, _) => body,
        (true, None) => return Err(Refused { status: 503, ..Refused::invalid(None, "there is no room for its body") }),
        (true, Some(socket)) => {
            let mut socket = UnixStream::from(socket).take(MOST_BODY + 1);
            socket.read_to_end(&mut streamed).map_err(|error| Refused::invalid(None, error.to_string()))?;
            streamed.as_slice()
        }
    };
    if body.len() as u64 > MOST_BODY {
        return Err(Refused { status: 413, ..Refused::invalid(None, "the body is larger than 64 MiB") });
    }
    match head.kind {
        Some(RequestKind::TextGeneration) => {
            shared.requests.generation(body, deadline).map(|(submission, echo)| Prepared::Generate(submission, echo))
        }
        Some(RequestKind::CountTokens) => shared.requests.count(body).map(Prepared::Count),
        Some(RequestKind::Embeddings) => shared.requests.embeddings(body, deadline).map(Prepared::Embed),
        Some(
            RequestKind::Rerank | RequestKind::SpeechToText | RequestKind::TextToSpeech | RequestKind::TextToImage,
        )
        | None => Err(Refused::invalid(None, "the native engine generates text and makes embeddings")),
    }
}

/// Returns true if the engine gives log probabilities of the prompt.
fn scores(submission: &Submission) -> bool {
    matches!(&submission.work, Work::Generate(generation) if generation.prompt_logprobs)
}

/// Answer of generated text on its way.
struct Text<'a> {
    shared: &'a SharedRef,
    id: u64,
    credit: &'a tokio::sync::Semaphore,
    frames: &'a Sender<Vec<u8>>,
    begun: bool,
}

impl Text<'_> {
    /// Sends the answer. `repeated`: the prompt to repeat once the engine has begun, and whether its log probabilities come.
    async fn send(mut self, mut events: Events, mut repeated: Option<(Arc<[u32]>, bool)>) -> Result<Vec<u8>, Gone> {
        let tokenizer = Arc::clone(&self.shared.requests.model.tokenizer);
        let mut decoder = Detokenizer::new(tokenizer, Place::Continuation, Special::Hidden);
        let (mut text, mut reason) = (String::new(), None);
        while let Some(event) = events.recv().await {
            if !matches!(event, Event::Failed(_))
                && let Some((prompt, scores)) = repeated.take()
            {
                for token in unscored(&prompt, scores) {
                    self.prompt_token(&token).await?;
                }
            }
            match event {
                Event::Prompt(token) => self.prompt_token(&token).await?,
                Event::Token { token, .. } if token.logprob.is_some() => self.token(&token).await?,
                Event::Token { token, .. } => {
                    // Ids of the engine are those of the vocabulary.
                    let _ = decoder.push(token.id, &mut text);
                    if text.len() >= PIECE || events.is_empty() {
                        self.text(&mut text).await?;
                    }
                }
                Event::Finished { reason: why, .. } => reason = Some(why),
                Event::Ended(usage) => {
                    decoder.finish(&mut text);
                    self.text(&mut text).await?;
                    let usage = UsageReport {
                        prompt_tokens: usage.prompt as u64,
                        completion_tokens: usage.completion as u64,
                        cached_tokens: usage.cached as u64,
                        reasoning_tokens: 0,
                    };
                    let reason = reason.map(|reason| match reason {
                        FinishReason::Stop => generation::FinishReason::Stop,
                        FinishReason::Length => generation::FinishReason::Length,
                    });
                    self.event(&GenerationEvent::Finish(FinishEvent { reason, usage: Some(usage) })).await?;
                    return Ok(frame(Kind::End, 0, 0, self.id, b""));
                }
                Event::Failed(failure) => return Ok(refusal(self.id, &Refused::from(&failure))),
                Event::Embedding(_) => {}
            }
        }
        Ok(refusal(self.id, &Refused::from(&crate::engine::Failure::Ending)))
    }

    async fn text(&mut self, text: &mut String) -> Result<(), Gone> {
        if !text.is_empty() {
            self.chunk(flags::TEXT, text.as_bytes()).await?;
            text.clear();
        }
        Ok(())
    }

    /// Sends a token of the prompt.
    async fn prompt_token(&mut self, token: &Token) -> Result<(), Gone> {
        let event = token_event(&self.shared.requests.model.tokenizer, token);
        self.event(&GenerationEvent::Prompt(event)).await
    }

    /// Sends a token of the answer with its log probability and its own bytes, which may be part of a character. A control
    /// token is no text.
    async fn token(&mut self, token: &Token) -> Result<(), Gone> {
        let tokenizer = &self.shared.requests.model.tokenizer;
        let mut event = token_event(tokenizer, token);
        if tokenizer.is_special(token.id) {
            event.bytes = Some(Vec::new());
        }
        self.event(&GenerationEvent::Token(event)).await
    }

    async fn event(&mut self, event: &GenerationEvent) -> Result<(), Gone> {
        let payload = to_vec(event).unwrap_or_default();
        self.chunk(flags::EVENT, &payload).await
    }

    /// Sends a chunk once there is credit for it. The stream begins with its first chunk: what fails before that is an
    /// error with a status of its own.
    async fn chunk(&mut self, content: u8, payload: &[u8]) -> Result<(), Gone> {
        if !self.begun {
            self.begun = true;
            self.frames.send(frame(Kind::Stream, flags::EVENT, 200, self.id, b"")).await.map_err(|_| Gone)?;
        }
        for piece in pieces(payload, content) {
            let cost = u32::try_from(piece.len() + 16).unwrap_or(u32::MAX);
            self.credit.acquire_many(cost).await.map_err(|_| Gone)?.forget();
            self.frames.send(frame(Kind::Chunk, content, 0, self.id, piece)).await.map_err(|_| Gone)?;
        }
        Ok(())
    }
}

fn token_event(tokenizer: &Tokenizer, token: &Token) -> TokenEvent {
    let (text, bytes) = shown(tokenizer, token.id);
    let alternative =
        |(id, logprob): &(u32, f32)| generation::Alternative { text: shown(tokenizer, *id).0, logprob: *logprob };
    let top = token.top.iter().map(alternative).collect();
    TokenEvent { text, bytes, id: Some(token.id), logprob: token.logprob, top }
}

/// Parts of a payload that fit into chunks: text is cut between characters, events are shorter than a chunk.
fn pieces(payload: &[u8], content: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = payload;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut end = rest.len().min(MAX_CHUNK);
        while content == flags::TEXT && end < rest.len() && rest.get(end).is_some_and(|byte| byte & 0xc0 == 0x80) {
            end -= 1;
        }
        let (piece, after) = rest.split_at_checked(end)?;
        rest = after;
        Some(piece)
    })
}

/// Last frame of a request for embeddings.
async fn embeddings(shared: &SharedRef, id: u64, submissions: Vec<Submission>) -> Vec<u8> {
    let (count, dimensions) = (submissions.len(), shared.requests.model.spec.hidden);
    let bytes = count.saturating_mul(dimensions).saturating_mul(4);
    if bytes + 1024 > MAX_ANSWER {
        let message = format!("embeddings of {count} inputs have {bytes} bytes: ask for fewer at a time");
        return refusal(id, &Refused::invalid(Some("input"), message));
    }
    let prompt_tokens = submissions.iter().map(|submission| submission.prompt.len() as u64).sum();
    let usage = Some(UsageReport { prompt_tokens, ..UsageReport::default() });
    let header = to_vec(&EmbeddingsHeader { count, dimensions, usage }).unwrap_or_default();
    let head = to_vec(&AnswerHead { media_type: Some(EMBEDDINGS_TYPE.to_owned()), ..AnswerHead::default() });
    let mut payload = with_length(&head.unwrap_or_default());
    payload.extend(with_length(&header));
    for submission in submissions {
        let embedding = match shared.engine.submit(submission) {
            Ok(mut events) => embedding(&mut events).await,
            Err(failure) => Err(Refused::from(&failure)),
        };
        match embedding {
            Ok(numbers) => payload.extend(numbers.iter().flat_map(|number| number.to_le_bytes())),
            Err(refused) => return refusal(id, &refused),
        }
    }
    frame(Kind::Response, flags::BYTES | flags::HEAD, 200, id, &payload)
}

async fn embedding(events: &mut Events) -> Result<Vec<f32>, Refused> {
    let mut numbers = Vec::new();
    loop {
        match events.recv().await {
            Some(Event::Embedding(embedding)) => numbers = embedding,
            Some(Event::Ended(_)) => return Ok(numbers),
            Some(Event::Failed(failure)) => return Err(Refused::from(&failure)),
            Some(Event::Prompt(_) | Event::Token { .. } | Event::Finished { .. }) => {}
            None => return Err(Refused::from(&crate::engine::Failure::Ending)),
        }
    }
}

fn with_length(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes(), bytes].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_between_characters() {
        let text = "é".repeat(MAX_CHUNK);
        let parts: Vec<&[u8]> = pieces(text.as_bytes(), flags::TEXT).collect();
        assert_eq!(parts.concat(), text.as_bytes());
        assert!(parts.iter().all(|part| part.len() <= MAX_CHUNK && std::str::from_utf8(part).is_ok()));
        assert_eq!(pieces(b"", flags::TEXT).count(), 0);
    }
}
