//! Admission of sequences to a draft model, which has to compute what they have so far before it drafts. Pure.
//!
//! The account is that of the whole engine: what the draft model has cost beyond its gain is never more than 2 % of the
//! engine's time, but for a quarter of a second at the start. A model whose drafts pay is so used by every sequence; one
//! whose drafts do not is tried now and then, on a sequence that is cheap to compute.

/// Share of the time that the draft model may lose.
const ALLOWANCE: f64 = 0.02;
/// Seconds that may be lost before any time has passed.
const FIRST: f64 = 0.25;
/// Most seconds that gains of before may pay for later.
const SAVED: f64 = 10.0;
/// Weight of the newest measurement.
const NEWEST: f64 = 0.2;

/// Account of a draft model, and the measured times of its steps. Times are in seconds.
#[derive(Debug, Clone, Default)]
pub struct DraftAdmission {
    /// Time of the engine.
    time: f64,
    /// Gains of drafts without all their costs, at most [`SAVED`].
    balance: f64,
    /// Time of a token of a sequence that is caught up with.
    token: Option<f64>,
    /// Time of a step that drafts a token for each of its sequences.
    round: Option<f64>,
}

impl DraftAdmission {
    /// Returns true if a sequence of so many tokens may be computed by the draft model. `promised`: tokens of those that
    /// were admitted and are not computed yet.
    #[must_use]
    pub fn admits(&self, tokens: usize, promised: usize) -> bool {
        match self.token {
            // Before anything was measured, one sequence alone.
            None => promised == 0,
            Some(token) => (tokens + promised) as f64 * token <= self.balance + FIRST + ALLOWANCE * self.time,
        }
    }

    /// Notes the time of a step that drafts a token for each of its sequences.
    pub fn drafted(&mut self, seconds: f64) {
        smooth(&mut self.round, seconds);
    }

    /// Notes the time of a step with tokens of sequences that are caught up with.
    pub fn caught_up(&mut self, tokens: usize, seconds: f64) {
        if tokens > 0 {
            smooth(&mut self.token, seconds / tokens as f64);
        }
    }

    /// Notes a step of the engine: its time with all drafting, the time that accepted drafts have saved, and the time
    /// that drafting and rejected drafts have cost.
    pub fn passed(&mut self, seconds: f64, saved: f64, cost: f64) {
        if seconds.is_finite() && saved.is_finite() && cost.is_finite() {
            self.time += seconds;
            self.balance = (self.balance + saved - cost).min(SAVED);
        }
    }

    /// Time of a step that drafts a token for each of its sequences; `None`: none was measured.
    #[must_use]
    pub fn round(&self) -> Option<f64> {
        self.round
    }

    /// Tokens that can be caught up with in so many seconds; `None`: none were measured.
    #[must_use]
    pub fn tokens_in(&self, seconds: f64) -> Option<usize> {
        self.token.filter(|token| *token > 0.0).map(|token| (seconds / token).max(0.0) as usize)
    }
}

/// Moves a mean towards a new value.
fn smooth(mean: &mut Option<f64>, value: f64) {
    if value.is_finite() && value >= 0.0 {
        *mean = Some(mean.map_or(value, |mean| mean + NEWEST * (value - mean)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Share of the time that is lost to a draft model over requests, one after the other: each has a prompt that is
    /// caught up with if it is admitted, and drafts then save a share of the time of its answer. Returns the number of
    /// requests that were admitted, too.
    fn simulate(requests: usize, prompt: f64, answer: f64, saved: f64) -> (f64, usize) {
        let (mut admission, mut plain, mut time, mut admitted) = (DraftAdmission::default(), 0.0, 0.0, 0);
        for _ in 0..requests {
            plain += answer;
            if admission.admits(100, 0) {
                admitted += 1;
                admission.caught_up(100, prompt);
                admission.passed(answer * (1.0 - saved) + prompt, answer * saved, prompt);
                time += answer * (1.0 - saved) + prompt;
            } else {
                admission.passed(answer, 0.0, 0.0);
                time += answer;
            }
        }
        (1.0 - plain / time, admitted)
    }

    #[test]
    fn a_draft_model_that_pays_is_used_by_every_sequence() {
        for (prompt, saved) in [(0.0, 0.1), (0.1, 0.3), (0.2, 0.5)] {
            let (lost, admitted) = simulate(200, prompt, 1.0, saved);
            assert_eq!(admitted, 200, "{prompt} {saved}");
            assert!(lost < 0.0, "{lost}");
        }
    }

    #[test]
    fn a_draft_model_that_does_not_pay_loses_2_percent_at_most() {
        for prompt in [0.05, 0.1, 0.3, 2.0] {
            for saved in [0.0, -0.01] {
                let (lost, admitted) = simulate(1000, prompt, 1.0, saved);
                // And the first sequence, whose cost nobody knows.
                assert!(lost <= 0.025, "{prompt}: {lost}");
                assert!((1..1000).contains(&admitted), "{prompt}: it is tried now and then");
            }
        }
    }

    #[test]
    fn before_anything_is_measured_one_sequence_is_caught_up_with_at_a_time() {
        let mut admission = DraftAdmission::default();
        assert!(admission.admits(100_000, 0) && !admission.admits(1, 1));
        assert_eq!(admission.tokens_in(1.0), None);
        admission.caught_up(100, 0.1);
        assert!(admission.admits(100, 100) && !admission.admits(100, 200), "a quarter of a second");
        assert_eq!(admission.tokens_in(0.05), Some(50));
        admission.passed(f64::NAN, 1.0, 1.0);
        admission.drafted(f64::INFINITY);
        assert_eq!((admission.time, admission.round()), (0.0, None));
        admission.drafted(0.5);
        admission.drafted(1.0);
        assert_eq!(admission.round(), Some(0.6));
    }
}
