//! Rate limit on what an instance sends: frames and bytes per second, charged before a frame is parsed.
//!
//! A frame costs a hostile model a part of one system call and the scheduler its decoding, so a model with a quarter of
//! a processor could keep the scheduler's thread busy and make all other models wait. Beyond the limit the scheduler
//! does not read the instance's socket until the balance is positive again: nothing is lost, the model's writes wait.
//!
//! A token bucket in nanoseconds: a frame costs `1 s / FRAMES`, a byte `1 s / BYTES`, and time pays them back.
//! Invariant: the debt is at most [`BURST`] beyond the cost of one read.

use super::{Moment, nanos};
use std::time::Duration;

/// Frames per second of one instance. The Python engine makes at most about 200,000 in a second.
const FRAMES: u64 = 250_000;
/// Bytes per second of one instance: about half of what one connection between two processes carries.
const BYTES: u64 = 2 << 30;
/// Credit that an instance saves up by sending less, and may spend at once.
const BURST: Duration = Duration::from_millis(250);

const SECOND: u64 = 1_000_000_000;

/// Account of what one instance has sent lately.
#[derive(Debug, Clone, Copy, Default)]
pub struct Intake {
    /// Time at which everything received is paid for, in nanoseconds.
    paid_at: u64,
}

impl Intake {
    /// Time of the next read; `None`: now.
    #[must_use]
    pub fn resumes_at(&self, now: Moment) -> Option<Moment> {
        let at = self.paid_at.saturating_sub(BURST.as_nanos() as u64);
        (at > nanos(now)).then(|| Moment::from_nanos(at))
    }

    /// Charges one read. Returns whether the instance has to pause after it.
    pub fn charge(&mut self, frames: usize, bytes: usize, now: Moment) -> bool {
        let cost = (frames as u64).saturating_mul(SECOND / FRAMES) + (bytes as u64).saturating_mul(SECOND) / BYTES;
        self.paid_at = self.paid_at.max(nanos(now)).saturating_add(cost);
        self.resumes_at(now).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_burst_passes_at_once_and_what_is_beyond_it_waits() {
        let burst = (FRAMES / 4) as usize;
        let at = Moment::from_secs;
        for (frames, bytes, resumes) in [
            (0, 0, None),
            (burst, 0, None),
            (0, (BYTES / 4) as usize, None),
            (2 * burst, 0, Some(Moment::from_millis(10_250))),
            (0, (BYTES / 2) as usize, Some(Moment::from_millis(10_250))),
        ] {
            let mut intake = Intake::default();
            assert_eq!(intake.charge(frames, bytes, at(10)), resumes.is_some(), "{frames} frames, {bytes} bytes");
            assert_eq!(intake.resumes_at(at(10)), resumes);
            assert_eq!(intake.resumes_at(at(11)), None);
        }
    }

    proptest! {
        #[test]
        fn a_reader_that_keeps_to_the_pauses_takes_no_more_than_the_rate(
            reads in prop::collection::vec((0_usize..4096, 0_usize..65_536, 0_u64..2_000_000), 1..400),
        ) {
            let (mut intake, mut now, mut frames, mut bytes) = (Intake::default(), Moment::ZERO, 0, 0);
            for (count, length, gap) in reads {
                now += Moment::from_nanos(gap);
                if let Some(at) = intake.resumes_at(now) {
                    now = at;
                }
                prop_assert_eq!(intake.resumes_at(now), None);
                intake.charge(count, length, now);
                frames += count as u64;
                bytes += length as u64;
            }
            let paid = now + BURST + Moment::from_millis(20); // the last read may go beyond the burst
            prop_assert!(frames <= (paid.as_secs_f64() * FRAMES as f64) as u64 + 1);
            prop_assert!(bytes <= (paid.as_secs_f64() * BYTES as f64) as u64 + 1);
        }
    }
}
