//! Number of prompt tokens beside sequences that decode: so many that a step takes less than twice as long as without.
//! It follows the measured times of the steps; the tokens that a sequence gets do not depend on it.

use std::time::Duration;

use omni_kernels::BLOCK;

/// Length of a step with prompts, in steps without.
const STRETCH: f64 = 1.75;
/// Prompt tokens of a step before anything was measured.
const FIRST: usize = BLOCK;
/// Prompt tokens of a step at least: fewer cost the step nearly as much, and the prompt would take for ever.
const LEAST: usize = 3;
/// Steps with prompts after which one goes without, to measure it.
const PERIOD: u32 = 32;
/// Weight of a new measurement.
const WEIGHT: f64 = 0.2;

/// Measured times, in seconds.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Step in which sequences only decode.
    decode: Option<f64>,
    /// Prompt token.
    token: Option<f64>,
    /// Steps with both since the last with one.
    mixed: u32,
}

impl Pace {
    /// Notes the time of a step with `decoding` sequences that decode and `prompt` tokens of prompts.
    pub(crate) fn observe(&mut self, took: Duration, decoding: usize, prompt: usize) {
        let took = took.as_secs_f64();
        if took <= 0.0 || decoding + prompt == 0 {
            return;
        }
        self.mixed = if decoding > 0 && prompt > 0 { self.mixed + 1 } else { 0 };
        if prompt == 0 {
            smooth(&mut self.decode, took);
        } else if decoding == 0 {
            smooth(&mut self.token, took / prompt as f64);
        } else {
            let decode = self.decode.unwrap_or(took / 2.0);
            smooth(&mut self.token, (took - decode).max(0.0) / prompt as f64);
        }
    }

    /// Number of prompt tokens for a step in which sequences decode, at most `most`. Now and then none.
    pub(crate) fn prompt_tokens(&self, most: usize) -> usize {
        if self.mixed >= PERIOD || (self.decode.is_none() && self.mixed > 0) {
            return 0;
        }
        let wanted = match (self.decode, self.token) {
            (Some(decode), Some(token)) if token > 0.0 => (decode * (STRETCH - 1.0) / token) as usize,
            (Some(_), Some(_)) => most,
            _ => FIRST,
        };
        wanted.max(LEAST).min(most)
    }
}

/// Moves a mean towards a new value.
fn smooth(mean: &mut Option<f64>, value: f64) {
    *mean = Some(mean.map_or(value, |mean| mean + WEIGHT * (value - mean)));
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn prompts_get_three_quarters_of_the_time_that_decoding_takes() {
        let mut pace = Pace::default();
        assert_eq!(pace.prompt_tokens(1000), FIRST);
        pace.observe(MS * 100, 0, 1000);
        assert_eq!(pace.prompt_tokens(1000), FIRST);
        pace.observe(MS * 10, 8, 0);
        assert_eq!(pace.prompt_tokens(1000), 75);
        assert_eq!(pace.prompt_tokens(50), 50);
    }

    #[test]
    fn prompts_never_stop_but_for_single_steps() {
        let mut pace = Pace::default();
        pace.observe(MS, 1, 0);
        let mut without = 0;
        for _ in 0..1000 {
            let tokens = pace.prompt_tokens(512);
            without += usize::from(tokens == 0);
            pace.observe(MS + MS * 50 * tokens as u32, 1, tokens);
        }
        assert!((20..=40).contains(&without), "{without}");
        assert_eq!(pace.prompt_tokens(512), LEAST);
    }

    #[test]
    fn decoding_that_grows_slower_is_noticed_beside_prompts() {
        let mut pace = Pace::default();
        pace.observe(MS, 1, 0);
        for _ in 0..2000 {
            let tokens = pace.prompt_tokens(4096);
            pace.observe(MS * 20 + MS / 10 * tokens as u32, 256, tokens);
        }
        let tokens = pace.prompt_tokens(4096);
        assert!(tokens == 0 || (120..=160).contains(&tokens), "{tokens}");
    }
}
