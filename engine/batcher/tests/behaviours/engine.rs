//! Engine of batcher and simulated backend: everything is audited after every step.

use std::collections::BTreeMap;
use std::time::Duration;

use omni_batcher::{Batcher, Limits, Outcome, Refusal, Request, RequestId, Scheduled};
use omni_kernels::{Backend, StepPlan};
use omni_kernels_fake::{Clock, Cost, LAYERS, Reference, SimulatedBackend};
use omni_kv_cache::Root;

/// Tokens of the vocabulary.
pub(crate) const VOCABULARY: usize = 97;

/// Guesses for a choice: its prompt and answer so far are given.
pub(crate) type Drafter = Box<dyn FnMut(&Request, u32, &[u32]) -> Vec<u32>>;

/// Request, and all that it got.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) request: Request,
    pub(crate) arrival: Duration,
    pub(crate) answers: Vec<Answer>,
    /// Predicted tokens at positions of the prompt, as they came.
    pub(crate) scores: Vec<(usize, u32)>,
    /// Numbers of cached tokens that were told.
    pub(crate) cached: Vec<usize>,
    /// Tokens that were computed for it, of all steps.
    pub(crate) computed: usize,
    /// Segments that it had.
    pub(crate) segments: usize,
}

/// Answer of a choice.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<u32>,
    pub(crate) times: Vec<Duration>,
    pub(crate) has_ended: bool,
}

/// Engine under test.
pub(crate) struct Engine {
    pub(crate) batcher: Batcher,
    pub(crate) backend: SimulatedBackend,
    pub(crate) clock: Clock,
    pub(crate) plan: StepPlan,
    pub(crate) scheduled: Vec<Scheduled>,
    pub(crate) records: BTreeMap<u64, Record>,
    /// Answers end with a token of this remainder: one less than the number.
    pub(crate) stop: u32,
    pub(crate) drafter: Option<Drafter>,
    pub(crate) drafted: usize,
    pub(crate) accepted: usize,
    pub(crate) steps: usize,
    /// Steps of which a prompt went through some layers only.
    pub(crate) parts: usize,
    outcomes: Vec<Outcome>,
    /// Numbers of drafts that were given for this step.
    given: BTreeMap<(RequestId, u32), usize>,
}

/// Limits with room for small tests.
pub(crate) fn limits() -> Limits {
    Limits {
        blocks: 64,
        tokens: 64,
        sequences: 8,
        logits: 64,
        context: 512,
        queue: 1000,
        ageing: Duration::from_secs(1),
        layers: LAYERS,
    }
}

/// Request with a prompt, of which `tokens` are wanted.
pub(crate) fn request(id: u64, prompt: &[u32], tokens: usize) -> Request {
    Request {
        id: RequestId(id),
        prompt: prompt.into(),
        max_tokens: tokens,
        choices: 1,
        logprobs_from: None,
        whole: false,
        priority: 0,
        deadline: None,
        root: Root::default().digest(),
    }
}

/// Prompt that differs for each seed from its first token on.
pub(crate) fn prompt(seed: u64, length: usize) -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..length).map(|_| random.u32(..VOCABULARY as u32)).collect()
}

/// Token that a choice gets where `best` has the greatest logit. Choices differ.
pub(crate) fn sample(best: u32, choice: u32) -> u32 {
    (best + 7 * choice) % VOCABULARY as u32
}

/// Returns true if an answer ends with a token.
fn stops(token: u32, stop: u32) -> bool {
    token % stop == stop - 1
}

/// Answer of a choice whose sequence is computed alone.
pub(crate) fn alone(request: &Request, choice: u32, stop: u32) -> Vec<u32> {
    let mut reference = Reference::default();
    request.prompt.iter().for_each(|token| reference.push(*token));
    let mut answer = Vec::new();
    while answer.len() < request.max_tokens {
        let token = sample(reference.next(VOCABULARY), choice);
        answer.push(token);
        reference.push(token);
        if stops(token, stop) {
            break;
        }
    }
    answer
}

impl Engine {
    pub(crate) fn new(limits: Limits) -> Self {
        Self::with_cost(limits, Cost { step: Duration::from_millis(10), ..Cost::default() })
    }

