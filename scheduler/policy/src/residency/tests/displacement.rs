//! Who leaves for an instance that starts: tables of cards, who is idle, what is asked for, and who goes.

use super::*;

/// A card of 10 GiB without overcommitment, and these on it, by key from 1 on.
fn full(instances: &[(u64, GpuMode)]) -> Table {
    with_overcommit(1.0, instances)
}

fn with_overcommit(overcommit: f64, instances: &[(u64, GpuMode)]) -> Table {
    let mut node = Table::with(Settings { overcommit, ..settings(&[10]) });
    for (instance, (gib, mode)) in (1..).zip(instances) {
        let placed = node.place_with(instance, *gib, *mode, Others::default());
        assert_eq!(placed, [Action::Placed { instance, card: 0 }]);
        match mode {
            GpuMode::Unified => assert_eq!(node.ready(instance, *gib), []),
            GpuMode::Device => assert_eq!(node.feed(&Event::Ready { instance }), []),
        }
    }
    node
}

fn unified(gib: u64) -> (u64, GpuMode) {
    (gib, GpuMode::Unified)
}

fn idle(keys: &[InstanceKey]) -> Others<InstanceKey> {
    Others { idle: keys.to_vec(), hoped: keys.to_vec(), ..Others::default() }
}

fn goes(instance: InstanceKey, by: InstanceKey) -> Action {
    Action::Displace { instance, by }
}

const ASKER: InstanceKey = 9;

