//! Plan of a step.

use std::time::Duration;

use omni_kernels::{BLOCK, Segment, StepPlan};

use crate::batcher::Batcher;
use crate::pace::Work;
use crate::request::{Limits, Scheduled};
use crate::sequence::{Flight, Part, blocks_of};
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
        self.step.prompt = 0.0;
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
        let (mut decoding, mut of_part, mut whole) = (0, 0, false);
        for slot in self.running.iter() {
            let sequence = &self.sequences[slot];
            decoding += usize::from(sequence.decodes());
            of_part += sequence.part.map_or(0, |part| part.tokens);
            whole |= sequence.whole;
        }
        // Drafts leave room for prompts.
        let mut spare = (self.limits.tokens - of_part).min(self.limits.logits) - decoding;
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
                let flight = Flight { tokens: 1 + drafts, drafts, layers: self.limits.layers };
                self.push(slot, flight, 1 + drafts, plan, scheduled);
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
        if scheduled.len() == self.running.len() {
            return;
        }
        let mut shares = std::mem::take(&mut self.scratch.prompts);
        shares.clear();
        let (mut layers, mut part) = (self.limits.layers, None);
        for (place, slot) in self.running.iter().enumerate() {
            let sequence = &self.sequences[slot];
            if let Some(of_sequence) = sequence.part {
                part = Some((slot, of_sequence));
            } else if sequence.flight.is_none() {
                let (remaining, whole) = (sequence.remaining(), sequence.whole);
                shares.push(Share { slot, place, remaining, tokens: 0, whole });
                if whole || self.lives[sequence.live].due.is_some() {
                    layers = 1; // all its tokens have rows, or none is computed before the others
                }
            }
        }
        let left = self.limits.tokens - plan.tokens.len() - part.map_or(0, |(_, part)| part.tokens);
        let work = if scheduled.is_empty() { Work::Tokens(left) } else { self.pace.work(left, layers) };
        match work {
            Work::Nothing => {}
            Work::Tokens(budget) => {
                divide(&mut shares, budget, left);
                self.prompts_whole(&shares, plan, scheduled);
                if let Some((slot, part)) = part {
                    self.push_part(slot, part, self.limits.layers, plan, scheduled);
                }
            }
            Work::Part(work) => {
                let used = self.short_prompts(&mut shares, left, plan, scheduled);
                let next = part.or_else(|| self.begin_part(&shares, work.min(left - used), plan));
                if let Some((slot, part)) = next {
                    let layers = (work + part.tokens / 2) / part.tokens;
                    self.push_part(slot, part, layers.max(1), plan, scheduled);
                }
            }
        }
        self.scratch.prompts = shares;
    }

    /// Schedules prompts through all layers.
    fn prompts_whole(&mut self, shares: &[Share], plan: &mut StepPlan, scheduled: &mut Vec<Scheduled>) {
        for share in shares {
            let rows_left = self.limits.logits - rows_of(scheduled);
            let (tokens, rows) = self.rows(share.slot, share.tokens, rows_left);
            let sequence = &mut self.sequences[share.slot];
            let positions = sequence.computed..sequence.computed + tokens;
            if tokens > 0 && sequence.table.prepare(&mut self.pool, positions, &mut plan.copies).is_ok() {
                let flight = Flight { tokens, drafts: 0, layers: self.limits.layers };
                self.push(share.slot, flight, rows, plan, scheduled);
                self.step.prompt += tokens as f64;
            }
        }
    }

    /// Schedules the prompts of which few tokens are left, a block together, through all layers: they delay the others once,
    /// and many of them that come together would wait for each other long. Returns the number of tokens.
    fn short_prompts(
        &mut self,
        shares: &mut Vec<Share>,
        room: usize,
        plan: &mut StepPlan,
        scheduled: &mut Vec<Scheduled>,
    ) -> usize {
        let (mut used, most) = (0, room.min(BLOCK));
        for share in &mut *shares {
            if used + share.remaining <= most {
                share.tokens = share.remaining;
                used += share.tokens;
            }
        }
        self.prompts_whole(shares, plan, scheduled);
        shares.retain(|share| share.tokens == 0);
        used
    }

    /// Chooses the prompt whose next tokens, at most `most` and a block, go through some layers at a time: in turn the most
    /// senior and the one with the fewest tokens left, as they share a step otherwise.
    fn begin_part(&mut self, shares: &[Share], most: usize, plan: &mut StepPlan) -> Option<(u32, Part)> {
        let shortest = shares.iter().min_by_key(|share| (share.remaining, share.place));
        let share = if self.short_prompt_is_next { shortest } else { shares.first() }?;
        // Room for these tokens in all of their steps, whatever else decodes then.
        let room = self.limits.tokens - self.limits.sequences;
        let tokens = share.remaining.min(most).min(BLOCK).min(room);
        let sequence = &mut self.sequences[share.slot];
        let positions = sequence.computed..sequence.computed + tokens;
        if tokens == 0 || sequence.table.prepare(&mut self.pool, positions, &mut plan.copies).is_err() {
            return None;
        }
        self.short_prompt_is_next = !self.short_prompt_is_next;
        Some((share.slot, Part { tokens, layers: 0 }))
    }

    /// Schedules a part's way through its next layers, at most `most`.
    fn push_part(&mut self, slot: u32, part: Part, most: usize, plan: &mut StepPlan, scheduled: &mut Vec<Scheduled>) {
        let all = self.limits.layers;
        let Part { tokens, layers } = part;
        let end = all.min(layers.saturating_add(most));
        let (fitting, rows) = match end == all {
            true => self.rows(slot, tokens, self.limits.logits - rows_of(scheduled)),
            false => (tokens, 0),
        };
        if fitting < tokens {
            return;
        }
        self.push(slot, Flight { tokens, drafts: 0, layers: end }, rows, plan, scheduled);
        plan.part = (end - layers < all).then_some(layers..end);
        self.step.prompt += tokens as f64 * (end - layers) as f64 / all as f64;
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
        let is_unfinished = flight.layers < self.limits.layers;
        let choices = if is_unfinished || end - flight.drafts < sequence.known() || !sequence.has_answer() {
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
