//! Displacement: who goes for whom, and what is said when nobody may.

use super::*;

/// A new version of a model that serves.
fn candidate_at(ledger: &mut Ledger, second: u64, seat: SeatKey, model: &str, mib: u64) -> Vec<Action> {
    let (now, need) = (Duration::from_secs(second), memory(mib));
    ledger.step(&Event::Ask { seat, model: model.into(), need, zygote: None, min: 0, cause: Cause::Version, now })
}

/// The instances that are there, what is asked for, and who goes for it; `None`: it is refused.
#[test]
fn who_goes_for_whom() {
    type Case = (&'static [(&'static str, u64, Option<u64>)], (&'static str, u64), Option<&'static [SeatKey]>);
    let cases: &[Case] = &[
        (&[("a", 50, Some(5)), ("b", 50, Some(3))], ("c", 50), Some(&[1])), // idle longest
        (&[("a", 50, Some(5)), ("b", 50, Some(3))], ("c", 51), Some(&[1, 0])), // as many as needed
        (&[("a", 10, Some(1)), ("b", 90, Some(9))], ("c", 90), Some(&[1])), // the first alone is no help
        (&[("a", 10, Some(1)), ("b", 30, Some(2)), ("c", 60, Some(3))], ("d", 40), Some(&[0, 1])),
        (&[("a", 60, None), ("b", 30, Some(3))], ("c", 40), Some(&[1])), // 10 are free
        (&[("a", 60, None), ("b", 30, Some(3))], ("c", 41), None),       // and nobody goes in vain
        (&[("a", 50, Some(5)), ("b", 50, None)], ("a", 50), None),       // not for its own model
        (&[("a", 50, None), ("b", 50, Some(1))], ("a", 50), Some(&[1])), // the last one too: nobody uses it
        (&[("a", 50, None), ("b", 25, Some(1)), ("b", 25, Some(2))], ("a", 25), Some(&[1])),
        (&[("a", 50, None), ("b", 25, Some(1)), ("b", 25, Some(52))], ("a", 50), None), // b was in use a moment ago
        (&[("a", 50, None), ("b", 25, Some(1)), ("b", 25, Some(50))], ("a", 50), Some(&[1, 2])),
        (&[("a", 50, None), ("b", 25, Some(1)), ("b", 25, Some(2))], ("c", 50), Some(&[1, 2])),
        (&[("a", 50, None), ("b", 25, None), ("b", 25, Some(2))], ("a", 25), Some(&[2])), // b keeps the busy one
    ];
    for (seats, (model, mib), expected) in cases {
        let mut ledger = node(100, seats);
        let actions = ask(&mut ledger, 99, model, *mib);
        match expected {
            None => assert!(matches!(actions[..], [Action::Refuse { seat: 99, .. }]), "{seats:?} {model} {actions:?}"),
            Some(went) => {
                let serves = seats.iter().any(|(other, _, _)| other == model);
                let purpose = if serves { Purpose::Further } else { Purpose::First };
                let displaced: Vec<_> = went.iter().map(|seat| goes(*seat, model, purpose)).collect();
                assert_eq!(actions, displaced, "{seats:?} {model}");
                let granted: Vec<_> = went.iter().flat_map(|seat| gone(&mut ledger, 0, *seat)).collect();
                assert_eq!(granted, [Action::Grant(99)], "{seats:?} {model}");
            }
        }
    }
}

#[test]
fn another_try_that_nothing_asks_for_has_free_room_alone() {
    let retry = |ledger: &mut Ledger, mib| {
        let (now, need) = (Duration::from_secs(LATE), memory(mib));
        ledger.step(&Event::Ask { seat: 9, model: "c".into(), need, zygote: None, min: 0, cause: Cause::Retry, now })
    };
    let mut ledger = node(100, &[("a", 50, Some(1)), ("b", 40, Some(2))]);
    assert!(matches!(retry(&mut ledger, 11)[..], [Action::Refuse { seat: 9, .. }]), "it neither displaces nor waits");
    assert_eq!(retry(&mut ledger, 10), [Action::Grant(9)]);
}

