//! Plan of a step.

use std::time::Duration;

use omni_kernels::{Segment, StepPlan};

use crate::batcher::Batcher;
use crate::request::{Limits, Scheduled};
use crate::sequence::{Flight, blocks_of};
use crate::share::{Share, divide};

impl Batcher {
    /// Plans the next step: sequences that decode, then prompts. Both lists are filled anew, and keep their memory;
    /// `scheduled[i]` belongs to segment `i`. Both are empty only if no request lives.
    ///
    /// A step before that was not completed is abandoned.
    pub fn step(&mut self, now: Duration, plan: &mut StepPlan, scheduled: &mut Vec<Scheduled>) {
        self.abandon();
        plan.clear();
        scheduled.clear();
        self.reserve_step(plan, scheduled);
        self.step.started = now;
        self.steps += 1;
        self.decode(plan, scheduled);
        self.step.decoding = scheduled.len();
        self.admit(now);
        self.step.prompt = 0;
        self.prompts(plan, scheduled);
    }

    /// Takes memory for the largest step, so that only the first one does.
    fn reserve_step(&mut self, plan: &mut StepPlan, scheduled: &mut Vec<Scheduled>) {
        let Limits { tokens, sequences, .. } = self.limits;
        plan.copies.reserve(sequences);
        plan.tokens.reserve(tokens);
        plan.blocks.reserve(sequences * blocks_of(self.longest()));
        plan.segments.reserve(sequences);
        scheduled.reserve(sequences);
    }

    /// Schedules all sequences that decode, in the order of seniority. Where blocks lack, the most junior lose theirs.
    fn decode(&mut self, plan: &mut StepPlan, scheduled: &mut Vec<Scheduled>) {
        let (mut decoding, mut whole) = (0, false);
        for slot in self.running.iter() {
            let sequence = &self.sequences[slot];
            decoding += usize::from(sequence.decodes());
            whole |= sequence.whole;
        }
        // Drafts leave room for prompts.
        let mut spare = self.limits.tokens.min(self.limits.logits) - decoding;
        if self.running.len() + self.waiting.len() > decoding {
            spare /= 2;
        }
        if whole {
            spare = 0;
        }
        let mut at = 0;
        while let Some(slot) = self.running.get(at) {
            at += 1;
            if self.sequences[slot].decodes()
                && let Some(drafts) = self.make_writable(slot, spare, plan)
            {
                spare -= drafts;
                self.push(slot, Flight { tokens: 1 + drafts, drafts }, 1 + drafts, plan, scheduled);
            }
        }
    }

    /// Makes the positions of a sequence's last token and of at most `most` drafts writable; returns the number of
    /// drafts. For the token, not for drafts, the most junior sequences lose their blocks; `None` if this one did.
    fn make_writable(&mut self, slot: u32, most: usize, plan: &mut StepPlan) -> Option<usize> {
        let sequence = &self.sequences[slot];
        let longest = sequence.max_tokens - sequence.answer.len();
        let mut drafts = sequence.drafts.len().min(most).min(longest - 1);
        loop {
            let sequence = &mut self.sequences[slot];
            let positions = sequence.computed..sequence.computed + 1 + drafts;
            if sequence.table.prepare(&mut self.pool, positions, &mut plan.copies).is_ok() {
                return Some(drafts);
            }
            if drafts > 0 {
                drafts = 0;
                continue;
            }
            let junior = self.running.last()?;
            self.preempt(junior);
            if junior == slot {
                return None;
            }
        }
    }

    /// Schedules prompts, and tokens that are computed again, in what the sequences that decode left of the budget.
    fn prompts(&mut self, plan: &mut StepPlan, scheduled: &mut Vec<Scheduled>) {
        let left = self.limits.tokens - plan.tokens.len();
        let budget = if scheduled.is_empty() { left } else { self.pace.prompt_tokens(left) };
        if budget == 0 || scheduled.len() == self.running.len() {
            return;
        }
        let mut shares = std::mem::take(&mut self.scratch.prompts);
        shares.clear();
        for (place, slot) in self.running.iter().enumerate() {
            let sequence = &self.sequences[slot];
            if sequence.flight.is_none() {
                let (remaining, whole) = (sequence.remaining(), sequence.whole);
                shares.push(Share { slot, place, remaining, tokens: 0, whole });
            }
        }
        divide(&mut shares, budget, left);
        for share in &shares {
            let rows_left = self.limits.logits - rows_of(scheduled);
            let (tokens, rows) = self.rows(share.slot, share.tokens, rows_left);
            let sequence = &mut self.sequences[share.slot];
            let positions = sequence.computed..sequence.computed + tokens;
            if tokens > 0 && sequence.table.prepare(&mut self.pool, positions, &mut plan.copies).is_ok() {
                self.push(share.slot, Flight { tokens, drafts: 0 }, rows, plan, scheduled);
                self.step.prompt += tokens;
            }
        }
        self.scratch.prompts = shares;
    }

    /// Number of a sequence's next tokens, at most `tokens`, of which at most `most` need rows of logits, and of rows.
    fn rows(&self, slot: u32, tokens: usize, most: usize) -> (usize, usize) {
        let sequence = &self.sequences[slot];
        let live = &self.lives[sequence.live];
        if sequence.whole {
            return if most == 0 { (0, 0) } else { (tokens, 1) };
        }
        let count = |tokens: usize| {
            let end = sequence.computed + tokens;
            let sampled = end == sequence.known() && sequence.max_tokens > 0;
            let due = live.due.map_or(0, |due| end.saturating_sub(due.max(sequence.computed)));
            due.max(usize::from(sampled && tokens > 0))
        };
        let fitting = tokens - count(tokens).saturating_sub(most);
        (fitting, count(fitting))
    }

    /// Appends a segment.
    fn push(&mut self, slot: u32, flight: Flight, rows: usize, plan: &mut StepPlan, scheduled: &mut Vec<Scheduled>) {
        let sequence = &mut self.sequences[slot];
        let (first_token, first_block, first_row) = (plan.tokens.len(), plan.blocks.len(), rows_of(scheduled));
        let end = sequence.computed + flight.tokens;
        sequence.copy_tokens(flight.tokens - flight.drafts, &mut plan.tokens);
        plan.tokens.extend_from_slice(&sequence.drafts[..flight.drafts]);
        plan.blocks.extend_from_slice(&sequence.table.blocks()[..blocks_of(end)]);
        plan.segments.push(Segment {
            tokens: first_token..plan.tokens.len(),
            start: sequence.computed,
            blocks: first_block..plan.blocks.len(),
            logits: rows,
        });
        let choices = if end - flight.drafts < sequence.known() || !sequence.has_answer() {
            0..0
        } else if sequence.answer.is_empty() {
            // The end of the prompt, which is that of all choices.
            0..self.lives[sequence.live].request.choices
        } else {
            sequence.choice..sequence.choice + 1
        };
        scheduled.push(Scheduled {
            request: sequence.request,
            choices,
            rows: first_row..first_row + rows,
            position: end + 1 - rows,
            drafts: flight.drafts,
            cached: sequence.cached,
        });
        sequence.flight = Some(flight);
        self.step.slots.push(slot);
    }
}

/// Number of rows of logits that are planned.
fn rows_of(scheduled: &[Scheduled]) -> usize {
    scheduled.last().map_or(0, |last| last.rows.end)
}
