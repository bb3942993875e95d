//! Draft model beside the model: a backend with blocks of its own, and the sequences that it follows.
//!
//! ```text
//!  wishes ──▶ round: a step with the next tokens of each sequence ──▶ rows ──▶ clones of the samplers ──▶ round …
//! ```
//!
//! A sequence is followed from the moment at which its prompt may be computed ([`DraftAdmission`]) until its choice ends.
//! Keys and values of the draft model are not shared between sequences. Without a free block a sequence is no longer
//! followed: it goes on without the draft model.
//!
//! Invariant: blocks are given back in [`DraftEngine::keep`] and [`DraftEngine::forget`] alone.

use super::drafts::LONGEST_DRAFT;
use super::live::{Choice, Live};
use omni_batcher::{Limits, RequestId};
use omni_kernels::{BLOCK, Backend, BackendError, Capacity, Segment, StepPlan};
use omni_kv_cache::{BlockTable, Pool};
use omni_sampler::{Progress, Sampler, Workspace};
use omni_speculation::{DraftAdmission, DraftModel, DraftStep};
use std::collections::BTreeMap;
use std::time::Instant;

/// Fewest tokens that are caught up with beside other sequences in a step.
const CATCH_UP: usize = BLOCK;
/// Tokens of a sequence in a round that drafts: the last one that was drafted, and the one after it.
const DRAFTING: usize = 2;

/// Draft model that is loaded.
pub struct Draft {
    /// Backend with its weights.
    pub backend: Box<dyn Backend>,
    /// Most positions of a sequence.
    pub context: usize,
}

impl Draft {
    /// Bytes of the weights in memory.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        self.backend.facts().weight_bytes
    }
}

/// Capacity of a draft model's backend beside a batcher.
#[must_use]
pub fn draft_capacity(limits: &Limits) -> Capacity {
    let Limits { blocks, tokens, sequences, .. } = *limits;
    Capacity { blocks, tokens, segments: sequences, logits: sequences }
}

/// Choice, by its request and number.
pub(super) type ChoiceId = (RequestId, u32);

/// Reason for following a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pays {
    /// There is none.
    No,
    /// Drafts may pay, unless catching up costs too much.
    ByTimes,
    /// All are followed.
    Always,
}

/// Wish for a draft.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    pub(super) of: ChoiceId,
    /// Most tokens.
    pub(super) longest: usize,
}

/// Draft model, with the sequences that it follows.
pub(super) struct DraftEngine {
    draft: Draft,
    capacity: Capacity,
    pool: Pool,
    followed: BTreeMap<ChoiceId, Followed>,
    admission: DraftAdmission,
    plan: StepPlan,
    segments: Vec<Planned>,
}

/// Segment of a round.
struct Planned {
    of: ChoiceId,
    tokens: usize,
    /// Row of its last token, if that is the last of sequence and draft.
    row: usize,
}

/// Sequence that is followed.
struct Followed {
    model: DraftModel,
    table: BlockTable,
    /// Tokens of the sequence that the model knows of.
    length: usize,
    /// Sampler of the draft: the choice's at its end.
    sampler: Option<Sampler>,
    /// The draft goes no further: its answer would end, or nothing can be sampled.
    is_over: bool,
    /// The sequence is followed no longer: no block or position was left for it, or its drafts do not pay.
    is_lost: bool,
}

impl DraftEngine {
    /// Takes the memory for sequences within the batcher's limits.
    ///
    /// # Errors
    /// The memory is not there.
    pub(super) fn new(mut draft: Draft, limits: &Limits) -> Result<Self, BackendError> {
        let capacity = draft_capacity(limits);
        draft.backend.reserve(capacity)?;
        Ok(Self {
            draft,
            capacity,
            pool: Pool::new(capacity.blocks),
            followed: BTreeMap::new(),
            admission: DraftAdmission::default(),
            plan: StepPlan::default(),
            segments: Vec::with_capacity(capacity.segments),
        })
    }

    /// Blocks that sequences hold.
    pub(super) fn used_blocks(&self) -> usize {
        self.pool.used()
    }