/// Two models that are both at work and could each use the room of the other's second instance.
#[test]
fn a_further_instance_takes_the_place_only_of_one_that_is_not_used() {
    let mut ledger = node(100, &[("a", 25, None), ("b", 25, None), ("b", 50, Some(10))]);
    let unused = 10 + UNUSED.as_secs();
    assert_eq!(ask_at(&mut ledger, unused - 1, 3, "a", 50), full(3, 0), "it may have rested between two requests");
    assert_eq!(
        ask_at(&mut ledger, unused - 1, 4, "c", 50),
        [goes(2, "c", Purpose::First)],
        "for a first one it goes at once"
    );

    let mut ledger = node(100, &[("a", 25, None), ("b", 25, None), ("b", 50, Some(10))]);
    assert_eq!(ask_at(&mut ledger, unused, 3, "a", 50), [goes(2, "a", Purpose::Further)]);
    assert_eq!(gone(&mut ledger, unused, 2), [Action::Grant(3)]);
    idle(&mut ledger, 3, unused);
    assert_eq!(ask_at(&mut ledger, unused + 1, 5, "b", 50), full(5, 0), "nor is it taken back at once");
}

#[test]
fn an_idle_node_makes_room_for_a_new_version() {
    let candidate = |ledger: &mut Ledger| candidate_at(ledger, 20, 9, "c", 30);
    let idle_node = || node(90, &[("a", 30, Some(10)), ("b", 30, Some(9)), ("c", 30, Some(11))]);
    let mut ledger = idle_node();
    assert_eq!(candidate(&mut ledger), [goes(1, "c", Purpose::Candidate)], "the last one of its model");
    assert_eq!(gone(&mut ledger, 20, 1), [Action::Grant(9)]);

    let mut ledger = idle_node();
    ledger.step(&Event::Min { model: "b".into(), min: 1 });
    assert_eq!(candidate(&mut ledger), [goes(0, "c", Purpose::Candidate)]);

    // It waits for one of those that were in use only just.
    let mut ledger = node(90, &[("a", 30, Some(17)), ("b", 30, None), ("c", 30, Some(11))]);
    assert_eq!(candidate(&mut ledger), []);
    assert_eq!(ledger.step(&Event::Look(Duration::from_secs(21))), []);
    assert_eq!(ledger.step(&Event::Look(Duration::from_secs(22))), [goes(0, "c", Purpose::Candidate)]);
}

#[test]
fn what_is_said_of_a_full_node_is_true() {
    let seats = [("a", 30, Some(10)), ("a", 10, Some(10)), ("b", 30, Some(59)), ("c", 30, Some(11))];
    let mut ledger = node(110, &seats);
    ledger.step(&Event::Min { model: "a".into(), min: 1 });
    let shortage = |actions: &[Action]| match actions {
        [Action::Refuse { why: Refusal::Full(shortage), .. }] => *shortage,
        other => panic!("{other:?}"),
    };
    let memory = |free, idle, kept, recent, in_place| Shortage {
        resource: Resource::Memory,
        free: free * MIB,
        idle: idle * MIB,
        kept,
        recent,
        in_place,
    };
    // Of `a` one may go, `b` was in use a second ago, and `c` is itself in the way.
    busy(&mut ledger, 2);
    assert_eq!(shortage(&candidate_at(&mut ledger, LATE, 9, "c", 100)), memory(10, 30, 1, 0, false));
    ledger.step(&Event::Min { model: "b".into(), min: 1 });
    assert_eq!(shortage(&candidate_at(&mut ledger, LATE, 9, "c", 70)), memory(10, 30, 1, 0, true));
    let further = Event::Ask {
        seat: 9,
        model: "c".into(),
        need: Amounts { memory: 100 * MIB, millicpus: 1000, processes: 10 },
        zygote: None,
        min: 0,
        cause: Cause::Load,
        now: Duration::from_secs(LATE),
    };
    assert_eq!(shortage(&ledger.step(&further)), memory(10, 30, 1, 0, false), "a further one has no place to take");
    idle(&mut ledger, 2, 59);
    ledger.step(&Event::Min { model: "b".into(), min: 0 });
    assert_eq!(shortage(&ledger.step(&further)), memory(10, 30, 1, 1, false));
}
