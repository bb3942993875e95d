//! Displacement: who goes for whom, and what is said when nobody may.

use super::*;

/// A new version of a model that serves.
fn candidate_at(ledger: &mut Ledger, second: u64, reservation: ReservationId, model: &str, mib: u64) -> Vec<Action> {
    let (now, need) = (Duration::from_secs(second), memory(mib));
    ledger.step(&Event::Request {
        reservation,
        model: model.into(),
        need,
        zygote: None,
        min: 0,
        reason: StartReason::Rollout,
        now,
    })
}

/// The instances that are there, what is asked for, and who goes for it; `None`: it is refused.
#[test]
fn which_instance_is_displaced_for_which() {
    type Case = (&'static [(&'static str, u64, Option<u64>)], (&'static str, u64), Option<&'static [ReservationId]>);
    let cases: &[Case] = &[
        (&[("a", 50, Some(5)), ("b", 50, Some(3))], ("c", 50), Some(&[ReservationId(1)])), // idle longest
        (&[("a", 50, Some(5)), ("b", 50, Some(3))], ("c", 51), Some(&[ReservationId(1), ReservationId(0)])), // as many as needed
        (&[("a", 10, Some(1)), ("b", 90, Some(9))], ("c", 90), Some(&[ReservationId(1)])), // the first alone is no help
        (
            &[("a", 10, Some(1)), ("b", 30, Some(2)), ("c", 60, Some(3))],
            ("d", 40),
            Some(&[ReservationId(0), ReservationId(1)]),
        ),
        (&[("a", 60, None), ("b", 30, Some(3))], ("c", 40), Some(&[ReservationId(1)])), // 10 are free
        (&[("a", 60, None), ("b", 30, Some(3))], ("c", 41), None),                      // and nobody goes in vain
        (&[("a", 50, Some(5)), ("b", 50, None)], ("a", 50), None),                      // not for its own model
        (&[("a", 50, None), ("b", 50, Some(1))], ("a", 50), Some(&[ReservationId(1)])), // the last one too: nobody uses it
        (&[("a", 50, None), ("b", 25, Some(1)), ("b", 25, Some(2))], ("a", 25), Some(&[ReservationId(1)])),
        (&[("a", 50, None), ("b", 25, Some(1)), ("b", 25, Some(52))], ("a", 50), None), // b was in use a moment ago
        (
            &[("a", 50, None), ("b", 25, Some(1)), ("b", 25, Some(50))],
            ("a", 50),
            Some(&[ReservationId(1), ReservationId(2)]),
        ),
        (
            &[("a", 50, None), ("b", 25, Some(1)), ("b", 25, Some(2))],
            ("c", 50),
            Some(&[ReservationId(1), ReservationId(2)]),
        ),
        (&[("a", 50, None), ("b", 25, None), ("b", 25, Some(2))], ("a", 25), Some(&[ReservationId(2)])), // b keeps the busy one
    ];
    for (reservations, (model, mib), expected) in cases {
        let mut ledger = node(100, reservations);
        let actions = request(&mut ledger, ReservationId(99), model, *mib);
        match expected {
            None => assert!(
                matches!(actions[..], [Action::Refuse { reservation: ReservationId(99), .. }]),
                "{reservations:?} {model} {actions:?}"
            ),
            Some(went) => {
                let serves = reservations.iter().any(|(other, _, _)| other == model);
                let purpose = if serves { Purpose::ScaleUp } else { Purpose::First };
                let displaced: Vec<_> = went.iter().map(|reservation| goes(*reservation, model, purpose)).collect();
                assert_eq!(actions, displaced, "{reservations:?} {model}");
                let granted: Vec<_> = went.iter().flat_map(|reservation| gone(&mut ledger, 0, *reservation)).collect();
                assert_eq!(granted, [Action::Grant(ReservationId(99))], "{reservations:?} {model}");
            }
        }
    }
}

#[test]
fn another_try_that_nothing_asks_for_has_free_room_alone() {
    let retry = |ledger: &mut Ledger, mib| {
        let (now, need) = (Duration::from_secs(LATE), memory(mib));
        ledger.step(&Event::Request {
            reservation: ReservationId(9),
            model: "c".into(),
            need,
            zygote: None,
            min: 0,
            reason: StartReason::Retry,
            now,
        })
    };
    let mut ledger = node(100, &[("a", 50, Some(1)), ("b", 40, Some(2))]);
    assert!(
        matches!(retry(&mut ledger, 11)[..], [Action::Refuse { reservation: ReservationId(9), .. }]),
        "it neither displaces nor waits"
    );
    assert_eq!(retry(&mut ledger, 10), [Action::Grant(ReservationId(9))]);
}

