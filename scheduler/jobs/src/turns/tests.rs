//! Turns in looks at which each batch asks once, and all that runs ends before the next.

use super::*;
use proptest::prelude::*;

const NOTHING: Running = Running { all: 0, suspects: 0 };
const ITEMS: Running = Running { all: 3, suspects: 0 };
const A_SUSPECT: Running = Running { all: 1, suspects: 1 };

/// Batches that claim at each look, in their order.
fn looks(turns: &mut Turns, modes: &[Mode], count: usize) -> Vec<Vec<usize>> {
    let look = |_| {
        let mut running = NOTHING;
        let mut claimed = Vec::new();
        for (batch, mode) in modes.iter().enumerate() {
            if turns.admit("m", batch as i64, *mode, running) {
                running = Running { all: running.all + 1, suspects: u64::from(*mode == Mode::Alone) };
                claimed.push(batch);
            }
        }
        claimed
    };
    (0..count).map(look).collect()
}

#[test]
fn batches_take_turns() {
    use Mode::{Alone, Shared};
    let table = [
        ("no suspects: nobody waits", vec![Shared, Shared], vec![vec![0, 1], vec![0, 1]]),
        ("suspects beside others", vec![Alone, Shared], vec![vec![0], vec![1], vec![0], vec![1]]),
        ("others beside suspects", vec![Shared, Alone], vec![vec![0], vec![1], vec![0], vec![1]]),
        ("suspects of three", vec![Alone; 3], vec![vec![0], vec![1], vec![2], vec![0], vec![1], vec![2]]),
        ("those without share a turn", vec![Alone, Shared, Shared], vec![vec![0], vec![1, 2], vec![0], vec![1, 2]]),
    ];
    for (name, modes, expected) in table {
        let mut turns = Turns::default();
        assert_eq!(looks(&mut turns, &modes, expected.len()), expected, "{name}");
    }
}

#[test]
fn a_suspect_waits_for_what_runs_and_nothing_begins_before_it() {
    let mut turns = Turns::default();
    assert!(turns.admit("m", 1, Mode::Shared, ITEMS));
    for _ in 0..3 {
        assert!(!turns.admit("m", 2, Mode::Alone, ITEMS));
        assert!(!turns.admit("m", 1, Mode::Shared, ITEMS));
    }
    assert!(turns.admit("other", 1, Mode::Shared, NOTHING), "of another model");
    assert!(turns.admit("m", 2, Mode::Alone, NOTHING));
    assert!(!turns.admit("m", 1, Mode::Shared, A_SUSPECT));
    assert!(turns.admit("m", 1, Mode::Shared, NOTHING));
    assert!(turns.0.is_empty());
}

#[test]
fn a_batch_that_does_not_ask_any_more_loses_its_place() {
    let mut turns = Turns::default();
    assert!(!turns.admit("m", 1, Mode::Alone, ITEMS));
    assert!(!turns.admit("m", 2, Mode::Shared, ITEMS), "it may ask again");
    assert!(turns.admit("m", 2, Mode::Shared, ITEMS));
    assert!(!turns.admit("m", 1, Mode::Alone, ITEMS));
    turns.forget(1);
    assert!(turns.0.is_empty());
}

proptest! {
    /// Batches whose mode changes at any time and which may stop asking for a while: none that asks at each look waits
    /// for longer than all others together have turns, and a suspect is alone.
    #[test]
    fn none_that_asks_waits_for_ever(
        script in proptest::collection::vec(proptest::collection::vec((any::<bool>(), 0..4_u8), 5), 1..80)
    ) {
        let mut turns = Turns::default();
        let mut waits = [0; 5];
        for look in script {
            let mut running = NOTHING;
            for (batch, (alone, absent)) in look.into_iter().enumerate() {
                if absent == 0 && batch > 0 {
                    continue;
                }
                let mode = if alone { Mode::Alone } else { Mode::Shared };
                if turns.admit("m", batch as i64, mode, running) {
                    prop_assert!(running.suspects == 0 && (!alone || running.all == 0));
                    running = Running { all: running.all + 1, suspects: u64::from(alone) };
                    waits[batch] = 0;
                } else {
                    waits[batch] += 1;
                }
            }
            prop_assert!(waits[0] < 10, "{waits:?}");
        }
    }
}