    pub(crate) fn with_cost(limits: Limits, cost: Cost) -> Self {
        let mut backend = SimulatedBackend::new(VOCABULARY, cost);
        backend.reserve(limits.capacity()).expect("memory");
        Self {
            batcher: Batcher::new(limits).expect("limits"),
            clock: backend.clock(),
            backend,
            plan: StepPlan::default(),
            scheduled: Vec::new(),
            records: BTreeMap::new(),
            stop: u32::MAX,
            drafter: None,
            drafted: 0,
            accepted: 0,
            steps: 0,
            parts: 0,
            outcomes: Vec::new(),
            given: BTreeMap::new(),
        }
    }

    pub(crate) fn add(&mut self, request: Request) -> Result<(), Refusal> {
        let arrival = self.clock.now();
        self.batcher.add(request.clone(), arrival)?;
        let answers = (0..request.choices).map(|_| Answer::default()).collect();
        let id = request.id.0;
        let record =
            Record { request, arrival, answers, scores: Vec::new(), cached: Vec::new(), computed: 0, segments: 0 };
        assert!(self.records.insert(id, record).is_none(), "number {id} is used twice");
        Ok(())
    }

    pub(crate) fn cancel(&mut self, id: u64) -> bool {
        self.batcher.cancel(RequestId(id))
    }

    pub(crate) fn audit(&self) {
        if let Err(fault) = self.batcher.audit() {
            panic!("step {}: {fault}", self.steps);
        }
    }

    /// Loses the contents of all blocks, as a sleep does.
    pub(crate) fn backend_lost(&mut self) {
        self.backend.sleep().expect("it can sleep");
        self.backend.wake().expect("it can wake");
    }

    /// Plans a step.
    pub(crate) fn plan(&mut self) {
        self.steps += 1;
        self.batcher.step(self.clock.now(), &mut self.plan, &mut self.scheduled);
        assert_eq!(self.scheduled.len(), self.plan.segments.len());
        assert_eq!(self.plan.is_empty(), self.batcher.is_idle(), "a step is empty while requests live");
        let mut row = 0;
        for (scheduled, segment) in self.scheduled.iter().zip(&self.plan.segments) {
            assert_eq!(scheduled.rows, row..row + segment.logits);
            row = scheduled.rows.end;
        }
        self.audit();
    }

    /// Computes the planned step, and samples its rows.
    pub(crate) fn compute(&mut self) {
        if let Err(error) = self.backend.step(&self.plan) {
            panic!("step {}: {error}", self.steps);
        }
        self.parts += usize::from(self.plan.part.is_some());
        self.outcomes.clear();
        for (scheduled, segment) in self.scheduled.iter().zip(&self.plan.segments) {
            let record = self.records.get_mut(&scheduled.request.0).expect("a known request");
            record.cached.push(scheduled.cached);
            record.computed += segment.tokens.len();
            record.segments += 1;
            let best: Vec<u32> = scheduled.rows.clone().map(|row| argmax(self.backend.row(row))).collect();
            let sampled = if scheduled.choices.is_empty() { 0 } else { scheduled.drafts + 1 };
            for (position, best) in (scheduled.position..).zip(&best[..best.len() - sampled]) {
                record.scores.push((position, *best));
            }
            let drafts = &self.plan.tokens[segment.tokens.end - scheduled.drafts..segment.tokens.end];
            let best = &best[best.len() - sampled..];
            for choice in scheduled.choices.clone() {
                let given = self.given.get(&(scheduled.request, choice)).copied().unwrap_or(0);
                assert!(scheduled.drafts <= given, "drafts of a step before are verified");
                let position = scheduled.position + scheduled.rows.len() - sampled;
                let answer = &mut record.answers[choice as usize];
                assert_eq!(position, record.request.prompt.len() + answer.tokens.len(), "the wrong row is sampled");
                let (accepted, next) = verify(best, drafts, choice, self.stop);
                self.drafted += drafts.len();
                self.accepted += accepted;
                answer.tokens.extend_from_slice(&drafts[..accepted]);
                answer.tokens.extend(next);
                answer.times.push(self.clock.now());
                let last = answer.tokens.last().copied().unwrap_or(0);
                answer.has_ended = stops(last, self.stop) || answer.tokens.len() >= record.request.max_tokens;
                // The batcher counts tokens itself, so half of the answers leave the last one's end to it.
                let is_told = answer.has_ended && (stops(last, self.stop) || choice == 0);
                let next = if is_told { None } else { next };
                self.outcomes.push(Outcome { request: scheduled.request, choice, accepted, next });
            }
        }
    }

