//! The text as a whole (a snapshot), and its invariants for any sample (properties).

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

fn text(sample: &MemorySample) -> String {
    let mut out = Vec::new();
    render(sample, &mut out);
    String::from_utf8(out).unwrap()
}

/// Name to number, in kB; every line must be one the readers of `/proc/meminfo` can parse.
fn parse(text: &str) -> BTreeMap<&str, u64> {
    assert!(text.ends_with('\n'));
    text.lines()
        .map(|line| {
            let (name, rest) = line.split_once(':').unwrap();
            let fields: Vec<_> = rest.split_whitespace().collect();
            assert!(rest.starts_with(' '), "{line}");
            assert!(matches!(fields[..], [_, "kB"]) || (fields.len() == 1 && name.starts_with("HugePages_")), "{line}");
            (name, fields[0].parse().unwrap())
        })
        .collect()
}

fn some_sample() -> MemorySample {
    MemorySample {
        limit: 7 << 30,
        usage: 900 * MIB,
        anon: 300 * MIB,
        file: 500 * MIB,
        shmem: 20 * MIB,
        mapped: 70 * MIB,
        dirty: 3 * MIB,
        writeback: MIB,
        active_anon: 250 * MIB,
        inactive_anon: 70 * MIB,
        active_file: 200 * MIB,
        inactive_file: 280 * MIB,
        unevictable: 4 * MIB,
        slab_reclaimable: 30 * MIB,
        slab_unreclaimable: 10 * MIB,
        kernel_stack: 2 * MIB,
        page_tables: 5 * MIB,
    }
}

#[test]
fn the_text_is_the_kernels() {
    let text = text(&some_sample());
    assert!(text.starts_with("MemTotal:        7340032 kB\n"));
    insta::assert_snapshot!(text);
}

#[test]
fn a_number_wider_than_its_column_is_not_cut() {
    let text = text(&MemorySample { limit: 1 << 40, ..some_sample() });
    assert!(text.starts_with("MemTotal:       1073741824 kB\nMemFree:        1072820224 kB\n"), "{text}");
}

#[test]
fn the_formulas() {
    let lines = text(&some_sample());
    let lines = parse(&lines);
    assert_eq!(lines["MemFree"], (7 * 1024 - 900) * 1024);
    assert_eq!(lines["MemAvailable"], (7 * 1024 - 900 + 200 + 280 + 30) * 1024);
    assert_eq!(lines["Cached"], 500 * 1024);
    assert_eq!(lines["Slab"], 40 * 1024);
}

/// Numbers of every size, and numbers that are near each other.
fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..64 * MIB, 4 => 0..1_u64 << 40, 1 => any::<u64>(), 1 => Just(0), 1 => Just(u64::MAX)]
}

prop_compose! {
    fn any_sample()(numbers in prop::array::uniform17(bytes())) -> MemorySample {
        let [limit, usage, anon, file, shmem, mapped, dirty, writeback, active_anon, inactive_anon, active_file,
            inactive_file, unevictable, slab_reclaimable, slab_unreclaimable, kernel_stack, page_tables] = numbers;
        MemorySample { limit, usage, anon, file, shmem, mapped, dirty, writeback, active_anon, inactive_anon, active_file,
            inactive_file, unevictable, slab_reclaimable, slab_unreclaimable, kernel_stack, page_tables }
    }
}

proptest! {
    #[test]
    fn any_sample_gives_a_consistent_picture(sample in any_sample()) {
        let text = text(&sample);
        let lines = parse(&text);
        let total = lines["MemTotal"];
        prop_assert_eq!(total, sample.limit / 1024);
        prop_assert_eq!(lines["MemFree"], sample.limit.saturating_sub(sample.usage) / 1024);
        for (name, value) in &lines {
            prop_assert!(*value <= total || *name == "Hugepagesize", "{} {} of {}", name, value, total);
        }
        // free, psutil and htop subtract these from the total.
        prop_assert!(lines["MemFree"] + lines["Buffers"] + lines["Cached"] + lines["SReclaimable"] <= total);
        prop_assert!(lines["Shmem"] <= lines["Cached"]);
        prop_assert!(lines["MemFree"] <= lines["MemAvailable"]);
        prop_assert!(lines["SReclaimable"] + lines["SUnreclaim"] <= lines["Slab"]);
        prop_assert_eq!(lines["SwapTotal"], 0);
    }

    #[test]
    fn more_use_never_shows_more_memory(sample in any_sample(), more in bytes()) {
        let (before, after) = (text(&sample), text(&MemorySample { usage: sample.usage.saturating_add(more), ..sample }));
        let (before, after) = (parse(&before), parse(&after));
        prop_assert!(after["MemFree"] <= before["MemFree"]);
        prop_assert!(after["MemAvailable"] <= before["MemAvailable"]);
        prop_assert_eq!(after["MemTotal"], before["MemTotal"]);
    }

    #[test]
    fn a_larger_limit_never_shows_less(sample in any_sample(), more in bytes()) {
        let (before, after) = (text(&sample), text(&MemorySample { limit: sample.limit.saturating_add(more), ..sample }));
        let (before, after) = (parse(&before), parse(&after));
        for name in ["MemTotal", "MemFree", "MemAvailable"] {
            prop_assert!(after[name] >= before[name], "{}", name);
        }
    }

    #[test]
    fn it_appends(sample in any_sample()) {
        let mut out = b"before".to_vec();
        render(&sample, &mut out);
        let alone = text(&sample);
        prop_assert_eq!(out.strip_prefix(b"before"), Some(alone.as_bytes()));
    }
}
