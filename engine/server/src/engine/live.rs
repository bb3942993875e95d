//! Requests that live in the engine's thread.

use super::drafts::Drafts;
use super::events::EventSender;
use super::queue::QueuePermit;
use super::submission::{Event, Failure, FinishReason, Generation, Submission, Token, Usage, Work};
use omni_batcher::{Outcome, Scheduled};
use omni_sampler::{Choice as SamplerChoice, Progress, SampleError, Sampled, Sampler, Vocabulary, Workspace};
use omni_speculation::{LogitRows, verify};
use std::sync::Arc;

/// Request.
pub(super) struct Live {
    events: EventSender,
    prompt: Arc<[u32]>,
    /// Wanted answers, until the first token of the request is computed.
    waiting: Option<Waiting>,
    choices: Vec<Choice>,
    /// Alternatives of the prompt's log probabilities.
    prompt_top: usize,
    usage: Usage,
}

/// Request of which nothing is computed.
struct Waiting {
    generation: Option<Box<Generation>>,
    _memory: QueuePermit,
}

/// Answer of a request.
pub(super) struct Choice {
    pub(super) sampler: Sampler,
    pub(super) drafts: Drafts,
    /// Tokens of the answer, end tokens included.
    answered: usize,
    max_tokens: usize,
    is_finished: bool,
}

/// State of a choice after a step.
pub(super) struct Advanced {
    pub(super) outcome: Outcome,
    pub(super) drafted: usize,
}

impl Live {
    /// Makes the state of a request that waits, and holds no more than it came with.
    pub(super) fn new(
        submission: Submission,
        vocabulary: &Vocabulary,
        events: EventSender,
        memory: QueuePermit,
    ) -> Result<Self, (EventSender, Failure)> {
        let Submission { prompt, work, .. } = submission;
        let (generation, prompt_top) = match work {
            Work::Embed => (None, 0),
            Work::Generate(generation) => {
                if let Err(error) = generation.parameters.check(vocabulary, &prompt) {
                    return Err((events, error.into()));
                }
                let top = generation.parameters.logprobs.unwrap_or(0).into();
                (Some(generation), top)
            }
        };
        let usage = Usage { prompt: prompt.len(), ..Usage::default() };
        let waiting = Some(Waiting { generation, _memory: memory });
        Ok(Self { events, prompt, waiting, choices: Vec::new(), prompt_top, usage })
    }

