//! Text of `/proc/loadavg`, and the averages in it. Pure.
//!
//! The kernel counts runnable processes for the machine and not for a group, and a count at an `open` would include the
//! reader. So the load here is the number of processors that the group has used, averaged as the kernel does.

use std::io::Write as _;
use std::time::Duration;

/// Interval at which the kernel works out its averages.
const EVERY: Duration = Duration::from_secs(5);
/// Periods of the averages, in seconds.
const OVER: [f64; 3] = [60.0, 300.0, 900.0];

/// Averages at one moment. Between two calls the use is taken as even.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    at: Duration,
    used_usec: u64,
    averages: [f64; 3],
}

impl Load {
    /// Averages at `up`, the time since the start, when this much processor time has been used.
    pub(crate) fn at(self, up: Duration, used_usec: u64) -> Self {
        let passed = up.saturating_sub(self.at);
        if passed < EVERY {
            return self;
        }
        let used = used_usec.saturating_sub(self.used_usec) as f64 / passed.as_micros() as f64;
        let mut averages = self.averages;
        for (average, over) in averages.iter_mut().zip(OVER) {
            let kept = (-passed.as_secs_f64() / over).exp();
            *average = *average * kept + used * (1.0 - kept);
        }
        Self { at: up, used_usec, averages }
    }
}

/// Appends the text. The reader is the one process that is known to run, and no process was certainly the last.
pub(crate) fn loadavg(load: &Load, out: &mut Vec<u8>) {
    let [one, five, fifteen] = load.averages;
    // Writing into a Vec cannot fail.
    let _ = writeln!(out, "{one:.2} {five:.2} {fifteen:.2} 1/1 0");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(load: Load) -> String {
        let mut out = Vec::new();
        loadavg(&load, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn it_follows_the_use() {
        let second = Duration::from_secs(1);
        let mut load = Load::default();
        assert_eq!(text(load), "0.00 0.00 0.00 1/1 0\n");
        // Unchanged when called too soon.
        assert_eq!(text(load.at(second * 4, 4_000_000)), "0.00 0.00 0.00 1/1 0\n");
        // Two processors for a minute: 2 (1 - 1/e) in the first, as in the kernel.
        load = load.at(second * 60, 120_000_000);
        assert_eq!(text(load), "1.26 0.36 0.13 1/1 0\n");
        // In steps or at once is the same where the use is even.
        let stepped =
            (1..=12).fold(Load::default(), |load, step| load.at(second * 5 * step, u64::from(step) * 10_000_000));
        assert_eq!(text(stepped), text(load));
        // Idle since.
        assert_eq!(text(load.at(second * 3600, 120_000_000)), "0.00 0.00 0.00 1/1 0\n");
        assert_eq!(text(load.at(second * 3600, 0)), "0.00 0.00 0.00 1/1 0\n", "a count that went back");
    }
}