    /// Ends the step, and brings drafts for the next one.
    pub(crate) fn complete(&mut self) {
        self.batcher.complete(self.clock.now(), &self.outcomes);
        self.audit();
        self.given.clear();
        let Some(drafter) = &mut self.drafter else { return };
        for outcome in self.outcomes.iter().filter(|outcome| outcome.next.is_some()) {
            let record = &self.records[&outcome.request.0];
            let answer = &record.answers[outcome.choice as usize].tokens;
            let drafts = drafter(&record.request, outcome.choice, answer);
            if !drafts.is_empty() {
                self.batcher.draft(outcome.request, outcome.choice, &drafts);
                self.given.insert((outcome.request, outcome.choice), drafts.len());
            }
        }
    }

    pub(crate) fn step(&mut self) {
        self.plan();
        if self.plan.is_empty() {
            return;
        }
        self.compute();
        self.complete();
    }

    /// Steps until no request lives.
    pub(crate) fn run(&mut self) {
        for _ in 0..100_000 {
            if self.batcher.is_idle() {
                let status = self.batcher.status();
                assert_eq!((status.used_blocks, status.waiting, status.running), (0, 0, 0));
                return;
            }
            self.step();
        }
        panic!("requests starve: {:?}", self.batcher.status());
    }

    /// Asserts that a request got all that it gets alone.
    pub(crate) fn assert_answered(&self, id: u64) {
        let record = &self.records[&id];
        for (choice, answer) in (0..).zip(&record.answers) {
            let expected = if record.request.whole { Vec::new() } else { alone(&record.request, choice, self.stop) };
            assert_eq!(answer.tokens, expected, "request {id}, choice {choice}");
        }
        self.assert_prefixes(id);
        let told = record.cached.first().copied().unwrap_or(0);
        assert!(record.cached.iter().all(|cached| *cached == told && told < record.request.prompt.len()));
    }

    /// Asserts that what a request got so far is what it gets alone.
    pub(crate) fn assert_prefixes(&self, id: u64) {
        let record = &self.records[&id];
        for (choice, answer) in (0..).zip(&record.answers) {
            let expected = alone(&record.request, choice, self.stop);
            assert!(expected.starts_with(&answer.tokens) || record.request.whole, "request {id}, choice {choice}");
        }
        let prompt = &record.request.prompt;
        let from = if record.request.whole { Some(prompt.len()) } else { record.request.logprobs_from };
        let mut reference = Reference::default();
        let mut due = Vec::new();
        for (position, token) in (1..).zip(prompt.iter()) {
            reference.push(*token);
            let is_sampled = position == prompt.len() && record.request.max_tokens > 0 && !record.request.whole;
            if from.is_some_and(|from| position >= from) && !is_sampled {
                due.push((position, reference.next(VOCABULARY)));
            }
        }
        assert!(due.starts_with(&record.scores), "request {id}: scores {:?}, not {due:?}", record.scores);
        if record.answers.iter().any(|answer| answer.has_ended) {
            assert_eq!(record.scores, due, "request {id}");
        }
    }
}

/// Number of drafts that are accepted, and the token after them.
fn verify(best: &[u32], drafts: &[u32], choice: u32, stop: u32) -> (usize, Option<u32>) {
    let mut accepted = 0;
    for (best, draft) in best.iter().zip(drafts) {
        if sample(*best, choice) != *draft {
            break;
        }
        accepted += 1;
        if stops(*draft, stop) {
            return (accepted, None);
        }
    }
    (accepted, Some(sample(best[accepted], choice)))
}

fn argmax(row: &[f32]) -> u32 {
    let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.map_or(0, |(token, _)| token as u32)
}