    /// Makes the state of the answers, as the request's first tokens were computed.
    pub(super) fn begin(&mut self, vocabulary: &Vocabulary) -> Result<(), Failure> {
        let Some(generation) = self.waiting.take().and_then(|waiting| waiting.generation) else { return Ok(()) };
        let choice = |index| Choice::new(index, &self.prompt, &generation, vocabulary);
        self.choices = (0..generation.choices).map(choice).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Log probabilities of the prompt's tokens that a segment has rows for. Returns the number of these rows.
    pub(super) fn prompt_rows(
        &mut self,
        scheduled: &Scheduled,
        rows: &mut impl LogitRows,
        vocabulary: &Vocabulary,
        workspace: &mut Workspace,
    ) -> Result<usize, SampleError> {
        let count = scheduled.rows.len().min(self.prompt.len().saturating_sub(scheduled.position));
        for index in 0..count {
            let Some(&id) = self.prompt.get(scheduled.position + index) else { break };
            let logprob = Sampler::score(vocabulary, rows.row(index), id, self.prompt_top, workspace)?;
            let top = alternatives(workspace, self.prompt_top);
            self.events.keep(Event::Prompt(Token { id, logprob: Some(logprob), top }));
        }
        Ok(count)
    }

    /// Samples a choice's tokens from the last rows of a segment.
    pub(super) fn advance(
        &mut self,
        number: u32,
        scheduled: &Scheduled,
        rows: &mut impl LogitRows,
        vocabulary: &Vocabulary,
        workspace: &mut Workspace,
    ) -> Result<Option<Advanced>, SampleError> {
        self.usage.cached = scheduled.cached;
        self.events.set_cached(scheduled.cached);
        let Some(choice) = self.choices.get_mut(number as usize).filter(|choice| !choice.is_finished) else {
            return Ok(None);
        };
        let mut tokens: Vec<Token> = Vec::with_capacity(1 + scheduled.drafts);
        let draft = choice.drafts.verified(scheduled.drafts);
        let each = |sampled: Sampled, workspace: &Workspace| {
            let top = if sampled.logprob.is_some() { alternatives(workspace, usize::MAX) } else { Vec::new() };
            tokens.push(Token { id: sampled.token, logprob: sampled.logprob, top });
        };
        let progress = verify(&mut choice.sampler, draft, rows, workspace, each);
        let ended = matches!(progress, Ok(Progress::Ended));
        let left = choice.max_tokens - choice.answered;
        tokens.truncate(left);
        choice.answered += tokens.len();
        self.usage.completion += tokens.len();
        let accepted = tokens.iter().zip(draft).take_while(|(token, drafted)| token.id == **drafted).count();
        let reason = match ended {
            true => Some(FinishReason::Stop),
            false if choice.answered >= choice.max_tokens => Some(FinishReason::Length),
            false => None,
        };
        choice.drafts.accept(&tokens);
        let next = tokens.get(accepted).map(|token| token.id).filter(|_| reason.is_none());
        let outcome = Outcome { request: scheduled.request, choice: number, accepted, next };
        choice.is_finished = reason.is_some();
        let is_end = ended && tokens.last().is_some_and(|token| vocabulary.end_tokens().contains(&token.id));
        let shown = tokens.len() - usize::from(is_end);
        for token in tokens.into_iter().take(shown) {
            self.events.keep(Event::Token { choice: number, token });
        }
        progress?;
        if let Some(reason) = reason {
            self.events.keep(Event::Finished { choice: number, reason });
        }
        Ok(Some(Advanced { outcome, drafted: scheduled.drafts }))
    }

    /// Choice that goes on.
    pub(super) fn open(&mut self, number: u32) -> Option<&mut Choice> {
        self.choices.get_mut(number as usize).filter(|choice| !choice.is_finished)
    }

    /// Returns true if a choice goes on.
    pub(super) fn is_open(&self, number: u32) -> bool {
        self.choices.get(number as usize).is_some_and(|choice| !choice.is_finished)
    }

    /// Ends the choices that their recipient has stopped since the last call, and gives them to `each`.
    pub(super) fn take_stopped(&mut self, mut each: impl FnMut(u32)) {
        if !self.events.take_stop() {
            return;
        }
        for (number, choice) in (0..).zip(&mut self.choices) {
            if !choice.is_finished && self.events.is_stopped(number) {
                choice.is_finished = true;
                each(number);
            }
        }
    }

    pub(super) fn keep_embedding(&mut self, row: &[f32]) {
        self.events.keep(Event::Embedding(row.to_vec()));
    }

    /// Returns true if nothing more is to be sampled.
    pub(super) fn is_finished(&self) -> bool {
        match self.waiting.as_ref().and_then(|waiting| waiting.generation.as_ref()) {
            Some(generation) => generation.max_tokens == 0,
            None => self.choices.iter().all(|choice| choice.is_finished),
        }
    }

    /// Sends the events of the step.
    pub(super) fn send_events(&mut self) {
        self.events.send_kept();
    }

    /// Returns true if nobody waits for the answer any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.events.is_abandoned()
    }

    pub(super) fn end(self) {
        self.events.end(Event::Ended(self.usage));
    }

    pub(super) fn fail(self, failure: Failure) {
        self.events.end(Event::Failed(failure));
    }
}

impl Choice {
    fn new(index: u32, prompt: &[u32], generation: &Generation, vocabulary: &Vocabulary) -> Result<Self, Failure> {
        let max_tokens = generation.max_tokens;
        let choice = SamplerChoice { index, prompt, max_tokens, grammar: generation.grammar.clone() };
        let sampler = Sampler::new(&generation.parameters, vocabulary, choice)?;
        let drafts = Drafts::new(prompt, max_tokens);
        Ok(Self { sampler, drafts, answered: 0, max_tokens, is_finished: max_tokens == 0 })
    }

    /// Most tokens that a draft may have: one more is sampled after it.
    pub(super) fn room(&self) -> usize {
        self.max_tokens.saturating_sub(self.answered + 1)
    }
}

fn alternatives(workspace: &Workspace, most: usize) -> Vec<(u32, f32)> {
    workspace.alternatives().iter().take(most).map(|other| (other.token, other.logprob)).collect()
}

/// Most events of a request, and its choices: the bounds of its channel.
pub(super) fn most_events(submission: &Submission) -> (u32, usize) {
    let (choices, answers) = match &submission.work {
        Work::Embed => (0, 1),
        Work::Generate(generation) => {
            let answers = (generation.choices as usize).saturating_mul(generation.max_tokens.saturating_add(1));
            (generation.choices, answers)
        }
    };
    let events = answers.saturating_add(submission.prompt.len()).saturating_add(2);
    (choices, events.min(tokio::sync::Semaphore::MAX_PERMITS))
}