    /// Time of a round in seconds; `None`: none was measured.
    pub(super) fn round(&self) -> Option<f64> {
        self.admission.round()
    }

    /// Notes a step of the engine, see [`DraftAdmission::passed`].
    pub(super) fn passed(&mut self, seconds: f64, saved: f64, cost: f64) {
        self.admission.passed(seconds, saved, cost);
    }

    /// Returns true if the sequence of a choice is followed, from now on or still.
    pub(super) fn follows(&mut self, of: ChoiceId, sequence: &[u32], pays: Pays) -> bool {
        let longest = sequence.len() + LONGEST_DRAFT;
        if let Some(followed) = self.followed.get_mut(&of) {
            // For good: what was learned of a sequence is lost when it changes its source.
            followed.is_lost |= pays == Pays::No || longest > self.draft.context;
            return !followed.is_lost;
        }
        let promised = self.followed.values().map(Followed::missing).sum();
        let free = self.pool.available().saturating_mul(BLOCK);
        let fits = longest <= self.draft.context && longest.saturating_add(promised) <= free;
        let is_admitted = match pays {
            Pays::No => false,
            Pays::ByTimes => self.admission.admits(sequence.len(), promised),
            Pays::Always => true,
        };
        if !fits || !is_admitted || self.followed.len() >= self.capacity.segments {
            return false;
        }
        self.followed.insert(of, Followed::new(sequence.len()));
        true
    }

    /// Keeps the sequences of choices that go on, and gives the blocks of all others back.
    pub(super) fn keep(&mut self, mut goes_on: impl FnMut(ChoiceId) -> bool) {
        let pool = &mut self.pool;
        self.followed.retain(|of, followed| {
            let is_kept = goes_on(*of);
            if !is_kept || followed.is_lost {
                followed.table.clear(pool);
            }
            is_kept
        });
    }

    /// Forgets all sequences: their keys and values are lost.
    pub(super) fn forget(&mut self) {
        self.keep(|_| false);
    }

    /// Gives the memory back. Returns the bytes.
    pub(super) fn sleep(&mut self) -> Result<u64, BackendError> {
        self.forget();
        self.draft.backend.sleep()
    }

    /// Takes the memory again.
    pub(super) fn wake(&mut self) -> Result<(), BackendError> {
        self.draft.backend.wake()
    }

    /// Computes drafts. `for_others`: time in seconds after which catching up is put off to the next step; `None`: nobody
    /// waits.
    pub(super) fn compute(
        &mut self,
        wishes: &[Wish],
        live: &mut BTreeMap<RequestId, Live>,
        for_others: Option<f64>,
        workspace: &mut Workspace,
    ) -> Result<(), BackendError> {
        for wish in wishes {
            if let (Some(choice), Some(followed)) = (open(live, wish.of), self.followed.get_mut(&wish.of)) {
                followed.start(choice);
            }
        }
        let tokens_in = |seconds| self.admission.tokens_in(seconds).map_or(CATCH_UP, |tokens| tokens.max(CATCH_UP));
        let mut budget = for_others.map_or(usize::MAX, tokens_in);
        while self.plan_round(wishes, live, &mut budget) {
            let begun = Instant::now();
            self.draft.backend.step(&self.plan)?;
            self.sample(live, workspace);
            let (took, tokens) = (begun.elapsed().as_secs_f64(), self.plan.tokens.len());
            if tokens <= DRAFTING * self.plan.segments.len() {
                self.admission.drafted(took);
            } else {
                self.admission.caught_up(tokens, took);
            }
        }
        for wish in wishes {
            if let (Some(choice), Some(followed)) = (open(live, wish.of), self.followed.get(&wish.of)) {
                choice.drafts.take(followed.model.draft());
            }
        }
        Ok(())
    }

