//! Least rate of a run: a server that sends less is given up, so that other weights get the place. Pure, but for [`Watch`],
//! which asks the clock.

use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Time in which progress is measured. The first such time is for the way to the server.
pub(crate) const WINDOW: Duration = Duration::from_secs(60);
/// Least progress in a window, in bytes.
const LEAST: u64 = 1 << 20;
/// Bytes that the head of a response counts as: lists and small files have few of their own.
const RESPONSE: u64 = 128 << 10;
/// Looks at the progress in a window.
const LOOKS: u32 = 20;

/// Progress since the beginning of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Progress {
    /// Bytes of bodies.
    pub(crate) received: u64,
    /// Responses that have begun.
    pub(crate) responses: u64,
    /// Bytes that digests cover. Requests wait for the digest where an earlier run has left much of a file.
    pub(crate) hashed: u64,
}

impl Progress {
    /// Returns true if this is too little for a window.
    fn is_too_little(&self) -> bool {
        let received = self.received.saturating_add(self.responses.saturating_mul(RESPONSE));
        received < LEAST && self.hashed < LEAST
    }

    /// Progress since `before`. A file that is begun anew has no negative one.
    fn since(&self, before: &Self) -> Self {
        Self {
            received: self.received.saturating_sub(before.received),
            responses: self.responses.saturating_sub(before.responses),
            hashed: self.hashed.saturating_sub(before.hashed),
        }
    }
}

/// Pace of a run: one window after the other.
#[derive(Debug, Clone)]
pub(crate) struct Pace {
    window: Duration,
    /// Beginning of the window, since that of the run, and the progress at it.
    begun: Duration,
    before: Progress,
    is_first: bool,
}

impl Pace {
    /// Pace with windows of this length.
    pub(crate) fn new(window: Duration) -> Self {
        Self { window, begun: Duration::ZERO, before: Progress::default(), is_first: true }
    }

    /// Takes the progress at a time since the beginning of the run. Returns the bytes received in a window that has ended
    /// and was too slow.
    fn observe(&mut self, now: Duration, progress: Progress) -> Option<u64> {
        if now.saturating_sub(self.begun) < self.window {
            return None;
        }
        let in_window = progress.since(&self.before);
        let is_slow = !self.is_first && in_window.is_too_little();
        (self.begun, self.before, self.is_first) = (now, progress, false);
        is_slow.then_some(in_window.received)
    }
}

/// The source sends too slowly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the source sends too slowly, {received} bytes in the last {seconds} s, and {LEAST} are the least: other weights get the \
     place, and what is complete stays for the next attempt"
)]
pub(crate) struct TooSlow {
    pub(crate) received: u64,
    pub(crate) seconds: u64,
}

/// Watch over the pace of a run while it waits for servers.
#[derive(Debug)]
pub(crate) struct Watch {
    pace: Pace,
    begun: Instant,
}

impl Watch {
    /// Watch over a run that begins now.
    pub(crate) fn new(pace: Pace) -> Self {
        Self { pace, begun: Instant::now() }
    }

    /// Waits for `work`, unless it is too slow.
    pub(crate) async fn over<T>(
        &mut self,
        progress: impl Fn() -> Progress,
        work: impl Future<Output = T>,
    ) -> Result<T, TooSlow> {
        let mut work = pin!(work);
        loop {
            if let Ok(done) = timeout(self.pace.window / LOOKS, work.as_mut()).await {
                return Ok(done);
            }
            if let Some(received) = self.pace.observe(self.begun.elapsed(), progress()) {
                return Err(TooSlow { received, seconds: self.pace.window.as_secs() });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Number of the window that is too slow, and the bytes received in it.
    type Slow = Option<(usize, u64)>;

    fn slow_window(windows: &[Progress]) -> Slow {
        let (mut pace, mut sum) = (Pace::new(WINDOW), Progress::default());
        (1..).zip(windows).find_map(|(number, window)| {
            sum.received += window.received;
            sum.responses += window.responses;
            sum.hashed += window.hashed;
            let end = WINDOW * number;
            assert_eq!(pace.observe(end.saturating_sub(Duration::from_millis(1)), sum), None);
            let number = usize::try_from(number).unwrap();
            pace.observe(end, sum).map(|received| (number, received))
        })
    }

    #[test]
    fn the_least_is_due_in_each_window_but_the_first() {
        let received = |received| Progress { received, ..Progress::default() };
        let (none, least, slow) = (received(0), received(LEAST), received(LEAST - 1));
        let hashed = Progress { hashed: LEAST, ..Progress::default() };
        let responses = |responses| Progress { responses, ..Progress::default() };
        let table: &[(&[Progress], Slow)] = &[
            (&[none], None),
            (&[none, least, least], None),
            (&[none, none], Some((2, 0))),
            (&[least, slow], Some((2, LEAST - 1))),
            (&[least, least, least, slow, least], Some((4, LEAST - 1))),
            (&[none, hashed, hashed, none], Some((4, 0))),
            (&[none, responses(8), responses(8)], None),
            (&[none, responses(7)], Some((2, 0))),
            (&[none, Progress { received: LEAST / 2, responses: 4, hashed: 0 }], None),
            (&[none, Progress { received: LEAST / 2, responses: 0, hashed: LEAST / 2 }], Some((2, LEAST / 2))),
        ];
        for (windows, expected) in table {
            assert_eq!(slow_window(windows), *expected, "{windows:?}");
        }
    }

    #[test]
    fn a_file_that_is_begun_anew_is_no_progress_and_no_panic() {
        let mut pace = Pace::new(WINDOW);
        let hashed = |hashed| Progress { hashed, ..Progress::default() };
        assert_eq!(pace.observe(WINDOW, hashed(5 * LEAST)), None);
        assert_eq!(pace.observe(WINDOW * 2, hashed(0)), Some(0));
    }

    proptest! {
        /// Looks at any times: a rate of twice the least is never too slow, and nothing at all is, within two windows and
        /// the time between looks.
        #[test]
        fn times_of_looks_matter_little(steps in prop::collection::vec(1_u64..9000, 1..200)) {
            let (mut fast, mut dead, mut now) = (Pace::new(WINDOW), Pace::new(WINDOW), 0);
            let mut is_over = false;
            for step in steps {
                now += step;
                let received = 2 * LEAST * now / 60_000;
                let at = Duration::from_millis(now);
                prop_assert_eq!(fast.observe(at, Progress { received, ..Progress::default() }), None);
                is_over |= dead.observe(at, Progress::default()).is_some();
                prop_assert!(is_over || now < 2 * (60_000 + 9000));
                prop_assert!(!is_over || now >= 120_000);
            }
        }
    }
}
