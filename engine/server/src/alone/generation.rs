//! An answer in progress: all choices of all prompts, as one sequence of parts.

use super::choice::{Choice, token_info};
use super::failure::of_engine;
use super::service::TextModel;
use crate::engine::{Event, Events, Token, Usage as EngineUsage, unscored};
use omni_answer::{Echo, Parts};
use omni_generation::{Piece, Prompt, Usage};
use omni_request_error::Failure;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Progress of an answer. Nothing follows an end or a failure.
pub(super) enum Progress {
    /// Parts of the choice with this number.
    Parts(usize, Parts),
    /// All choices have ended; their usage.
    End(Usage),
    /// The answer has failed.
    Failed(Failure),
}

/// An answer in progress. Dropped before its end, it cancels what runs.
pub(super) struct Generation {
    text: Arc<TextModel>,
    answers: Vec<Answer>,
    /// Answer that is polled first: the one after the last that had something.
    first: usize,
    /// Parts that wait.
    parts: VecDeque<(usize, Parts)>,
    /// Progress of the beginning, until it is asked for.
    begun: VecDeque<Progress>,
    usage: Usage,
}

/// Answers to one prompt.
pub(super) struct Answer {
    /// Events; `None`: nothing more comes.
    events: Option<Events>,
    prompt_tokens: usize,
    choices: Vec<Choice>,
    /// Repetition of the prompt's tokens, until it was sent.
    repetition: Option<Repetition>,
}

/// Repetition of a prompt, in parts until its answers begin.
pub(super) struct Repetition {
    echo: Echo,
    parts: Parts,
}

impl Repetition {
    /// Repeats the tokens of a prompt, or the client's text with them.
    pub(super) fn new(text: &TextModel, prompt: &Prompt, tokens: &[u32], with_logprobs: bool) -> Self {
        let own = match prompt {
            Prompt::Text(prompt) => Some(prompt.as_str().into()),
            Prompt::Tokens(_) | Prompt::Chat(_) => None,
        };
        let mut repetition = Self { echo: Echo::new(own, with_logprobs), parts: Parts::default() };
        for token in unscored(tokens, with_logprobs) {
            repetition.push(text, &token);
        }
        repetition
    }

    fn push(&mut self, text: &TextModel, token: &Token) {
        let bytes = text.tokenizer.token_bytes(token.id).unwrap_or_default().to_vec();
        self.echo.push(Piece { bytes, token: Some(token_info(text, token)) }, &mut self.parts);
    }

    /// All parts of it.
    fn end(self) -> Parts {
        let Self { echo, mut parts } = self;
        let _has_tokens = echo.end(&mut parts); // a prompt has some
        parts
    }
}

impl Answer {
    pub(super) fn new(
        events: Events,
        prompt_tokens: usize,
        choices: Vec<Choice>,
        repetition: Option<Repetition>,
    ) -> Self {
        Self { events: Some(events), prompt_tokens, choices, repetition }
    }

    /// Takes an event. `number`: that of the first choice. Returns true if the answers have ended.
    fn take(
        &mut self,
        event: Event,
        (text, number): (&TextModel, usize),
        parts: &mut VecDeque<(usize, Parts)>,
        usage: &mut Usage,
    ) -> Result<bool, Failure> {
        if !matches!(event, Event::Prompt(_))
            && let Some(repetition) = self.repetition.take()
        {
            let Parts { deltas, tokens, finish: _ } = repetition.end();
            for choice in 0..self.choices.len() {
                let (deltas, tokens) = (deltas.clone(), tokens.clone());
                parts.push_back((number + choice, Parts { deltas, tokens, finish: None }));
            }
        }
        let mut add = |choice: u32, added: Parts| {
            if !added.is_empty() {
                parts.push_back((number + choice as usize, added));
            }
        };
        match event {
            Event::Prompt(token) => {
                if let Some(repetition) = &mut self.repetition {
                    repetition.push(text, &token);
                }
            }
            Event::Token { choice, token } => {
                if let Some(open) = self.choices.get_mut(choice as usize) {
                    add(choice, open.push(text, &token));
                    if let Some(events) = self.events.as_ref().filter(|_| open.is_stopped()) {
                        events.stop(choice);
                    }
                }
            }
            Event::Finished { choice, reason } => {
                if let Some(open) = self.choices.get_mut(choice as usize) {
                    add(choice, open.end(reason));
                }
            }
            Event::Embedding(_) => {}
            Event::Ended(ended) => {
                self.count(Some(ended), usage);
                return Ok(true);
            }
            Event::Failed(failure) => return Err(of_engine(failure)),
        }
        let is_over = self.choices.iter().all(Choice::is_over);
        // The engine says the usage, unless it would go on behind a stop string.
        let is_stopped = is_over && self.choices.iter().any(Choice::is_stopped);
        if is_stopped {
            self.count(None, usage);
        }
        Ok(is_stopped)
    }

