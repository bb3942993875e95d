//! Tables for one instance and for several, and the invariants for any sequence of what they use.

use super::*;
use proptest::prelude::*;

const TICK: Duration = Duration::from_millis(250);

fn set(text: &str) -> CpuSet {
    CpuSet::parse(text).unwrap()
}

/// A look: each group's name, limit in thousandths, and use in thousandths of a processor.
fn look(policy: &mut Policy, all: &str, groups: &[(&str, u32, u64)]) -> Vec<(String, String)> {
    let uses = groups.iter().map(|(name, limit_millis, used)| {
        ((*name).to_owned(), Use { limit_millis: *limit_millis, used_usec: used * 250 })
    });
    let changes = policy.tick(&set(all), TICK, &uses.collect());
    let shown = |change| match change {
        Change::Pin(processors) => processors.to_string(),
        Change::Unpin => "all".to_owned(),
    };
    changes.into_iter().map(|(name, change)| (name, shown(change))).collect()
}

fn changes(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, on)| ((*name).to_owned(), (*on).to_owned())).collect()
}

#[test]
fn a_group_that_uses_up_its_limit_is_pinned() {
    for (all, limit, used, expected) in [
        ("0-1", 1000, 1000, Some("1")),
        ("0-1", 1000, 601, Some("1")),
        ("0-1", 1000, 590, None),
        ("0-1", 500, 500, Some("1")),
        ("0-7", 1500, 1450, Some("6-7")),
        ("0-7", 4000, 4000, Some("4-7")),
        ("2,5", 1000, 1000, Some("5")),
        // As many as there are, or more: nothing to keep it from.
        ("0-1", 2000, 2000, None),
        ("0-1", 1001, 1001, None),
        ("0", 1000, 1000, None),
        ("", 1000, 1000, None),
    ] {
        let expected = expected.map(|on| changes(&[("a", on)])).unwrap_or_default();
        assert_eq!(look(&mut Policy::default(), all, &[("a", limit, used)]), expected, "{limit} {used} of {all}");
    }
}

#[test]
fn a_pinned_group_is_unpinned_after_a_calm_while() {
    let mut policy = Policy::default();
    assert_eq!(look(&mut policy, "0-1", &[("a", 1000, 1000)]), changes(&[("a", "1")]));
    for used in [300, 300, 300, 300, 300, 300, 300, 600, 300, 300, 300, 300, 300, 300, 300] {
        assert_eq!(look(&mut policy, "0-1", &[("a", 1000, used)]), []);
    }
    assert_eq!(look(&mut policy, "0-1", &[("a", 1000, 300)]), changes(&[("a", "all")]));
    assert_eq!(look(&mut policy, "0-1", &[("a", 1000, 300)]), []);
}

#[test]
fn each_cache_has_reserved_room_or_none() {
    let mut policy = Policy::default();
    let hungry = [("a", 1000, 1000), ("b", 1000, 1000), ("c", 1000, 660)];
    assert_eq!(look(&mut policy, "0-1", &hungry[..2]), changes(&[("a", "1"), ("b", "0")]));
    let third = [hungry[0], hungry[1], ("c", 1000, 1000)];
    assert_eq!(look(&mut policy, "0-1", &third), [], "no room for the third one");
    // The second one has ended: its processor is free.
    assert_eq!(look(&mut policy, "0-1", &[hungry[0], ("c", 1000, 1000)]), changes(&[("c", "0")]));
    // Two halves fit on one.
    let mut policy = Policy::default();
    let halves = [("a", 500, 500), ("b", 1000, 1000), ("c", 500, 500), ("d", 500, 500)];
    assert_eq!(look(&mut policy, "0-1", &halves), changes(&[("a", "1"), ("b", "0"), ("c", "1")]));
}

#[test]
fn a_change_of_processors_resets_the_pins() {
    let mut policy = Policy::default();
    look(&mut policy, "0-3", &[("a", 1000, 1000)]);
    assert_eq!(look(&mut policy, "0-1", &[("a", 1000, 1000)]), changes(&[("a", "all"), ("a", "1")]));
}

proptest! {
    #[test]
    fn pinning_never_takes_processor_time(
        count in 1u32..9,
        limits in prop::collection::vec(1u32..4500, 1..12),
        ticks in prop::collection::vec(prop::collection::vec(0u64..1200, 12), 1..30),
    ) {
        let all: CpuSet = (0..count).collect();
        let mut policy = Policy::default();
        let mut on: BTreeMap<String, CpuSet> = BTreeMap::new();
        for tick in ticks {
            // A use of more than the limit stands for a group that is not there.
            let uses: BTreeMap<String, Use> = limits.iter().zip(tick).enumerate().filter(|(_, (_, used))| *used <= 1000)
                .map(|(at, (limit, used))| (at.to_string(), Use {
                    limit_millis: *limit,
                    used_usec: used * u64::from(*limit) / 1000 * 250,
                })).collect();
            on.retain(|name, _| uses.contains_key(name));
            for (name, change) in policy.tick(&all, TICK, &uses) {
                match change {
                    Change::Pin(processors) => prop_assert!(on.insert(name, processors).is_none(), "it stays where it is"),
                    Change::Unpin => prop_assert!(on.remove(&name).is_some()),
                }
            }
            let mut promised = BTreeMap::new();
            for (name, processors) in &on {
                let limit = uses[name].limit_millis;
                prop_assert_eq!(u32::try_from(processors.len()).unwrap(), limit.div_ceil(WHOLE));
                for processor in processors.iter() {
                    prop_assert!(processor < count);
                    *promised.entry(processor).or_insert(0) += limit.div_ceil(limit.div_ceil(WHOLE));
                }
            }
            prop_assert!(promised.values().all(|promised| *promised <= WHOLE), "{:?}", promised);
        }
    }
}
