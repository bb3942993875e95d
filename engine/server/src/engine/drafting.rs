//! Drafts for the next step, from both sources.

use super::draft_model::{Pays, Wish};
use super::drafts::{DraftCosts, LONGEST_DRAFT};
use super::run::{Drafting, Run};
use omni_kernels::Backend;
use std::time::{Duration, Instant};

/// Share of a step's time that the draft model may catch up with sequences for while others wait.
const SHARE: f64 = 0.5;

/// Time that drafts have saved, and that they have cost beside the draft model's own, in seconds.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    saved: f64,
    cost: f64,
}

impl<B: Backend> Run<B> {
    /// Gives the batcher drafts of the sequences that got a token. `took`: time of the step.
    pub(super) fn give_drafts(&mut self, took: Duration) {
        if self.settings.drafting == Drafting::Off || self.step.outcomes.is_empty() {
            return;
        }
        let took = took.as_secs_f64();
        let sequences = self.step.outcomes.len();
        let step = self.cost.seconds(sequences).unwrap_or(took);
        // A sequence's part of a step, of which a row takes so much more, is the smaller the more share it.
        let row = self.cost.of_token(sequences);
        let round = self.draft_engine.as_ref().and_then(|engine| engine.round()).map(|round| round / step);
        let costs = DraftCosts { row: row * sequences as f64, round };
        let account = self.find_drafts(costs, step / sequences as f64, row * step);
        let Some(engine) = &mut self.draft_engine else { return };
        let begun = Instant::now();
        let for_others = (sequences > 1).then_some(step * SHARE);
        if let Err(error) = engine.compute(&self.step.wishes, &mut self.live, for_others, &mut self.step.workspace) {
            tracing::error!(%error, "the draft model has failed: requests go on without it");
            self.draft_engine = None;
            return;
        }
        let drafted = begun.elapsed().as_secs_f64();
        engine.passed(took + drafted, account.saved, account.cost + drafted);
        for wish in &self.step.wishes {
            let (request, number) = wish.of;
            let choice = self.live.get_mut(&request).and_then(|live| live.open(number));
            if let Some(draft) = choice.map(|choice| choice.drafts.draft()).filter(|draft| !draft.is_empty()) {
                self.batcher.draft(request, number, draft);
            }
        }
    }

    /// Copies drafts from sequences, and notes wishes for those of the draft model. `share`: a sequence's time of a step,
    /// `row`: that of a row, in seconds.
    fn find_drafts(&mut self, costs: DraftCosts, share: f64, row: f64) -> Account {
        let mut account = Account::default();
        self.step.wishes.clear();
        for (outcome, &drafted) in self.step.outcomes.iter().zip(&self.step.drafted) {
            let of = (outcome.request, outcome.choice);
            let Some(choice) = self.live.get_mut(&of.0).and_then(|live| live.open(of.1)) else { continue };
            let drafts = &mut choice.drafts;
            drafts.note(drafted, outcome.accepted, costs);
            if drafts.is_by_model() {
                account.saved += outcome.accepted as f64 * share;
                account.cost += drafted as f64 * row;
            }
            let pays = match self.settings.drafting {
                Drafting::Fixed(_) => Pays::Always,
                Drafting::Adaptive if costs.may_pay() => Pays::ByTimes,
                Drafting::Adaptive | Drafting::Off => Pays::No,
            };
            let engine = self.draft_engine.as_mut();
            let is_followed = engine.is_some_and(|engine| engine.follows(of, drafts.sequence(), pays));
            drafts.follow(is_followed);
            let longest = match self.settings.drafting {
                Drafting::Fixed(length) => length.min(LONGEST_DRAFT),
                Drafting::Adaptive | Drafting::Off => drafts.length(costs),
            };
            let longest = longest.min(choice.room());
            if longest == 0 {
                continue;
            }
            if choice.drafts.is_by_model() {
                self.step.wishes.push(Wish { of, longest });
                continue;
            }
            choice.drafts.look_up(longest, &mut choice.sampler);
            if !choice.drafts.draft().is_empty() {
                self.batcher.draft(of.0, of.1, choice.drafts.draft());
            }
        }
        account
    }
}
