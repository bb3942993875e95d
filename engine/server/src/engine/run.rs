//! The engine's thread.

use super::StartError;
use super::draft_model::{Draft, DraftEngine, Wish};
use super::events::EventSender;
use super::live::Live;
use super::queue::QueuePermit;
use super::status::{Shared, Status};
use super::submission::{Event, Failure, Submission, Work};
use omni_batcher::{Batcher, Limits, Outcome, Request, RequestId, Scheduled};
use omni_kernels::{Backend, BackendError, StepPlan};
use omni_sampler::{Vocabulary, Workspace};
use omni_speculation::StepCost;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Time between two looks for requests that nobody waits for any more, while the backend sleeps.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes that requests which wait may take together, if nothing else is said.
const QUEUED: usize = 64 << 20;
/// Age of a step from which the engine counts as hung, if nothing else is said: prompts take seconds at most.
const HUNG: Duration = Duration::from_secs(60);

/// Settings of an engine.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Bounds of the batcher.
    pub limits: Limits,
    /// Token ids that can be sampled.
    pub vocabulary: Vocabulary,
    /// Rows are vectors of prompts, not logits.
    pub embeds: bool,
    /// Drafts of tokens.
    pub drafting: Drafting,
    /// Bytes that requests which wait may take together.
    pub queued_bytes: usize,
    /// Age of a step from which the engine counts as hung.
    pub hung: Duration,
}

/// Drafts of tokens: of the draft model, or from the sequence itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drafting {
    /// None.
    Off,
    /// Where they pay.
    Adaptive,
    /// At most so many at each position, whether they pay or not: for tests and measurements.
    Fixed(usize),
}

impl Settings {
    /// Settings of a model that makes text.
    #[must_use]
    pub fn new(limits: Limits, vocabulary: Vocabulary) -> Self {
        let drafting = Drafting::Adaptive;
        Self { limits, vocabulary, embeds: false, drafting, queued_bytes: QUEUED, hung: HUNG }
    }
}

/// Command to the thread.
pub(super) enum Command {
    /// A request.
    Submit(Box<Submitted>),
    /// The memory is given back.
    Sleep(oneshot::Sender<Result<u64, Failure>>),
    /// The memory is taken again.
    Wake(oneshot::Sender<Result<(), Failure>>),
}

/// Request with the recipient of its events and the memory that it takes while it waits.
pub(super) struct Submitted {
    pub(super) submission: Submission,
    pub(super) events: EventSender,
    pub(super) memory: QueuePermit,
}

/// State of the thread.
pub(super) struct Run<B> {
    pub(super) backend: B,
    pub(super) draft_engine: Option<DraftEngine>,
    pub(super) batcher: Batcher,
    pub(super) settings: Settings,
    commands: Receiver<Command>,
    shared: Arc<Shared>,
    pub(super) status: Status,
    began: Instant,
    last_id: u64,
    pub(super) live: BTreeMap<RequestId, Live>,
    pub(super) cost: StepCost,
    pub(super) step: Step,
}

/// Memory of a step, kept for the next one.
pub(super) struct Step {
    plan: StepPlan,
    pub(super) scheduled: Vec<Scheduled>,
    pub(super) outcomes: Vec<Outcome>,
    pub(super) drafted: Vec<usize>,
    pub(super) wishes: Vec<Wish>,
    pub(super) failed: Vec<(RequestId, Failure)>,
    ended: Vec<RequestId>,
    pub(super) workspace: Workspace,
    /// Row that several choices sample, each from a copy.
    pub(super) row: Vec<f32>,
}