/// The instances that are there, those that are idle, what is asked for, and who goes for it; `None`: it is refused.
#[test]
fn who_goes_for_whom() {
    use GpuMode::{Device, Unified};
    type Case = (&'static [(u64, GpuMode)], &'static [InstanceKey], (u64, GpuMode), Option<&'static [InstanceKey]>);
    let cases: &[Case] = &[
        (&[(5, Unified), (5, Unified)], &[2, 1], (5, Unified), Some(&[2])), // the first of them
        (&[(5, Unified), (5, Unified)], &[2, 1], (6, Unified), Some(&[2, 1])), // as many as needed
        (&[(1, Unified), (9, Unified)], &[1, 2], (9, Unified), Some(&[2])), // the first alone is no help
        (&[(6, Unified), (2, Unified)], &[2], (4, Unified), Some(&[2])),    // 2 are free
        (&[(6, Unified), (2, Unified)], &[2], (5, Unified), None),          // and nobody goes in vain
        (&[(6, Unified), (2, Unified)], &[2], (2, Unified), Some(&[])),     // it fits as it is
        (&[(6, Device)], &[1], (6, Unified), Some(&[1])),                   // what cannot be moved leaves for good
        (&[(6, Device), (4, Unified)], &[2], (6, Device), None),
    ];
    for (instances, may_go, (gib, mode), expected) in cases {
        let mut node = full(instances);
        let others = Others { idle: may_go.to_vec(), ..Others::default() };
        let actions = node.place_with(ASKER, *gib, *mode, others);
        match expected {
            None => {
                assert!(matches!(actions[..], [Action::Refused { instance: ASKER, .. }]), "{instances:?} {actions:?}");
            }
            Some([]) => assert_eq!(actions, [Action::Placed { instance: ASKER, card: 0 }]),
            Some(went) => {
                let displaced: Vec<_> = went.iter().map(|instance| goes(*instance, ASKER)).collect();
                assert_eq!(actions, displaced, "{instances:?} for {gib}");
                let started: Vec<_> =
                    went.iter().flat_map(|instance| node.feed(&Event::Gone { instance: *instance })).collect();
                assert_eq!(started, [Action::Placed { instance: ASKER, card: 0 }], "{instances:?} for {gib}");
            }
        }
    }
}

#[test]
fn those_that_go_are_on_the_card_that_is_chosen() {
    let mut node = Table::with(Settings { overcommit: 1.0, ..settings(&[10, 8]) });
    for (instance, gib, card) in [(1, 8, 0), (2, 8, 1)] {
        assert_eq!(node.place(instance, gib), [Action::Placed { instance, card }]);
        node.ready(instance, gib);
    }
    let asked = node.place_with(ASKER, 9, GpuMode::Unified, idle(&[2, 1]));
    assert_eq!(asked, [goes(1, ASKER)], "2 is idle longer, and its card is too small");
    assert_eq!(node.feed(&Event::Gone { instance: 1 }), [Action::Placed { instance: ASKER, card: 0 }]);
}

#[test]
fn the_hosts_memory_is_made_free_too() {
    let mut node = Table::with(Settings { host_budget: 8 * GIB, ..settings(&[10]) });
    node.run(1, 7);
    node.now = 10 * SECOND;
    assert_eq!(node.place(2, 7), [Action::Yield { instance: 1 }]);
    let number = only_order(&node.yielded(1), 1, evict(4));
    assert_eq!(node.moved(1, number, usage(7, 3, 0)), [Action::Placed { instance: 2, card: 0 }]);
    node.ready(2, 7);
    let asked = node.place_with(ASKER, 7, GpuMode::Unified, idle(&[1]));
    assert_eq!(asked, [goes(1, ASKER)]);
    // Its memory in the host counts until it is gone.
    node.now += 10 * SECOND;
    assert_eq!(node.at(node.now), []);
    let started = node.feed(&Event::Gone { instance: 1 });
    assert_eq!(started, [Action::Yield { instance: 2 }], "its turn on the card begins then");
}

/// A start that waits for others to end is in nobody's way until they have.
#[test]
fn an_asker_that_waits_for_others_to_end_closes_no_line() {
    let mut node = with_overcommit(1.5, &[unified(8)]);
    node.now = 10 * SECOND;
    assert_eq!(node.place(2, 6), [Action::Yield { instance: 1 }]);
    let number = only_order(&node.yielded(1), 1, evict(4));
    assert_eq!(node.moved(1, number, usage(8, 4, 0)), [Action::Placed { instance: 2, card: 0 }]);
    node.ready(2, 6);
    assert_eq!(node.place_with(ASKER, 7, GpuMode::Unified, idle(&[2])), [goes(2, ASKER)]);
    node.now = 60 * SECOND;
    assert_eq!(node.want(1), [], "what is there is not away yet");
    let back = node.feed(&Event::Gone { instance: 2 });
    let number = only_order(&back, 1, Command::Restore);
    assert_eq!(node.moved(1, number, usage(8, 8, 0)), [Action::Grant { instance: 1, swap: Duration::ZERO }]);
}

#[test]
fn room_of_those_that_leave_anyhow_is_counted_on() {
    let mut node = full(&[unified(5), unified(5)]);
    let others = Others { leaving: vec![1], idle: vec![2], ..Others::default() };
    assert_eq!(node.place_with(ASKER, 5, GpuMode::Unified, others), [], "nobody else goes");
    assert_eq!(node.feed(&Event::Gone { instance: 1 }), [Action::Placed { instance: ASKER, card: 0 }]);

    // The same for one that goes for somebody else: each place is promised once.
    let mut node = full(&[unified(5), unified(5)]);
    assert_eq!(node.place_with(ASKER, 5, GpuMode::Unified, idle(&[1, 2])), [goes(1, ASKER)]);
    assert_eq!(node.place_with(10, 5, GpuMode::Unified, idle(&[1, 2])), [goes(2, 10)]);
    assert!(matches!(node.place_with(11, 5, GpuMode::Unified, idle(&[]))[..], [Action::Refused { .. }]));
    assert_eq!(node.feed(&Event::Gone { instance: 2 }), [], "until all have gone that were there then");
    let both = [ASKER, 10].map(|instance| Action::Placed { instance, card: 0 });
    assert_eq!(node.feed(&Event::Gone { instance: 1 }), both);
}

#[test]
fn an_asker_hopes_for_as_long_as_its_patience() {
    let hoped = |keys: &[InstanceKey]| Others { hoped: keys.to_vec(), ..Others::default() };
    let refused = |actions: &[Action]| matches!(actions, [Action::Refused { instance: ASKER, .. }]);
    let mut node = full(&[unified(10)]);
    assert_eq!(node.place_with(ASKER, 5, GpuMode::Unified, hoped(&[1])), []);
    assert_eq!(node.policy.hoping(), [ASKER]);
    node.now += PATIENCE / 2;
    assert_eq!(node.feed(&Event::Look { instance: ASKER, others: hoped(&[1]) }), []);
    assert_eq!(node.feed(&Event::Look { instance: ASKER, others: idle(&[1]) }), [goes(1, ASKER)]);
    assert_eq!((node.policy.hoping(), node.feed(&Event::Gone { instance: 1 }).len()), (vec![], 1));

    let mut node = full(&[unified(10)]);
    assert_eq!(node.place_with(ASKER, 5, GpuMode::Unified, hoped(&[1])), []);
    node.now += PATIENCE;
    assert!(refused(&node.feed(&Event::Look { instance: ASKER, others: hoped(&[1]) })));
    assert!(node.policy.hoping().is_empty());
    assert_eq!(node.feed(&Event::Look { instance: ASKER, others: idle(&[1]) }), [], "it was answered");

    // Where it could not be helped, and where it asks no more.
    assert!(refused(&full(&[unified(10)]).place_with(ASKER, 5, GpuMode::Unified, hoped(&[]))));
    let mut node = full(&[unified(10)]);
    assert_eq!(node.place_with(ASKER, 5, GpuMode::Unified, hoped(&[1])), []);
    node.feed(&Event::Gone { instance: ASKER });
    assert!(node.policy.hoping().is_empty());
}

#[test]
fn a_refusal_says_whether_the_serving_version_is_in_the_way_and_who_stays() {
    let mut node = full(&[unified(6), unified(4)]);
    let others = Others { own: vec![1], kept: vec![2], recent: vec![5, 6], ..Others::default() };
    let why = Refusal::Committed { free: 0 };
    let stay = Stay { kept: 1, recent: 2 };
    let refused = |in_place| [Action::Refused { instance: ASKER, why, in_place, stay }];
    assert_eq!(node.place_with(ASKER, 6, GpuMode::Unified, others.clone()), refused(true));
    assert_eq!(node.place_with(ASKER, 7, GpuMode::Unified, others), refused(false));
}
