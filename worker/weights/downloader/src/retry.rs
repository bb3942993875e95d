//! Pauses between attempts at a request. Pure.

use std::time::Duration;

/// Attempts at one range without a byte of progress.
pub(crate) const ATTEMPTS: u32 = 6;
/// First pause; it doubles.
const FIRST: Duration = Duration::from_millis(250);
/// Longest pause, also where the server asks for a longer one.
const LONGEST: Duration = Duration::from_secs(20);

/// The pause after so many attempts (from 1 on); `None` when it is enough. `asked`: what the server asks for.
pub(crate) fn pause(attempts: u32, asked: Option<Duration>) -> Option<Duration> {
    let own = FIRST.saturating_mul(2_u32.saturating_pow(attempts.saturating_sub(1)));
    (attempts < ATTEMPTS).then(|| own.max(asked.unwrap_or_default()).min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_end() {
        let pauses: Vec<_> = (1..8).map(|attempts| pause(attempts, None).map(|pause| pause.as_millis())).collect();
        assert_eq!(pauses, [Some(250), Some(500), Some(1000), Some(2000), Some(4000), None, None]);
        assert_eq!(pause(1, Some(Duration::from_secs(3))), Some(Duration::from_secs(3)));
        assert_eq!(pause(1, Some(Duration::from_hours(1))), Some(LONGEST));
    }
}
