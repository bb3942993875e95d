//! Cost of a drafted token, from the times of steps.

/// Weight of the newest step in the sums.
const NEWEST: f64 = 0.02;
/// Cost before anything is known.
const UNKNOWN: f64 = 0.5;

/// Estimate of a step's time as a constant and a part for each of its tokens, by least squares over the last steps.
#[derive(Debug, Clone, Default)]
pub struct StepCost {
    weight: f64,
    tokens: f64,
    seconds: f64,
    squares: f64,
    products: f64,
}

impl StepCost {
    /// Notes the time of a step with that many tokens. Steps that compute prompts are left out.
    pub fn observe(&mut self, tokens: usize, seconds: f64) {
        if !seconds.is_finite() || seconds < 0.0 {
            return;
        }
        let tokens = tokens as f64;
        let update = |sum: &mut f64, value: f64| *sum += NEWEST * (value - *sum);
        update(&mut self.weight, 1.0);
        update(&mut self.tokens, tokens);
        update(&mut self.seconds, seconds);
        update(&mut self.squares, tokens * tokens);
        update(&mut self.products, tokens * seconds);
    }

    /// Cost of one more token in a step with that many, as a share of the step's time: 0 to 1.
    #[must_use]
    pub fn of_token(&self, tokens: usize) -> f64 {
        let Some(slope) = self.slope() else { return UNKNOWN };
        let step = self.seconds_at(slope, tokens);
        let cost = slope / step;
        if step > 0.0 && cost.is_finite() { cost.clamp(0.0, 1.0) } else { UNKNOWN }
    }

    /// Time of a step with that many tokens, in seconds; `None`: no step was noted.
    #[must_use]
    pub fn seconds(&self, tokens: usize) -> Option<f64> {
        let seconds = self.seconds_at(self.slope().unwrap_or(0.0), tokens);
        (self.weight > 0.0 && seconds > 0.0).then_some(seconds)
    }

    /// Seconds of a further token; `None` while steps have hardly differed.
    fn slope(&self) -> Option<f64> {
        let mean = |sum: f64| sum / self.weight;
        let variance = mean(self.squares) - mean(self.tokens).powi(2);
        let varies = self.weight > 0.0 && variance >= 0.05;
        varies.then(|| (mean(self.products) - mean(self.tokens) * mean(self.seconds)) / variance)
    }

    fn seconds_at(&self, slope: f64, tokens: usize) -> f64 {
        (self.seconds + slope * (self.weight * tokens as f64 - self.tokens)) / self.weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_of_a_token_is_found_from_steps_of_several_sizes() {
        let mut random = fastrand::Rng::with_seed(2);
        for cost in [0.0, 0.02, 0.1, 0.4, 1.0] {
            let mut steps = StepCost::default();
            for _ in 0..400 {
                let tokens = random.usize(1..9);
                // A plain step of one token takes 5 ms; all vary by 2 %.
                let seconds = 0.005 * (1.0 + cost * (tokens - 1) as f64) * (0.98 + 0.04 * random.f64());
                steps.observe(tokens, seconds);
            }
            let found = steps.of_token(1);
            assert!((found - cost).abs() < 0.02 + cost * 0.1, "{cost}: {found}");
        }
    }

    #[test]
    fn nothing_known_or_nothing_varied_is_a_cautious_cost() {
        let mut steps = StepCost::default();
        assert_eq!((steps.of_token(1), steps.seconds(1)), (UNKNOWN, None));
        (0..100).for_each(|_| steps.observe(1, 0.005));
        assert_eq!(steps.of_token(1), UNKNOWN);
        assert!((steps.seconds(7).unwrap() - 0.005).abs() < 1e-9);
        steps.observe(4, f64::NAN);
        assert_eq!(steps.of_token(1), UNKNOWN);
    }
}
