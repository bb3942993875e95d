//! Displacement for an instance that starts: tables of cards, idle instances, requests, and displaced instances.

use super::*;

/// A card of 10 GiB without overcommitment, and these on it, by key from 1 on.
fn full(instances: &[(u64, GpuMode)]) -> Table {
    with_overcommit(1.0, instances)
}

fn with_overcommit(overcommit: f64, instances: &[(u64, GpuMode)]) -> Table {
    let mut node = Table::with(Settings { overcommit, ..settings(&[10]) });
    for (instance, (gib, mode)) in (1..).zip(instances) {
        let placed = node.place_with(InstanceKey(instance), *gib, *mode, Reclaimable::default());
        assert_eq!(placed, [Action::Placed { instance: InstanceKey(instance), card: CardIndex(0) }]);
        match mode {
            GpuMode::Unified => assert_eq!(node.ready(InstanceKey(instance), *gib), []),
            GpuMode::Device => assert_eq!(node.feed(&Event::Ready { instance: InstanceKey(instance) }), []),
        }
    }
    node
}

fn unified(gib: u64) -> (u64, GpuMode) {
    (gib, GpuMode::Unified)
}

fn idle(keys: &[InstanceKey]) -> Reclaimable<InstanceKey> {
    Reclaimable { idle: keys.to_vec(), if_idle: keys.to_vec(), ..Reclaimable::default() }
}

fn goes(instance: InstanceKey, by: InstanceKey) -> Action {
    Action::Displace { instance, by }
}

const ASKER: InstanceKey = InstanceKey(9);