/// Two models that are both at work and could each use the room of the other's second instance.
#[test]
fn a_further_instance_takes_the_place_only_of_one_that_is_not_used() {
    let mut ledger = node(100, &[("a", 25, None), ("b", 25, None), ("b", 50, Some(10))]);
    let unused = 10 + MIN_IDLE.as_secs();
    assert_eq!(
        ask_at(&mut ledger, unused - 1, ReservationId(3), "a", 50),
        full(ReservationId(3), 0),
        "it may have rested between two requests"
    );
    assert_eq!(
        ask_at(&mut ledger, unused - 1, ReservationId(4), "c", 50),
        [goes(ReservationId(2), "c", Purpose::First)],
        "for a first one it goes at once"
    );

    let mut ledger = node(100, &[("a", 25, None), ("b", 25, None), ("b", 50, Some(10))]);
    assert_eq!(ask_at(&mut ledger, unused, ReservationId(3), "a", 50), [goes(ReservationId(2), "a", Purpose::ScaleUp)]);
    assert_eq!(gone(&mut ledger, unused, ReservationId(2)), [Action::Grant(ReservationId(3))]);
    idle(&mut ledger, ReservationId(3), unused);
    assert_eq!(
        ask_at(&mut ledger, unused + 1, ReservationId(5), "b", 50),
        full(ReservationId(5), 0),
        "nor is it taken back at once"
    );
}

#[test]
fn an_idle_node_makes_room_for_a_new_version() {
    let candidate = |ledger: &mut Ledger| candidate_at(ledger, 20, ReservationId(9), "c", 30);
    let idle_node = || node(90, &[("a", 30, Some(10)), ("b", 30, Some(9)), ("c", 30, Some(11))]);
    let mut ledger = idle_node();
    assert_eq!(candidate(&mut ledger), [goes(ReservationId(1), "c", Purpose::Candidate)], "the last one of its model");
    assert_eq!(gone(&mut ledger, 20, ReservationId(1)), [Action::Grant(ReservationId(9))]);

    let mut ledger = idle_node();
    ledger.step(&Event::MinInstances { model: "b".into(), min: 1 });
    assert_eq!(candidate(&mut ledger), [goes(ReservationId(0), "c", Purpose::Candidate)]);

    // Waits for one of the instances that were in use only just.
    let mut ledger = node(90, &[("a", 30, Some(17)), ("b", 30, None), ("c", 30, Some(11))]);
    assert_eq!(candidate(&mut ledger), []);
    assert_eq!(ledger.step(&Event::Retry(Duration::from_secs(21))), []);
    assert_eq!(ledger.step(&Event::Retry(Duration::from_secs(22))), [goes(ReservationId(0), "c", Purpose::Candidate)]);
}

#[test]
fn a_full_node_is_described_truthfully() {
    let reservations = [("a", 30, Some(10)), ("a", 10, Some(10)), ("b", 30, Some(59)), ("c", 30, Some(11))];
    let mut ledger = node(110, &reservations);
    ledger.step(&Event::MinInstances { model: "a".into(), min: 1 });
    let shortage = |actions: &[Action]| match actions {
        [Action::Refuse { refusal: Refusal::Full(shortage), .. }] => *shortage,
        other => panic!("{other:?}"),
    };
    let memory = |free, idle, kept, recent, recreate_fits| Shortage {
        resource: Resource::Memory,
        free: free * MIB,
        idle: idle * MIB,
        kept,
        recent,
        recreate_fits,
    };
    // An instance of `a` may go, `b` was in use a second ago, and `c` is itself in the way.
    busy(&mut ledger, ReservationId(2));
    assert_eq!(shortage(&candidate_at(&mut ledger, LATE, ReservationId(9), "c", 100)), memory(10, 30, 1, 0, false));
    ledger.step(&Event::MinInstances { model: "b".into(), min: 1 });
    assert_eq!(shortage(&candidate_at(&mut ledger, LATE, ReservationId(9), "c", 70)), memory(10, 30, 1, 0, true));
    let further = Event::Request {
        reservation: ReservationId(9),
        model: "c".into(),
        need: Amounts { memory: 100 * MIB, millicpus: 1000, processes: 10 },
        zygote: None,
        min: 0,
        reason: StartReason::Load,
        now: Duration::from_secs(LATE),
    };
    assert_eq!(shortage(&ledger.step(&further)), memory(10, 30, 1, 0, false), "a further one has no place to take");
    idle(&mut ledger, ReservationId(2), 59);
    ledger.step(&Event::MinInstances { model: "b".into(), min: 0 });
    assert_eq!(shortage(&ledger.step(&further)), memory(10, 30, 1, 1, false));
}
