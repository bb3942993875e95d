//! Text of `/proc/stat`. Pure.
//!
//! Invariants: the line of all processors is the sum of the others, and their busy and idle time together is never more
//! than the limit gave, unless they were busy for longer.

use std::io::Write as _;

use crate::sample::ProcessorSample;

/// Unit of the file, in microseconds: a hundredth of a second for every Linux program.
const TICK_USEC: u64 = 10_000;

/// Appends the text. The time is spread evenly over the processors: its real distribution is not known.
pub(crate) fn stat(sample: &ProcessorSample<'_>, out: &mut Vec<u8>) {
    let ticks = |usec: u64| usec / TICK_USEC;
    let (user, system, idle) = (ticks(sample.user_usec), ticks(sample.system_usec), ticks(sample.idle_usec()));
    let count = sample.numbers.len().max(1) as u64;
    let line = |name: &str, [user, system, idle]: [u64; 3], out: &mut Vec<u8>| {
        // Writing into a Vec cannot fail.
        let _ = writeln!(out, "{name} {user} 0 {system} {idle} 0 0 0 0 0 0");
    };
    line("cpu ", [user, system, idle], out);
    for (index, number) in (0..count).zip(sample.numbers) {
        let part = |whole: u64| whole / count + u64::from(index < whole % count);
        line(&format!("cpu{number}"), [user, system, idle].map(part), out);
    }
    // Interrupts, switches and forks are counted for the machine only. The one process that certainly runs is the
    // reader.
    let _ = writeln!(
        out,
        "intr 0\nctxt 0\nbtime {}\nprocesses 0\nprocs_running 1\nprocs_blocked 0\nsoftirq 0 0 0 0 0 0 0 0 0 0 0",
        sample.began_unix
    );
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use proptest::prelude::*;

    fn text(sample: &ProcessorSample<'_>) -> String {
        let mut out = Vec::new();
        stat(sample, &mut out);
        String::from_utf8(out).unwrap()
    }

    fn sample(numbers: &[u32]) -> ProcessorSample<'_> {
        ProcessorSample {
            numbers,
            limit_millis: 1500,
            user_usec: 4_010_000,
            system_usec: 1_000_000,
            up: Duration::from_secs(10),
            began_unix: 1_795_426_505,
        }
    }

    #[test]
    fn the_text_is_the_kernels() {
        let expected = "cpu  401 0 100 999 0 0 0 0 0 0\ncpu0 201 0 50 500 0 0 0 0 0 0\ncpu2 200 0 50 499 0 0 0 0 0 0\n\
                        intr 0\nctxt 0\nbtime 1795426505\nprocesses 0\nprocs_running 1\nprocs_blocked 0\n\
                        softirq 0 0 0 0 0 0 0 0 0 0 0\n";
        assert_eq!(text(&sample(&[0, 2])), expected);
    }

    proptest! {
        #[test]
        fn the_first_line_is_the_sum(user in 0..u64::MAX / 4, system in 0..u64::MAX / 4, up in 0..u64::MAX, count in 1..200_u32) {
            let numbers: Vec<u32> = (0..count).collect();
            let up = Duration::from_millis(up);
            let text = text(&ProcessorSample { user_usec: user, system_usec: system, up, ..sample(&numbers) });
            let fields = |line: &str| line.split_whitespace().skip(1).map(|n| n.parse().unwrap()).collect::<Vec<u64>>();
            let lines: Vec<_> = text.lines().take_while(|line| line.starts_with("cpu")).map(fields).collect();
            prop_assert_eq!(lines.len(), numbers.len() + 1);
            for field in 0..10 {
                prop_assert_eq!(lines[0][field], lines[1..].iter().map(|line| line[field]).sum::<u64>());
            }
        }
    }
}