/// The instances that are there, those that are idle, what is asked for, and who goes for it; `None`: it is refused.
#[test]
fn which_instance_is_displaced_for_which() {
    use GpuMode::{Device, Unified};
    type Case = (&'static [(u64, GpuMode)], &'static [InstanceKey], (u64, GpuMode), Option<&'static [InstanceKey]>);
    let cases: &[Case] = &[
        (&[(5, Unified), (5, Unified)], &[InstanceKey(2), InstanceKey(1)], (5, Unified), Some(&[InstanceKey(2)])), // the first of them
        (
            &[(5, Unified), (5, Unified)],
            &[InstanceKey(2), InstanceKey(1)],
            (6, Unified),
            Some(&[InstanceKey(2), InstanceKey(1)]),
        ), // as many as needed
        (&[(1, Unified), (9, Unified)], &[InstanceKey(1), InstanceKey(2)], (9, Unified), Some(&[InstanceKey(2)])), // the first alone is no help
        (&[(6, Unified), (2, Unified)], &[InstanceKey(2)], (4, Unified), Some(&[InstanceKey(2)])), // 2 are free
        (&[(6, Unified), (2, Unified)], &[InstanceKey(2)], (5, Unified), None), // and nobody goes in vain
        (&[(6, Unified), (2, Unified)], &[InstanceKey(2)], (2, Unified), Some(&[])), // it fits as it is
        (&[(6, Device)], &[InstanceKey(1)], (6, Unified), Some(&[InstanceKey(1)])), // what cannot be moved leaves for good
        (&[(6, Device), (4, Unified)], &[InstanceKey(2)], (6, Device), None),
    ];
    for (instances, may_go, (gib, mode), expected) in cases {
        let mut node = full(instances);
        let others = Reclaimable { idle: may_go.to_vec(), ..Reclaimable::default() };
        let actions = node.place_with(ASKER, *gib, *mode, others);
        match expected {
            None => {
                assert!(matches!(actions[..], [Action::Refused { instance: ASKER, .. }]), "{instances:?} {actions:?}");
            }
            Some([]) => assert_eq!(actions, [Action::Placed { instance: ASKER, card: CardIndex(0) }]),
            Some(went) => {
                let displaced: Vec<_> = went.iter().map(|instance| goes(*instance, ASKER)).collect();
                assert_eq!(actions, displaced, "{instances:?} for {gib}");
                let started: Vec<_> =
                    went.iter().flat_map(|instance| node.feed(&Event::Gone { instance: *instance })).collect();
                assert_eq!(
                    started,
                    [Action::Placed { instance: ASKER, card: CardIndex(0) }],
                    "{instances:?} for {gib}"
                );
            }
        }
    }
}

#[test]
fn displaced_instances_are_on_the_chosen_card() {
    let mut node = Table::with(Settings { overcommit: 1.0, ..settings(&[10, 8]) });
    for (instance, gib, card) in [(1, 8, 0), (2, 8, 1)] {
        assert_eq!(
            node.place(InstanceKey(instance), gib),
            [Action::Placed { instance: InstanceKey(instance), card: CardIndex(card) }]
        );
        node.ready(InstanceKey(instance), gib);
    }
    let requested_at = node.place_with(ASKER, 9, GpuMode::Unified, idle(&[InstanceKey(2), InstanceKey(1)]));
    assert_eq!(requested_at, [goes(InstanceKey(1), ASKER)], "2 is idle longer, and its card is too small");
    assert_eq!(
        node.feed(&Event::Gone { instance: InstanceKey(1) }),
        [Action::Placed { instance: ASKER, card: CardIndex(0) }]
    );
}

#[test]
fn the_hosts_memory_is_made_free_too() {
    let mut node = Table::with(Settings { host_budget: 8 * GIB, ..settings(&[10]) });
    node.run(InstanceKey(1), 7);
    node.now = 10 * SECOND;
    assert_eq!(node.place(InstanceKey(2), 7), [Action::Yield { instance: InstanceKey(1) }]);
    let number = only_command(&node.yielded(InstanceKey(1)), InstanceKey(1), evict(4));
    assert_eq!(
        node.moved(InstanceKey(1), number, usage(7, 3, 0)),
        [Action::Placed { instance: InstanceKey(2), card: CardIndex(0) }]
    );
    node.ready(InstanceKey(2), 7);
    let requested_at = node.place_with(ASKER, 7, GpuMode::Unified, idle(&[InstanceKey(1)]));
    assert_eq!(requested_at, [goes(InstanceKey(1), ASKER)]);
    // The memory in the host counts until the instance is gone.
    node.now += 10 * SECOND;
    assert_eq!(node.at(node.now), []);
    let started = node.feed(&Event::Gone { instance: InstanceKey(1) });
    assert_eq!(started, [Action::Yield { instance: InstanceKey(2) }], "its turn on the card begins then");
}

/// A start that waits for others to end is in nobody's way until they have.
#[test]
fn a_placement_waiting_for_displacement_blocks_no_queue() {
    let mut node = with_overcommit(1.5, &[unified(8)]);
    node.now = 10 * SECOND;
    assert_eq!(node.place(InstanceKey(2), 6), [Action::Yield { instance: InstanceKey(1) }]);
    let number = only_command(&node.yielded(InstanceKey(1)), InstanceKey(1), evict(4));
    assert_eq!(
        node.moved(InstanceKey(1), number, usage(8, 4, 0)),
        [Action::Placed { instance: InstanceKey(2), card: CardIndex(0) }]
    );
    node.ready(InstanceKey(2), 6);
    assert_eq!(node.place_with(ASKER, 7, GpuMode::Unified, idle(&[InstanceKey(2)])), [goes(InstanceKey(2), ASKER)]);
    node.now = 60 * SECOND;
    assert_eq!(node.want(InstanceKey(1)), [], "what is there is not away yet");
    let back = node.feed(&Event::Gone { instance: InstanceKey(2) });
    let number = only_command(&back, InstanceKey(1), Command::Restore);
    assert_eq!(
        node.moved(InstanceKey(1), number, usage(8, 8, 0)),
        [Action::Grant { instance: InstanceKey(1), swap: Duration::ZERO }]
    );
}

#[test]
fn room_of_those_that_leave_anyhow_is_counted_on() {
    let mut node = full(&[unified(5), unified(5)]);
    let others = Reclaimable { leaving: keys([1]), idle: keys([2]), ..Reclaimable::default() };
    assert_eq!(node.place_with(ASKER, 5, GpuMode::Unified, others), [], "nobody else goes");
    assert_eq!(
        node.feed(&Event::Gone { instance: InstanceKey(1) }),
        [Action::Placed { instance: ASKER, card: CardIndex(0) }]
    );

    // The same for one that goes for somebody else: each place is promised once.
    let mut node = full(&[unified(5), unified(5)]);
    assert_eq!(
        node.place_with(ASKER, 5, GpuMode::Unified, idle(&[InstanceKey(1), InstanceKey(2)])),
        [goes(InstanceKey(1), ASKER)]
    );
    assert_eq!(
        node.place_with(InstanceKey(10), 5, GpuMode::Unified, idle(&[InstanceKey(1), InstanceKey(2)])),
        [goes(InstanceKey(2), InstanceKey(10))]
    );
    assert!(matches!(node.place_with(InstanceKey(11), 5, GpuMode::Unified, idle(&[]))[..], [Action::Refused { .. }]));
    assert_eq!(node.feed(&Event::Gone { instance: InstanceKey(2) }), [], "until all have gone that were there then");
    let both = [ASKER, InstanceKey(10)].map(|instance| Action::Placed { instance, card: CardIndex(0) });
    assert_eq!(node.feed(&Event::Gone { instance: InstanceKey(1) }), both);
}

#[test]
fn a_placement_waits_at_most_the_longest_wait() {
    let if_idle = |keys: &[InstanceKey]| Reclaimable { if_idle: keys.to_vec(), ..Reclaimable::default() };
    let refused = |actions: &[Action]| matches!(actions, [Action::Refused { instance: ASKER, .. }]);
    let mut node = full(&[unified(10)]);
    assert_eq!(node.place_with(ASKER, 5, GpuMode::Unified, if_idle(&[InstanceKey(1)])), []);
    assert_eq!(node.policy.pending_placements(), [ASKER]);
    node.now += MAX_WAIT / 2;
    assert_eq!(node.feed(&Event::RetryPlacement { instance: ASKER, others: if_idle(&[InstanceKey(1)]) }), []);
    assert_eq!(
        node.feed(&Event::RetryPlacement { instance: ASKER, others: idle(&[InstanceKey(1)]) }),
        [goes(InstanceKey(1), ASKER)]
    );
    assert_eq!(
        (node.policy.pending_placements(), node.feed(&Event::Gone { instance: InstanceKey(1) }).len()),
        (vec![], 1)
    );

    let mut node = full(&[unified(10)]);
    assert_eq!(node.place_with(ASKER, 5, GpuMode::Unified, if_idle(&[InstanceKey(1)])), []);
    node.now += MAX_WAIT;
    assert!(refused(&node.feed(&Event::RetryPlacement { instance: ASKER, others: if_idle(&[InstanceKey(1)]) })));
    assert!(node.policy.pending_placements().is_empty());
    assert_eq!(
        node.feed(&Event::RetryPlacement { instance: ASKER, others: idle(&[InstanceKey(1)]) }),
        [],
        "it was answered"
    );

    // Where it could not be helped, and where it asks no more.
    assert!(refused(&full(&[unified(10)]).place_with(ASKER, 5, GpuMode::Unified, if_idle(&[]))));
    let mut node = full(&[unified(10)]);
    assert_eq!(node.place_with(ASKER, 5, GpuMode::Unified, if_idle(&[InstanceKey(1)])), []);
    node.feed(&Event::Gone { instance: ASKER });
    assert!(node.policy.pending_placements().is_empty());

    // An instance that turns out to run needs no place any more.
    let mut node = full(&[unified(10)]);
    assert_eq!(node.place_with(ASKER, 5, GpuMode::Unified, if_idle(&[InstanceKey(1)])), []);
    let (card, mode) = (Some(CardIndex(0)), GpuMode::Unified);
    node.feed(&Event::Adopted { instance: ASKER, card, limit: 5 * GIB, mode, ready: true });
    assert!(node.policy.pending_placements().is_empty());
}

#[test]
fn a_refusal_says_whether_the_serving_version_is_in_the_way_and_who_stays() {
    let mut node = full(&[unified(6), unified(4)]);
    let others = Reclaimable { own: keys([1]), kept: keys([2]), recent: keys([5, 6]), ..Reclaimable::default() };
    let reason = Refusal::Committed { free: 0 };
    let retained = Retained { kept: 1, recent: 2 };
    let refused = |recreate_fits| [Action::Refused { instance: ASKER, reason, recreate_fits, retained }];
    assert_eq!(node.place_with(ASKER, 6, GpuMode::Unified, others.clone()), refused(true));
    assert_eq!(node.place_with(ASKER, 7, GpuMode::Unified, others), refused(false));
}

fn keys<const N: usize>(keys: [u64; N]) -> Vec<InstanceKey> {
    keys.map(InstanceKey).to_vec()
}