impl<B: Backend> Run<B> {
    pub(super) fn new(
        mut backend: B,
        draft: Option<Draft>,
        settings: Settings,
        commands: Receiver<Command>,
        shared: Arc<Shared>,
    ) -> Result<Self, StartError> {
        let batcher = Batcher::new(settings.limits)?;
        backend.reserve(settings.limits.capacity())?;
        let draft_engine = draft.map(|draft| DraftEngine::new(draft, &settings.limits)).transpose()?;
        let status = Status { batcher: batcher.status(), ..Status::default() };
        shared.write(status, true, Instant::now());
        let sequences = settings.limits.sequences;
        let step = Step {
            plan: StepPlan::default(),
            scheduled: Vec::with_capacity(sequences),
            outcomes: Vec::with_capacity(sequences),
            drafted: Vec::with_capacity(sequences),
            wishes: Vec::with_capacity(sequences),
            failed: Vec::new(),
            ended: Vec::new(),
            workspace: Workspace::new(&settings.vocabulary),
            row: Vec::with_capacity(backend.facts().row_width),
        };
        Ok(Self {
            backend,
            draft_engine,
            batcher,
            settings,
            commands,
            shared,
            status,
            began: Instant::now(),
            last_id: 0,
            live: BTreeMap::new(),
            cost: StepCost::default(),
            step,
        })
    }

    /// Computes until nobody can give commands any more.
    pub(super) fn run(mut self) {
        while self.take_commands() {
            self.end_unwanted();
            self.expire();
            if !self.status.is_asleep && !self.live.is_empty() {
                self.compute();
            }
            self.give_draft_blocks_back();
            self.publish();
        }
        for (_, live) in std::mem::take(&mut self.live) {
            live.fail(Failure::Ending);
        }
    }

    /// Writes the numbers that others read.
    fn publish(&mut self) {
        self.status.batcher = self.batcher.status();
        let is_idle = self.live.is_empty() || self.status.is_asleep;
        self.shared.write(self.status, is_idle, Instant::now());
    }