    /// Plans the next tokens of each sequence. Returns false if there are none.
    fn plan_round(&mut self, wishes: &[Wish], live: &mut BTreeMap<RequestId, Live>, budget: &mut usize) -> bool {
        let Self { capacity, pool, followed, plan, segments, .. } = self;
        plan.clear();
        segments.clear();
        let mut rows = 0;
        for wish in wishes {
            let (Some(choice), Some(followed)) = (open(live, wish.of), followed.get_mut(&wish.of)) else { continue };
            let room = capacity.tokens.saturating_sub(plan.tokens.len());
            let sequence = choice.drafts.sequence();
            if followed.is_over || followed.is_lost {
                continue;
            }
            let Some(next) = next_of(&followed.model, sequence, (wish.longest, room), budget) else { continue };
            let tokens = next.accepted.len() + next.drafted.len();
            let end = next.start + tokens;
            if followed.table.prepare(pool, next.start..end, &mut plan.copies).is_err() {
                followed.is_lost = true;
                continue;
            }
            let (first_token, first_block) = (plan.tokens.len(), plan.blocks.len());
            plan.tokens.extend_from_slice(next.accepted);
            plan.tokens.extend_from_slice(next.drafted);
            plan.blocks.extend_from_slice(followed.table.blocks().get(..end.div_ceil(BLOCK)).unwrap_or_default());
            let is_end = end == sequence.len() + followed.model.draft().len();
            plan.segments.push(Segment {
                tokens: first_token..plan.tokens.len(),
                start: next.start,
                blocks: first_block..plan.blocks.len(),
                logits: usize::from(is_end),
            });
            segments.push(Planned { of: wish.of, tokens, row: rows });
            rows += usize::from(is_end);
        }
        !plan.is_empty()
    }

    /// Samples the drafts' next tokens from the rows of a round.
    fn sample(&mut self, live: &mut BTreeMap<RequestId, Live>, workspace: &mut Workspace) {
        for Planned { of, tokens, row } in &self.segments {
            let (Some(choice), Some(followed)) = (open(live, *of), self.followed.get_mut(of)) else { continue };
            if followed.model.computed(choice.drafts.sequence(), *tokens) {
                followed.sample(self.draft.backend.row(*row), workspace);
            }
        }
    }
}

impl Followed {
    fn new(length: usize) -> Self {
        Self {
            model: DraftModel::with_capacity(LONGEST_DRAFT),
            table: BlockTable::default(),
            length,
            sampler: None,
            is_over: false,
            is_lost: false,
        }
    }

    /// Tokens of the sequence that are not computed.
    fn missing(&self) -> usize {
        if self.is_lost { 0 } else { self.length.saturating_sub(self.table.blocks().len() * BLOCK) }
    }

    /// Begins a draft after the sequence, whose last tokens may be new.
    fn start(&mut self, choice: &Choice) {
        let sequence = choice.drafts.sequence();
        let new = sequence.get(self.length..).unwrap_or_default();
        self.model.verified(self.length, new);
        self.length = sequence.len();
        self.sampler = Some(choice.sampler.clone());
        self.is_over = false;
    }

    /// Samples the next token of the draft as the model would sample it from this row.
    fn sample(&mut self, row: &mut [f32], workspace: &mut Workspace) {
        let Some(sampler) = &mut self.sampler else { return };
        let sampled = sampler.sample(row, workspace).ok();
        let accepted = sampled.and_then(|sampled| Some((sampled.token, sampler.accept(sampled.token).ok()?)));
        match accepted {
            Some((token, Progress::Continues)) => self.model.add(token),
            // The model samples the end itself.
            Some((_, Progress::Ended)) | None => self.is_over = true,
        }
    }
}

fn open(live: &mut BTreeMap<RequestId, Live>, (request, number): ChoiceId) -> Option<&mut Choice> {
    live.get_mut(&request)?.open(number)
}

/// Next tokens of a sequence and its draft of at most `longest`, as many as there is `room` for. What is more than a draft
/// needs is taken from the budget.
fn next_of<'a>(
    model: &'a DraftModel,
    sequence: &'a [u32],
    (longest, room): (usize, usize),
    budget: &mut usize,
) -> Option<DraftStep<'a>> {
    let tokens = |step: &DraftStep<'_>| step.accepted.len() + step.drafted.len();
    let next = model.next(sequence, longest, room)?;
    if tokens(&next) <= DRAFTING {
        return Some(next);
    }
    let next = model.next(sequence, longest, room.min(*budget))?;
    *budget = budget.saturating_sub(tokens(&next));
    Some(next)
}
