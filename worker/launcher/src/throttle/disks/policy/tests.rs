//! Tables for one device, and what holds for any sequence of writes.

use super::*;
use proptest::prelude::*;

const TICK: Duration = Duration::from_millis(250);
/// A look is a quarter of a second: five of them are what a model may write from one to the next.
const UNIT: u64 = RATE / 20;

/// A look at a single device of `bytes` units, to which `written` units were written.
fn look(policy: &mut Policy, bytes: u64, written: u64) -> Option<Change> {
    let uses = BTreeMap::from([("7:1".to_owned(), Use { bytes: bytes * UNIT, written: written * UNIT })]);
    let mut changes = policy.tick(TICK, &uses);
    assert!(changes.len() <= 1);
    changes.pop().map(|(_, change)| change)
}

#[test]
fn a_device_is_filled_at_once_and_no_more() {
    for (bytes, written, expected) in [
        (64, &[64][..], &[Some(Change::Limit)][..]),
        (64, &[32, 30, 0, 4], &[None; 4]),
        // Five a look is what it may always write.
        (64, &[60, 5, 5, 5, 5, 9], &[None, None, None, None, None, Some(Change::Limit)]),
        (1024, &[250, 250, 250, 250, 50], &[None, None, None, None, Some(Change::Limit)]),
    ] {
        let mut policy = Policy::default();
        let changes: Vec<_> = written.iter().map(|written| look(&mut policy, bytes, *written)).collect();
        assert_eq!(changes, expected, "{bytes} {written:?}");
    }
}

#[test]
fn a_limited_device_is_released_after_a_calm_while_only() {
    let mut policy = Policy::default();
    assert_eq!(look(&mut policy, 16, 40), Some(Change::Limit));
    for written in [5, 5, 4, 4, 0, 0, 0, 0, 0, 0, 0, 2] {
        assert_eq!(look(&mut policy, 16, written), None);
    }
    for look_at in 1..=8 {
        assert_eq!(look(&mut policy, 16, 1), (look_at == 8).then_some(Change::Release), "{look_at}");
    }
    // The budget regained since it is calm is less than the whole.
    assert_eq!(look(&mut policy, 16, 16 + 5), Some(Change::Limit));
}

#[test]
fn a_forgotten_device_begins_anew() {
    let mut policy = Policy::default();
    assert_eq!(look(&mut policy, 16, 40), Some(Change::Limit));
    policy.forget("7:1");
    assert_eq!(look(&mut policy, 16, 15), None);
    assert_eq!(policy.tick(TICK, &BTreeMap::new()), []);
    assert_eq!(look(&mut policy, 16, 15), None, "a device that went away is another one when it comes back");
}

proptest! {
    #[test]
    fn changes_alternate_and_fast_writes_are_bounded(written in prop::collection::vec(0_u64..200, 1..200)) {
        let (mut policy, mut slow, mut fast) = (Policy::default(), false, 0);
        for (number, written) in written.iter().enumerate() {
            fast += if slow { 0 } else { *written };
            match look(&mut policy, 64, *written) {
                Some(Change::Limit) => {
                    prop_assert!(!slow);
                    slow = true;
                    fast -= written; // the look at which it was seen
                }
                Some(Change::Release) => {
                    prop_assert!(slow);
                    slow = false;
                }
                None => {}
            }
            prop_assert!(fast <= 64 + 5 * (number as u64 + 1), "{fast} units at full speed in {number} looks");
        }
    }
}