    /// Takes the commands that are there, and waits for one while there is nothing to compute. Returns false if none can
    /// come any more.
    fn take_commands(&mut self) -> bool {
        loop {
            let command = if self.live.is_empty() {
                self.commands.recv().map_err(|_| TryRecvError::Disconnected)
            } else if self.status.is_asleep {
                self.commands.recv_timeout(LOOK).map_err(|error| match error {
                    RecvTimeoutError::Timeout => TryRecvError::Empty,
                    RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
                })
            } else {
                self.commands.try_recv()
            };
            match command {
                Ok(command) => self.take(command),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Submit(submitted) => self.submit(*submitted),
            Command::Sleep(reply) => {
                let slept = self.sleep().map_err(|error| Failure::Backend(error.to_string()));
                let _ = reply.send(slept);
            }
            Command::Wake(reply) => {
                let woken = self.wake().map_err(|error| Failure::Backend(error.to_string()));
                let _ = reply.send(woken);
            }
        }
    }

    fn sleep(&mut self) -> Result<u64, BackendError> {
        let bytes = self.backend.sleep()?;
        self.status.is_asleep = true;
        self.batcher.forget();
        Ok(bytes + self.draft_engine.as_mut().map_or(Ok(0), DraftEngine::sleep)?)
    }

    fn wake(&mut self) -> Result<(), BackendError> {
        self.backend.wake()?;
        self.draft_engine.as_mut().map_or(Ok(()), DraftEngine::wake)?;
        self.status.is_asleep = false;
        Ok(())
    }

    fn submit(&mut self, submitted: Submitted) {
        self.last_id += 1;
        let id = RequestId(self.last_id);
        let Submitted { submission, events, memory } = submitted;
        let request = match self.request(id, &submission) {
            Ok(request) => request,
            Err(failure) => return events.end(Event::Failed(failure)),
        };
        match Live::new(submission, &self.settings.vocabulary, events, memory) {
            Ok(live) => match self.batcher.add(request, self.began.elapsed()) {
                Ok(()) => {
                    self.live.insert(id, live);
                }
                Err(refusal) => live.fail(refusal.into()),
            },
            Err((events, failure)) => events.end(Event::Failed(failure)),
        }
    }

    fn request(&self, id: RequestId, submission: &Submission) -> Result<Request, Failure> {
        let (max_tokens, choices, logprobs_from, whole) = match &submission.work {
            Work::Embed if !self.settings.embeds => return Err(Failure::Kind("make embeddings")),
            Work::Generate(_) if self.settings.embeds => return Err(Failure::Kind("generate text")),
            Work::Embed => (0, 1, None, true),
            Work::Generate(generation) => {
                let from = generation.prompt_logprobs.then_some(1);
                (generation.max_tokens, generation.choices, from, false)
            }
        };
        Ok(Request {
            id,
            prompt: Arc::clone(&submission.prompt),
            max_tokens,
            choices,
            logprobs_from,
            whole,
            priority: submission.priority,
            deadline: submission.deadline.map(|deadline| deadline.saturating_duration_since(self.began)),
            root: submission.root,
        })
    }

    /// Ends the requests and choices that nobody waits for any more.
    fn end_unwanted(&mut self) {
        let batcher = &mut self.batcher;
        self.step.ended.clear();
        for (id, live) in &mut self.live {
            if live.is_abandoned() {
                batcher.cancel(*id);
                self.step.ended.push(*id);
                continue;
            }
            live.take_stopped(|choice| {
                batcher.cancel_choice(*id, choice);
            });
            if live.is_finished() && !batcher.is_live(*id) {
                self.step.ended.push(*id);
            }
        }
        for id in self.step.ended.drain(..) {
            // The end goes nowhere where nobody waits.
            self.live.remove(&id).into_iter().for_each(Live::end);
        }
    }

    /// Gives the draft model's blocks of choices back that have ended.
    fn give_draft_blocks_back(&mut self) {
        let Some(engine) = &mut self.draft_engine else { return };
        engine.keep(|(request, choice)| self.live.get(&request).is_some_and(|live| live.is_open(choice)));
        self.status.draft_blocks = engine.used_blocks();
    }

    fn expire(&mut self) {
        let ended = &mut self.step.ended;
        ended.clear();
        self.batcher.expire(self.began.elapsed(), ended);
        for id in ended.drain(..) {
            if let Some(live) = self.live.remove(&id) {
                live.fail(Failure::Deadline);
            }
        }
    }

    fn compute(&mut self) {
        let begun = Instant::now();
        self.shared.begin(begun);
        self.batcher.step(self.began.elapsed(), &mut self.step.plan, &mut self.step.scheduled);
        if let Err(error) = self.backend.step(&self.step.plan) {
            self.fail_all(&error.to_string());
            return;
        }
        let took = begun.elapsed();
        self.count_step(took);
        self.sample();
        self.batcher.complete(self.began.elapsed(), &self.step.outcomes);
        // Before the answers leave: a client that has one finds a step counted as ended.
        self.publish();
        self.shared.send(|| self.live.values_mut().for_each(Live::send_events));
        self.give_drafts(took);
        self.end_requests();
    }

    /// Ends all requests: a step that fails once fails again.
    fn fail_all(&mut self, error: &str) {
        self.batcher.abandon();
        self.publish();
        for (id, live) in std::mem::take(&mut self.live) {
            self.batcher.cancel(id);
            live.fail(Failure::Backend(error.to_owned()));
        }
    }

    fn count_step(&mut self, took: Duration) {
        let (plan, status) = (&self.step.plan, &mut self.status);
        status.steps += 1;
        let is_unfinished = plan.part.as_ref().is_some_and(|part| part.end < self.settings.limits.layers);
        let unfinished = plan.segments.last().filter(|_| is_unfinished).map_or(0, |segment| segment.tokens.len());
        status.computed_tokens += (plan.tokens.len() - unfinished) as u64;
        status.step_time += took;
        status.batch = plan.segments.len();
        let decodes = |scheduled: &Scheduled| scheduled.rows.len() == scheduled.drafts + 1;
        let of_prompts = plan.segments.iter().zip(&self.step.scheduled);
        if of_prompts
            .into_iter()
            .all(|(segment, scheduled)| decodes(scheduled) && segment.tokens.len() == scheduled.drafts + 1)
        {
            self.cost.observe(plan.tokens.len(), took.as_secs_f64());
        }
    }

    /// Ends requests that failed, whose choices are complete, or that needed their prompt only.
    fn end_requests(&mut self) {
        for (id, failure) in self.step.failed.drain(..) {
            if let Some(live) = self.live.remove(&id) {
                self.batcher.cancel(id);
                live.fail(failure);
            }
        }
        for scheduled in &self.step.scheduled {
            let id = scheduled.request;
            let is_over = self.live.get(&id).is_some_and(Live::is_finished) && !self.batcher.is_live(id);
            if let Some(live) = is_over.then(|| self.live.remove(&id)).flatten() {
                live.end();
            }
        }
    }
}
