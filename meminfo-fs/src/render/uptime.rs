//! Text of `/proc/uptime`. Pure.

use std::io::Write as _;

use crate::sample::ProcessorSample;

/// Appends the text: seconds since the start, and seconds that the processors were idle together.
pub(crate) fn uptime(sample: &ProcessorSample<'_>, out: &mut Vec<u8>) {
    let hundredths = [sample.up.as_millis() / 10, u128::from(sample.idle_usec() / 10_000)];
    let [up, idle] = hundredths.map(|all| format!("{}.{:02}", all / 100, all % 100));
    // Writing into a Vec cannot fail.
    let _ = writeln!(out, "{up} {idle}");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn seconds_and_hundredths() {
        for (up, limit_millis, used_usec, expected) in [
            (Duration::ZERO, 1000, 0, "0.00 0.00\n"),
            (Duration::from_millis(12_345), 2000, 4_690_000, "12.34 20.00\n"),
            (Duration::from_millis(1000), 1000, 1_200_000, "1.00 0.00\n"),
        ] {
            let mut out = Vec::new();
            let sample = ProcessorSample {
                numbers: &[0, 1],
                limit_millis,
                user_usec: used_usec,
                system_usec: 0,
                up,
                began_unix: 0,
            };
            uptime(&sample, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{up:?}");
        }
    }
}
