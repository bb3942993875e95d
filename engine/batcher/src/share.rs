//! Shares of prompts in the budget of a step.

/// Share of a prompt in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) slot: u32,
    /// Place in the order of seniority.
    pub(crate) place: usize,
    /// Tokens that are to be computed.
    pub(crate) remaining: usize,
    /// Tokens of this step.
    pub(crate) tokens: usize,
    /// All tokens or none.
    pub(crate) whole: bool,
}

/// Divides a budget of tokens among prompts: half to the most senior, so that none starves; the rest to those with the
/// fewest tokens left, so that a long prompt does not hold up short ones. They are in order of seniority. A whole prompt
/// that is the most senior may take all `room` of the step.
pub(crate) fn divide(shares: &mut [Share], mut budget: usize, room: usize) {
    if let Some(senior) = shares.first_mut() {
        senior.tokens = match senior.whole {
            true if senior.remaining > room => 0,
            true => senior.remaining,
            false => senior.remaining.min(budget.div_ceil(2)),
        };
        budget = budget.saturating_sub(senior.tokens);
    }
    shares.sort_unstable_by_key(|share| (share.remaining - share.tokens, share.place));
    for share in &mut *shares {
        let lacking = share.remaining - share.tokens;
        if lacking <= budget || !share.whole {
            let more = lacking.min(budget);
            share.tokens += more;
            budget -= more;
        }
    }
    shares.sort_unstable_by_key(|share| share.place);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(remaining: &[usize], whole: bool, budget: usize) -> Vec<usize> {
        let share = |(place, remaining): (usize, &usize)| Share {
            slot: place as u32,
            place,
            remaining: *remaining,
            tokens: 0,
            whole,
        };
        let mut shares: Vec<_> = remaining.iter().enumerate().map(share).collect();
        divide(&mut shares, budget, 100);
        shares.iter().map(|share| share.tokens).collect()
    }

    #[test]
    fn b23_the_senior_prompt_gets_half_and_short_ones_the_rest() {
        assert_eq!(divided(&[1000], false, 100), [100]);
        assert_eq!(divided(&[1000, 2000], false, 100), [100, 0]);
        assert_eq!(divided(&[1000, 10], false, 100), [90, 10]);
        assert_eq!(divided(&[1000, 80, 20], false, 100), [50, 30, 20]);
        assert_eq!(divided(&[10, 20, 30], false, 100), [10, 20, 30]);
        assert_eq!(divided(&[1000, 1], false, 1), [1, 0]);
        assert!(divided(&[], false, 1).is_empty());
    }

    #[test]
    fn whole_prompts_are_never_cut() {
        assert_eq!(divided(&[80, 30, 20], true, 100), [80, 0, 20]);
        assert_eq!(divided(&[80, 30], true, 16), [80, 0]);
        assert_eq!(divided(&[101, 16], true, 16), [0, 16]);
    }
}
