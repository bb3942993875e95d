//! Work on prompts beside sequences that decode: so much that a step takes half as long again as without.
//! It follows the measured times of the steps; the tokens that a sequence gets do not depend on it.
//!
//! Where a block of tokens would take too long, which it does late in a long prompt, a step takes the block through some
//! layers only. Fewer tokens through all layers would not do: each step would read the keys and values of all earlier
//! positions for them.

use std::time::Duration;

use omni_kernels::BLOCK;

/// Length of a step with prompts, in steps without. Their 99th percentiles differ by more: a step beside prompts finds
/// less in the processors' caches.
const STRETCH: f64 = 1.5;
/// Prompt tokens of a step before anything was measured.
const FIRST: usize = BLOCK;
/// Prompt tokens of a step at least, where a backend has no parts: fewer cost the step nearly as much, and the prompt
/// would take for ever.
const LEAST: usize = 3;
/// Steps with prompts after which one goes without, to measure it.
const PERIOD: u32 = 32;
/// Weight of a new measurement.
const WEIGHT: f64 = 0.2;
/// Greatest measurement of a step without prompts that counts, in means.
const MOST_GROWTH: f64 = 1.5;

/// Work on prompts in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// No work, so that a step without is measured.
    Nothing,
    /// Tokens through all layers.
    Tokens(usize),
    /// Fewer tokens than a block through all layers, counted as tokens times layers: at least 1.
    Part(usize),
}

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
    pub(crate) fn observe(&mut self, took: Duration, decoding: usize, prompt: f64) {
        let took = took.as_secs_f64();
        let has_prompt = prompt > 0.0;
        if took <= 0.0 || (decoding == 0 && !has_prompt) {
            return;
        }
        self.mixed = if decoding > 0 && has_prompt { self.mixed + 1 } else { 0 };
        if !has_prompt {
            // A step that was held up, as by another process, counts little: it would stand for time that prompts may take.
            let most = self.decode.map_or(took, |decode| decode * MOST_GROWTH);
            smooth(&mut self.decode, took.min(most));
        } else if decoding == 0 {
            smooth(&mut self.token, took / prompt);
        } else {
            let decode = self.decode.unwrap_or(took / 2.0);
            smooth(&mut self.token, (took - decode).max(0.0) / prompt);
        }
    }

    /// Work for a step in which sequences decode: at most `most` tokens, through at most `layers` layers.
    pub(crate) fn work(&self, most: usize, layers: usize) -> Work {
        if self.mixed >= PERIOD || (self.decode.is_none() && self.mixed > 0) {
            return Work::Nothing;
        }
        let wanted = match (self.decode, self.token) {
            (Some(decode), Some(token)) if token > 0.0 => decode * (STRETCH - 1.0) / token,
            (Some(_), Some(_)) => most as f64,
            _ => FIRST as f64,
        };
        if layers == 1 || wanted >= BLOCK as f64 {
            return Work::Tokens((wanted as usize).max(LEAST).min(most));
        }
        Work::Part(((wanted * layers as f64) as usize).max(1))
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

    fn tokens(work: Work) -> usize {
        match work {
            Work::Nothing => 0,
            Work::Tokens(tokens) => tokens,
            Work::Part(_) => panic!("{work:?}"),
        }
    }

    #[test]
    fn prompts_get_half_of_the_time_that_decoding_takes() {
        let mut pace = Pace::default();
        assert_eq!(pace.work(1000, 1), Work::Tokens(FIRST));
        pace.observe(MS * 100, 0, 1000.0);
        assert_eq!(pace.work(1000, 1), Work::Tokens(FIRST));
        pace.observe(MS * 10, 8, 0.0);
        assert_eq!(pace.work(1000, 1), Work::Tokens(50));
        assert_eq!(pace.work(30, 1), Work::Tokens(30));
        assert_eq!(pace.work(1000, 12), Work::Tokens(50));
    }

    #[test]
    fn less_than_a_block_goes_through_some_layers_at_a_time() {
        let mut pace = Pace::default();
        pace.observe(MS * 10, 0, 10.0);
        pace.observe(MS * 10, 8, 0.0);
        assert_eq!(pace.work(1000, 12), Work::Part(60), "five tokens");
        assert_eq!(pace.work(1000, 1), Work::Tokens(5));
        for _ in 0..100 {
            pace.observe(MS * 10_010, 8, 1.0);
            pace.observe(MS * 10, 8, 0.0);
        }
        assert_eq!(pace.work(1000, 12), Work::Part(1), "never nothing");
        assert_eq!(pace.work(1000, 1), Work::Tokens(LEAST));
    }

    #[test]
    fn steps_that_were_held_up_change_little() {
        let mut pace = Pace::default();
        pace.observe(MS * 100, 0, 100.0);
        for step in 0..1000 {
            pace.observe(if step % 20 == 0 { MS * 1000 } else { MS * 100 }, 8, 0.0);
        }
        let Work::Tokens(tokens) = pace.work(1000, 12) else { panic!() };
        assert!((50..=55).contains(&tokens), "{tokens}");
    }

    #[test]
    fn work_that_took_no_time_is_not_taken_for_free() {
        let mut pace = Pace::default();
        pace.observe(MS * 10, 8, 0.0);
        (0..50).for_each(|_| pace.observe(MS * 10, 8, 16.0));
        assert_eq!(pace.work(1000, 12), Work::Nothing, "a step without is measured");
        pace.observe(MS * 10, 8, 0.0);
        pace.observe(MS * 1010, 8, 1000.0);
        let Work::Tokens(tokens) = pace.work(1000, 12) else { panic!() };
        assert!(tokens <= 25, "{tokens} tokens of a millisecond each");
    }

    #[test]
    fn prompts_never_stop_but_for_single_steps() {
        let mut pace = Pace::default();
        pace.observe(MS, 1, 0.0);
        let mut without = 0;
        for _ in 0..1000 {
            let tokens = tokens(pace.work(512, 1));
            without += usize::from(tokens == 0);
            pace.observe(MS + MS * 50 * tokens as u32, 1, tokens as f64);
        }
        assert!((20..=40).contains(&without), "{without}");
        assert_eq!(pace.work(512, 1), Work::Tokens(LEAST));
    }

    #[test]
    fn decoding_that_grows_slower_is_noticed_beside_prompts() {
        let mut pace = Pace::default();
        pace.observe(MS, 1, 0.0);
        for _ in 0..2000 {
            let tokens = tokens(pace.work(4096, 1));
            pace.observe(MS * 20 + MS / 10 * tokens as u32, 256, tokens as f64);
        }
        let tokens = tokens(pace.work(4096, 1));
        assert!(tokens == 0 || (80..=110).contains(&tokens), "{tokens}");
    }
}