    /// Adds the usage of the answers: as the engine has counted it, unless it went on behind a stop string.
    fn count(&self, ended: Option<EngineUsage>, usage: &mut Usage) {
        let counted = self.choices.iter().map(|choice| choice.counted().completion_tokens).sum();
        let exact = ended.filter(|_| !self.choices.iter().any(Choice::is_stopped));
        let completion_tokens = exact.map_or(counted, |ended| ended.completion as u64);
        usage.add(
            Usage {
                prompt_tokens: self.prompt_tokens as u64,
                completion_tokens,
                cached_tokens: self.events.as_ref().map_or(0, |events| events.cached() as u64),
                reasoning_tokens: 0,
            },
            false,
        );
    }
}

impl Generation {
    pub(super) fn new(text: Arc<TextModel>, answers: Vec<Answer>) -> Self {
        Self { text, answers, first: 0, parts: VecDeque::new(), begun: VecDeque::new(), usage: Usage::default() }
    }

    /// Number of choices.
    pub(super) fn choices(&self) -> usize {
        self.answers.iter().map(|answer| answer.choices.len()).sum()
    }

    /// Waits for the beginning: a request that is refused fails here.
    pub(super) async fn begin(&mut self) -> Result<(), Failure> {
        std::future::poll_fn(|context| {
            loop {
                match self.poll_new(context) {
                    Poll::Ready(Progress::Failed(failure)) => return Poll::Ready(Err(failure)),
                    Poll::Ready(progress @ Progress::Parts(..)) => self.begun.push_back(progress),
                    Poll::Ready(progress @ Progress::End(_)) => {
                        self.begun.push_back(progress);
                        return Poll::Ready(Ok(()));
                    }
                    Poll::Pending if self.begun.is_empty() => return Poll::Pending,
                    Poll::Pending => return Poll::Ready(Ok(())),
                }
            }
        })
        .await
    }

    /// Next progress.
    pub(super) async fn next(&mut self) -> Progress {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    /// Polls for the next progress.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Progress> {
        match self.begun.pop_front() {
            Some(progress) => Poll::Ready(progress),
            None => self.poll_new(context),
        }
    }

    fn poll_new(&mut self, context: &mut Context<'_>) -> Poll<Progress> {
        loop {
            if let Some((number, parts)) = self.parts.pop_front() {
                return Poll::Ready(Progress::Parts(number, parts));
            }
            if self.answers.iter().all(|answer| answer.events.is_none()) {
                return Poll::Ready(Progress::End(self.usage));
            }
            if let Err(failure) = std::task::ready!(self.poll_answers(context)) {
                self.cancel();
                return Poll::Ready(Progress::Failed(failure));
            }
        }
    }

    /// Takes the next event of any answer.
    fn poll_answers(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let count = self.answers.len();
        let per_prompt = self.choices() / count.max(1);
        for index in (0..count).map(|turn| (self.first + turn) % count) {
            let Some(answer) = self.answers.get_mut(index) else { continue };
            let Some(events) = &mut answer.events else { continue };
            let Poll::Ready(event) = events.poll_recv(context) else { continue };
            self.first = index + 1;
            let Some(event) = event else { return Poll::Ready(Err(Failure::Died)) };
            let of = (&*self.text, index * per_prompt);
            return Poll::Ready(answer.take(event, of, &mut self.parts, &mut self.usage).map(|ended| {
                if ended {
                    answer.events = None;
                }
            }));
        }
        Poll::Pending
    }

    /// Cancels what runs.
    pub(super) fn cancel(&mut self) {
        for answer in &mut self.answers {
            answer.events = None;
        }
    }
}
