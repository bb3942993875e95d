//! Both layouts against plain files in the kernel's format, and lists of processors.

use super::*;
use std::time::Duration;

fn shown(numbers: &[u32], limit_millis: u32) -> Shown {
    Shown { numbers: numbers.into(), limit_millis, cpuinfo: Arc::default() }
}

#[test]
fn lists() {
    for (text, expected) in [
        ("0-1\n", Some(vec![0, 1])),
        ("0\n", Some(vec![0])),
        ("0-2,8,10-11\n", Some(vec![0, 1, 2, 8, 10, 11])),
        ("\n", None),
        ("0-99999999", None),
        ("a", None),
    ] {
        let found = numbers(text);
        assert_eq!(found, expected, "{text}");
        assert!(found.is_none_or(|found| list(&found) == text));
    }
}

#[test]
fn a_processor_limit_is_rounded_up_and_bounded_by_the_machine() {
    let all = Shown::by_limit(u32::MAX).unwrap().numbers().len();
    for (millis, wanted) in [(0, 1), (10, 1), (1000, 1), (1001, 2), (3500, 4)] {
        assert_eq!(Shown::by_limit(millis).unwrap().numbers().len(), wanted.min(all), "{millis}");
    }
}

#[test]
fn both_versions_count_the_same_time() {
    let dir = tempfile::tempdir().unwrap();
    let files = [
        ("cpuacct.usage_user", "4000000999\n"),
        ("cpuacct.usage_sys", "1000000000\n"),
        ("cpu.stat", "usage_usec 5000000\nuser_usec 4000000\nsystem_usec 1000000\nnr_periods 0\n"),
    ];
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let v1 = Processors::open_v1(dir.path(), shown(&[0], 1000), 0).unwrap();
    let v2 = Processors::open_v2(dir.path(), shown(&[0], 1000), 0).unwrap();
    for group in [v1, v2] {
        let sample = group.sample().unwrap();
        assert_eq!((sample.user_usec, sample.system_usec), (4_000_000, 1_000_000));
    }
    fs::write(dir.path().join("cpu.stat"), "usage_usec 5\n").unwrap();
    let error = Processors::open_v2(dir.path(), shown(&[0], 1000), 0).unwrap().sample().unwrap_err();
    assert_eq!(error.to_string(), "cpu.stat of the control group has no number for `user_usec`");
}

#[test]
fn idle_time_is_the_limit_minus_the_use() {
    for (numbers, limit_millis, used, expected) in [
        (&[0, 1][..], 1500, 5_000_000, 10_000_000),
        (&[0, 1], 8000, 5_000_000, 15_000_000), // more than there are
        (&[0], 1000, 11_000_000, 0),
    ] {
        let sample = ProcessorSample {
            numbers,
            limit_millis,
            user_usec: used,
            system_usec: 0,
            up: Duration::from_secs(10),
            began_unix: 0,
        };
        assert_eq!(sample.idle_usec(), expected, "{limit_millis}");
    }
}
