//! Length of drafts: 0 where they do not pay. Pure.
//!
//! Two rules hold together:
//! - *Worth it*: of all lengths the one with the most tokens per time, by the share of drafted tokens that were
//!   accepted and the cost of a row. Drafts begin at a gain of 5 % and end at none, so that a rate between does not
//!   switch on every step.
//! - *Affordable*: what drafts have cost beyond their gain is never more than 2 % of the time so far. Trials after
//!   drafts have ended are made of this allowance, and stop when it is used up, whatever the estimates say. The answer
//!   is so at least 0.97 times as fast as without drafts, at any text.

/// Share of the time that drafts may lose.
const ALLOWANCE: f64 = 0.02;
/// Plain steps that may be lost before any time has passed.
const FIRST: f64 = 0.3;
/// Most plain steps that gains of before may pay for later.
const SAVED: f64 = 4.0;
/// Gain at which drafts begin.
const BEGIN: f64 = 1.05;
/// Weight of the newest drafted token in the share of accepted ones.
const NEWEST: f64 = 0.08;
/// Share of accepted tokens before anything is known.
const UNKNOWN: f64 = 0.6;
/// Length of the drafts of a trial.
const TRIAL: usize = 2;

/// Policy of one sequence. Times are in plain steps, which accept one token each.
#[derive(Debug, Clone)]
pub struct DraftPolicy {
    longest: usize,
    /// Share of drafted tokens that were accepted where all before them were.
    acceptance: f64,
    on: bool,
    /// Time that all steps have taken.
    time: f64,
    /// Gains of drafts without their losses, at most [`SAVED`].
    balance: f64,
}

impl DraftPolicy {
    /// Policy with drafts of at most `longest` tokens.
    #[must_use]
    pub fn new(longest: usize) -> Self {
        Self { longest, acceptance: UNKNOWN, on: true, time: 0.0, balance: 0.0 }
    }

    /// Length of the next draft. `cost` is that of one more row, as a share of a plain step's time.
    #[must_use]
    pub fn length(&self, cost: f64) -> usize {
        let cost = cost.clamp(0.0, 1.0);
        let best = if self.on { self.best(cost).0 } else { 0 };
        let affordable = self.balance + FIRST + ALLOWANCE * self.time;
        // The whole draft may be rejected.
        let most = if cost > 0.0 { (affordable / cost).max(0.0) as usize } else { self.longest };
        match best {
            0 if most >= TRIAL => TRIAL.min(self.longest),
            0 => 0,
            best => best.min(most),
        }
    }

    /// Notes a step with a draft, of which `accepted` tokens were accepted.
    pub fn drafted(&mut self, drafted: usize, accepted: usize, cost: f64) {
        let cost = cost.clamp(0.0, 1.0);
        let lost = cost * drafted as f64;
        self.time += 1.0 + lost;
        self.balance = (self.balance + accepted as f64 - lost).min(SAVED);
        for index in 0..drafted.min(accepted + 1) {
            let hit = if index < accepted { 1.0 } else { 0.0 };
            self.acceptance += NEWEST * (hit - self.acceptance);
        }
        let gain = self.best(cost).1;
        self.on = gain >= if self.on { 1.0 } else { BEGIN };
    }

    /// Notes a step without a draft.
    pub fn plain(&mut self) {
        self.time += 1.0;
    }

    /// Length with the most tokens for each plain step's time, and these tokens.
    fn best(&self, cost: f64) -> (usize, f64) {
        let (mut tokens, mut reached) = (1.0, 1.0);
        let mut best = (0, 1.0);
        for length in 1..=self.longest {
            reached *= self.acceptance;
            tokens += reached;
            let gain = tokens / (1.0 + cost * length as f64);
            if gain > best.1 {
                best = (length, gain);
            }
        }
        best
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
