//! End of a step: what was computed, and the tokens that were sampled.

use std::time::Duration;

use omni_kernels::BLOCK;

use crate::batcher::Batcher;
use crate::request::Outcome;
use crate::sequence::{Part, Sequence};

impl Batcher {
    /// Notes that the step was computed, and the tokens that its choices got. A choice ends with the outcome that has no
    /// next token, with its last token of [`crate::Request::max_tokens`], or if it has no outcome where it was sampled.
    /// Outcomes of choices that are not there any more do nothing.
    pub fn complete(&mut self, now: Duration, outcomes: &[Outcome]) {
        self.pace.observe(now.saturating_sub(self.step.started), self.step.decoding, self.step.prompt);
        let mut awaiting = std::mem::take(&mut self.scratch.awaiting);
        let mut slots = std::mem::take(&mut self.step.slots);
        awaiting.clear();
        for slot in slots.drain(..) {
            self.advance(slot, &mut awaiting);
        }
        // Outcomes mostly come in the order of the segments.
        let mut expected = awaiting.iter();
        for outcome in outcomes {
            let is_its = |slot: &u32| {
                let sequence = self.sequences.get(*slot);
                sequence.is_some_and(|at| (at.request, at.choice) == (outcome.request, outcome.choice))
            };
            let next = expected.next().copied().filter(is_its);
            if let Some(slot) = next.or_else(|| self.slot(outcome.request, outcome.choice)) {
                self.apply(slot, *outcome);
            }
        }
        for slot in &awaiting {
            if self.sequences.get_mut(*slot).is_some_and(|sequence| sequence.awaits) {
                self.end_choice(*slot);
            }
        }
        self.step.slots = slots;
        self.scratch.awaiting = awaiting;
    }

    /// Counts the known tokens that the step computed of a sequence, unless it was cancelled meanwhile.
    fn advance(&mut self, slot: u32, awaiting: &mut Vec<u32>) {
        let Some(sequence) = self.sequences.get_mut(slot) else { return };
        let Some(flight) = sequence.flight.take() else { return };
        let is_unfinished = flight.layers < self.limits.layers;
        sequence.part = is_unfinished.then_some(Part { tokens: flight.tokens, layers: flight.layers });
        if is_unfinished {
            return;
        }
        sequence.computed += flight.tokens - flight.drafts;
        sequence.drafts.truncate(flight.drafts);
        let (live, is_end, is_prompt) = (sequence.live, sequence.remaining() == 0, sequence.answer.is_empty());
        if is_end && sequence.has_answer() {
            sequence.awaits = true;
            awaiting.push(slot);
        }
        if is_prompt {
            let (computed, prompt) = (sequence.computed, sequence.prompt.len());
            let due = &mut self.lives[live].due;
            *due = due.map(|due| due.max(computed)).filter(|due| *due < prompt);
        }
        self.publish(slot);
        if is_end && is_prompt {
            if self.sequences[slot].has_answer() {
                self.fork(slot, awaiting);
            } else {
                self.end_request(live);
            }
        }
    }

    /// Gives the choices of a request sequences of their own, which share the blocks of the prompt.
    fn fork(&mut self, first: u32, awaiting: &mut Vec<u32>) {
        let live = self.sequences[first].live;
        if self.lives[live].forked {
            return;
        }
        self.lives[live].forked = true;
        for choice in 1..self.lives[live].request.choices {
            let from = &self.sequences[first];
            let mut sequence = Sequence::new(live, choice, from.rank.of_choice(choice), &self.lives[live].request);
            from.table.fork(&mut self.pool, &mut sequence.table);
            sequence.computed = from.computed;
            sequence.published = from.published;
            sequence.cached = from.cached;
            sequence.running = true;
            sequence.awaits = true;
            let rank = sequence.rank;
            let slot = self.sequences.insert(sequence);
            self.lives[live].sequences[choice as usize] = Some(slot);
            self.running.insert(rank, slot);
            self.reserve(slot);
            awaiting.push(slot);
        }
    }

    /// Appends a choice's tokens, and gives the blocks of refused drafts back.
    fn apply(&mut self, slot: u32, outcome: Outcome) {
        let sequence = &mut self.sequences[slot];
        if !std::mem::take(&mut sequence.awaits) {
            return;
        }
        let accepted = outcome.accepted.min(sequence.drafts.len());
        sequence.answer.extend_from_slice(&sequence.drafts[..accepted]);
        sequence.answer.extend(outcome.next);
        sequence.computed += accepted;
        sequence.drafts.clear();
        let is_end = outcome.next.is_none() || sequence.answer.len() >= sequence.max_tokens;
        let known = sequence.known();
        self.publish(slot);
        if is_end {
            self.end_choice(slot);
        } else {
            self.sequences[slot].table.truncate(&mut self.pool, known);
        }
    }

    /// Publishes the blocks that have become full.
    fn publish(&mut self, slot: u32) {
        let sequence = &mut self.sequences[slot];
        let full = sequence.computed / BLOCK;
        if sequence.published >= full || sequence.whole {
            return;
        }
        let live = &self.lives[sequence.live];
        for number in sequence.published..full {
            let name = sequence.name(live, number);
            self.pool.publish(sequence.table.blocks()[number], name);
            sequence.published = number + 1;
        }
    }
}
