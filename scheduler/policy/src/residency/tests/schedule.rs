//! Which instance's memory leaves for which other, and when.

use super::*;

/// A card of 10 GiB and models that were last used at these seconds, each idle and with its whole limit there.
fn idle(models: &[(InstanceKey, u64, u32)]) -> Table {
    let mut card = Table::new(&[10]);
    for (instance, gib, second) in models {
        card.run(*instance, *gib);
        card.now = *second * SECOND;
        card.busy(*instance);
        card.idle(*instance);
    }
    card
}

/// Yields, gives the bytes up, and returns what follows.
fn leave(card: &mut Table, instance: InstanceKey, has: u64, releases: u64) -> Vec<Action> {
    let number = only_command(&card.yielded(instance), instance, evict(releases));
    card.moved(instance, number, usage(has, has - releases, 0))
}

#[test]
fn models_that_fit_cost_no_message() {
    let mut card = idle(&[(InstanceKey(1), 5, 3), (InstanceKey(2), 5, 4)]);
    for second in 5..50 {
        card.now = second * SECOND;
        let instance = u64::from(second % 2 + 1);
        assert_eq!(card.busy(InstanceKey(instance)), []);
        assert_eq!(card.feed(&Event::UsageSampled { instance: InstanceKey(instance), usage: usage(5, 5, 0) }), []);
        assert_eq!(card.idle(InstanceKey(instance)), []);
        assert_eq!(card.policy.wake_at(), None);
    }
}

#[test]
fn the_least_recently_used_leave_first_in_parallel_and_only_as_much_as_needed() {
    let mut card = idle(&[(InstanceKey(1), 2, 5), (InstanceKey(2), 3, 6), (InstanceKey(3), 5, 7)]);
    card.now = 20 * SECOND;
    assert_eq!(
        card.place(InstanceKey(4), 4),
        [Action::Yield { instance: InstanceKey(1) }, Action::Yield { instance: InstanceKey(2) }]
    );
    let one = only_command(&card.yielded(InstanceKey(1)), InstanceKey(1), evict(2));
    let two = only_command(&card.yielded(InstanceKey(2)), InstanceKey(2), evict(2));
    assert_eq!(card.moved(InstanceKey(2), two, usage(3, 1, 0)), []);
    assert_eq!(
        card.moved(InstanceKey(1), one, usage(2, 0, 0)),
        [Action::Placed { instance: InstanceKey(4), card: CardIndex(0) }]
    );
}

#[test]
fn a_busy_one_yields_when_its_quantum_is_over_and_finishes_what_it_has() {
    let mut card = Table::new(&[10]);
    card.run(InstanceKey(1), 8);
    card.busy(InstanceKey(1));
    assert_eq!(card.place(InstanceKey(2), 8), []);
    assert_eq!(card.policy.wake_at(), Some(2 * SECOND), "granted at 0");
    assert_eq!(card.at(2 * SECOND - MS), []);
    assert_eq!(card.at(2 * SECOND), [Action::Yield { instance: InstanceKey(1) }]);
    assert_eq!(card.policy.wake_at(), None, "its requests have deadlines");
    card.now = 3 * SECOND;
    assert_eq!(card.want(InstanceKey(1)), [], "the next request for it waits already");
    assert_eq!(
        leave(&mut card, InstanceKey(1), 8, 6),
        [Action::Placed { instance: InstanceKey(2), card: CardIndex(0) }]
    );
    // 1 waits since second 3. The start is not interrupted; the turn that follows it is, after its quantum.
    card.now = 60 * SECOND;
    assert_eq!(card.ready(InstanceKey(2), 8), []);
    card.busy(InstanceKey(2));
    assert_eq!(card.at(62 * SECOND), [Action::Yield { instance: InstanceKey(2) }]);
    let back = leave(&mut card, InstanceKey(2), 8, 6);
    let number = only_command(&back, InstanceKey(1), Command::Restore);
    card.now += 300 * MS;
    let swap = card.now - 62 * SECOND;
    assert_eq!(card.moved(InstanceKey(1), number, usage(8, 8, 0)), [Action::Grant { instance: InstanceKey(1), swap }]);
}

#[test]
fn a_gap_between_requests_does_not_cost_a_turn() {
    let mut card = Table::new(&[10]);
    card.run(InstanceKey(1), 8);
    card.busy(InstanceKey(1));
    card.now = 500 * MS;
    card.idle(InstanceKey(1));
    assert_eq!(card.place(InstanceKey(2), 8), []);
    assert_eq!(card.policy.wake_at(), Some(600 * MS), "a twentieth of the quantum");
    card.now = 550 * MS;
    card.busy(InstanceKey(1));
    assert_eq!(card.at(600 * MS), []);
    assert_eq!(card.policy.wake_at(), Some(2 * SECOND));
    card.now = 700 * MS;
    card.idle(InstanceKey(1));
    assert_eq!(card.at(800 * MS), [Action::Yield { instance: InstanceKey(1) }]);
}

#[test]
fn small_ones_pass_a_big_one_until_it_has_waited_for_a_quantum() {
    let mut card = idle(&[(InstanceKey(1), 6, 3)]);
    card.run(InstanceKey(2), 2);
    card.busy(InstanceKey(2));
    card.now = 5 * SECOND;
    card.busy(InstanceKey(1));
    card.now = 10 * SECOND;
    card.idle(InstanceKey(2));
    // Both turns are older than a quantum, and 1 is busy. The big one lacks 8, so both have to leave.
    assert_eq!(
        card.place(InstanceKey(3), 10),
        [Action::Yield { instance: InstanceKey(2) }, Action::Yield { instance: InstanceKey(1) }]
    );
    assert_eq!(card.yielded(InstanceKey(2)).len(), 1);
    // A turn that has just begun cannot be broken: the line waits, but who fits goes first.
    let mut card = Table::new(&[10]);
    card.run(InstanceKey(1), 6);
    card.busy(InstanceKey(1));
    assert_eq!(card.place(InstanceKey(2), 10), []);
    assert_eq!(
        card.place(InstanceKey(3), 2),
        [Action::Placed { instance: InstanceKey(3), card: CardIndex(0) }],
        "it fits beside 1"
    );
    assert_eq!(card.place(InstanceKey(4), 3), [], "and this one does not");
    card.now = 1900 * MS;
    assert_eq!(card.ready(InstanceKey(3), 2), []);
    card.busy(InstanceKey(3));
    assert_eq!(card.place(InstanceKey(5), 1), [Action::Placed { instance: InstanceKey(5), card: CardIndex(0) }]);
    card.now = 2002 * MS;
    assert_eq!(card.place(InstanceKey(6), 1), [], "it would fit, but the big one has waited for a quantum");
}

#[test]
fn an_instance_waiting_behind_the_head_is_evicted_before_busy_ones() {
    let mut card = idle(&[(InstanceKey(1), 4, 3), (InstanceKey(2), 6, 4)]);
    card.now = 10 * SECOND;
    assert_eq!(
        card.place(InstanceKey(3), 10),
        [Action::Yield { instance: InstanceKey(1) }, Action::Yield { instance: InstanceKey(2) }]
    );
    let first = only_command(&card.yielded(InstanceKey(1)), InstanceKey(1), evict(4));
    let second = only_command(&card.yielded(InstanceKey(2)), InstanceKey(2), evict(6));
    assert_eq!(card.want(InstanceKey(2)), [], "too late: it gets its turn after 3");
    card.moved(InstanceKey(1), first, usage(4, 0, 0));
    assert_eq!(
        card.moved(InstanceKey(2), second, usage(6, 0, 0)),
        [Action::Placed { instance: InstanceKey(3), card: CardIndex(0) }]
    );
    card.ready(InstanceKey(3), 10);
    card.now = 11 * SECOND;
    card.busy(InstanceKey(3));
    card.want(InstanceKey(1));
    assert_eq!(card.at(12 * SECOND + 2 * MS), [Action::Yield { instance: InstanceKey(3) }]);
    // Both fit: what 3 gives up is for both, in one order.
    let number = only_command(&card.yielded(InstanceKey(3)), InstanceKey(3), evict(10));
    let both = card.moved(InstanceKey(3), number, usage(10, 0, 0));
    let commands_sent: Vec<_> =
        both.iter().map(|action| matches!(action, Action::Command { command: Command::Restore, .. })).collect();
    assert_eq!(commands_sent, [true, true]);
}

#[test]
fn work_that_ends_with_a_yield_counts_as_use() {
    let mut card = idle(&[(InstanceKey(1), 4, 3), (InstanceKey(2), 4, 5)]);
    card.busy(InstanceKey(1));
    card.now = 10 * SECOND;
    assert_eq!(
        card.place(InstanceKey(3), 10),
        [Action::Yield { instance: InstanceKey(2) }, Action::Yield { instance: InstanceKey(1) }]
    );
    card.feed(&Event::Gone { instance: InstanceKey(3) });
    card.yielded(InstanceKey(2));
    card.now = 20 * SECOND;
    card.yielded(InstanceKey(1));
    let actions = card.place(InstanceKey(4), 5);
    only_command(&actions, InstanceKey(2), evict(3));
}

#[test]
fn growth_is_met_by_others_that_are_idle() {
    let mut card = Table::new(&[10]);
    for instance in [1, 2] {
        assert_eq!(card.place(InstanceKey(instance), 8).len(), 1 - usize::from(instance == 2));
        if instance == 1 {
            card.ready(InstanceKey(1), 4);
        }
    }
    // 2 needs all of its limit to start: 2 of 4 GiB of 1 leave, once that was idle for a moment.
    assert_eq!(card.at(101 * MS), [Action::Yield { instance: InstanceKey(1) }]);
    assert_eq!(
        leave(&mut card, InstanceKey(1), 4, 2),
        [Action::Placed { instance: InstanceKey(2), card: CardIndex(0) }]
    );
    assert_eq!(card.ready(InstanceKey(2), 6), []);
    assert_eq!(card.want(InstanceKey(1)).len(), 1, "a start had 8, now 6 are used: 1 fits beside it");
    card.now = 5 * SECOND;
    card.moved(InstanceKey(1), 4, usage(4, 4, 0));
    card.busy(InstanceKey(2));
    card.idle(InstanceKey(2));
    card.now = 6 * SECOND;
    card.busy(InstanceKey(1));
    assert_eq!(
        card.feed(&Event::UsageSampled { instance: InstanceKey(1), usage: usage(7, 7, 0) }),
        [Action::Yield { instance: InstanceKey(2) }]
    );
    assert!(
        matches!(card.yielded(InstanceKey(2))[..], [Action::Command { instance: InstanceKey(2), command: Command::Evict { bytes }, .. }] if bytes == 3 * GIB)
    );
}

#[test]
fn a_want_can_be_withdrawn() {
    let mut card = idle(&[(InstanceKey(1), 8, 3)]);
    card.now = 10 * SECOND;
    card.place(InstanceKey(2), 8);
    leave(&mut card, InstanceKey(1), 8, 6);
    card.ready(InstanceKey(2), 8);
    card.busy(InstanceKey(2));
    card.want(InstanceKey(1));
    card.feed(&Event::Unwanted { instance: InstanceKey(1) });
    assert_eq!(card.at(20 * SECOND), [], "nobody waits");
    assert_eq!(card.policy.wake_at(), None);
}

#[test]
fn a_device_instance_is_always_there() {
    let mut card = Table::new(&[10]);
    card.place_device(InstanceKey(1), 3);
    assert_eq!(card.feed(&Event::Ready { instance: InstanceKey(1) }), []);
    card.run(InstanceKey(2), 6);
    card.now = 10 * SECOND;
    assert_eq!(
        card.place(InstanceKey(3), 6),
        [Action::Yield { instance: InstanceKey(2) }],
        "1 is older, and never asked"
    );
    let adopted = Event::Adopted {
        instance: InstanceKey(4),
        card: Some(CardIndex(0)),
        limit: GIB,
        mode: GpuMode::Device,
        ready: true,
    };
    assert_eq!(card.feed(&adopted), []);
    assert_eq!(card.want(InstanceKey(4)), [Action::Grant { instance: InstanceKey(4), swap: Duration::ZERO }]);
}

#[test]
fn an_idle_one_whose_memory_cannot_move_ends_for_one_that_needs_it() {
    let mut card = Table::new(&[10]);
    card.place(InstanceKey(1), 8);
    let number = only_command(&card.feed(&Event::Ready { instance: InstanceKey(1) }), InstanceKey(1), Command::Report);
    card.moved(InstanceKey(1), number, usage(2, 2, 5));
    card.now = 10 * SECOND;
    assert_eq!(card.place(InstanceKey(2), 8), [Action::Yield { instance: InstanceKey(1) }]);
    assert_eq!(card.yielded(InstanceKey(1)), [Action::End { instance: InstanceKey(1), reason: EndCause::InTheWay }]);
    assert_eq!(card.at(11 * SECOND), [], "its memory is there until it is gone");
    assert_eq!(
        card.feed(&Event::Gone { instance: InstanceKey(1) }),
        [Action::Placed { instance: InstanceKey(2), card: CardIndex(0) }]
    );
}

#[test]
fn foreign_memory_on_the_card_leaves_room_for_one_instance_at_least() {
    let mut card = idle(&[(InstanceKey(1), 4, 3), (InstanceKey(2), 4, 4)]);
    // 12 GiB in all: 8 are ours, so 3 of 11 are somebody else's, and 9 are left.
    card.now = 10 * SECOND;
    assert_eq!(card.feed(&Event::CardMeasured { card: CardIndex(0), bytes: 11 * GIB }), []);
    assert_eq!(
        card.feed(&Event::CardMeasured { card: CardIndex(0), bytes: 14 * GIB }),
        [Action::Yield { instance: InstanceKey(1) }]
    );
    let number = only_command(&card.yielded(InstanceKey(1)), InstanceKey(1), evict(2));
    assert_eq!(card.moved(InstanceKey(1), number, usage(4, 2, 0)), []);
    card.busy(InstanceKey(2));
    assert_eq!(card.feed(&Event::CardMeasured { card: CardIndex(0), bytes: 40 * GIB }).len(), 1, "the rest of 1");
    assert_eq!(card.at(60 * SECOND), [Action::End { instance: InstanceKey(1), reason: EndCause::Silent }]);
    assert_eq!(card.policy.cards()[0].instances[0].location, MemoryLocation::Resident, "2 serves on");
}

#[test]
fn while_the_host_is_short_one_exchange_at_a_time() {
    let exchange = |host_budget| {
        let mut card = Table::with(Settings { host_budget, ..settings(&[10]) });
        for instance in 1..=4 {
            card.now += 5 * SECOND;
            let actions = card.place(InstanceKey(instance), 5);
            if let [Action::Yield { instance: out }] = actions[..] {
                leave(&mut card, out, 5, 5);
            }
            card.ready(InstanceKey(instance), 5);
        }
        // 3 and 4 are on the card, 1 and 2 are wanted.
        card.now = 60 * SECOND;
        [card.want(InstanceKey(1)), card.want(InstanceKey(2))]
    };
    let one = |instance| vec![Action::Yield { instance }];
    assert_eq!(exchange(1024 * GIB), [one(InstanceKey(3)), one(InstanceKey(4))]);
    assert_eq!(exchange(15 * GIB), [one(InstanceKey(3)), vec![]], "10 and 5 more while two change places");
}

#[test]
fn a_smaller_placement_passes_only_into_free_memory() {
    // 1 has been busy for long and 2 starts, so the big one has to wait; nobody behind it may have the bytes of 1.
    let mut card = idle(&[(InstanceKey(1), 5, 3)]);
    card.now = 10 * SECOND;
    card.busy(InstanceKey(1));
    assert_eq!(card.place(InstanceKey(2), 4), [Action::Placed { instance: InstanceKey(2), card: CardIndex(0) }]);
    assert_eq!(card.place(InstanceKey(3), 10), []);
    assert_eq!(card.place(InstanceKey(4), 3), [], "it would fit in place of 1");
    assert_eq!(card.place(InstanceKey(5), 1), [Action::Placed { instance: InstanceKey(5), card: CardIndex(0) }]);
}

#[test]
fn the_last_of_the_line_gives_its_bytes_before_a_busy_one_has_to_yield() {
    let mut card = Table::new(&[10]);
    card.run(InstanceKey(1), 5);
    card.busy(InstanceKey(1));
    card.run(InstanceKey(2), 5);
    card.now = 200 * MS;
    assert_eq!(card.place(InstanceKey(3), 2), [Action::Yield { instance: InstanceKey(2) }]);
    assert_eq!(
        leave(&mut card, InstanceKey(2), 5, 2),
        [Action::Placed { instance: InstanceKey(3), card: CardIndex(0) }]
    );
    card.now = 300 * MS;
    assert_eq!(card.place(InstanceKey(4), 4), [], "2 has only 3 left, 3 starts, and the turn of 1 is not over");
    card.now += MS;
    assert_eq!(card.want(InstanceKey(2)), []);
    let actions = card.at(2 * SECOND);
    only_command(&actions[..1], InstanceKey(2), evict(3));
    assert_eq!(actions[1..], [Action::Yield { instance: InstanceKey(1) }]);
}

#[test]
fn one_yielding_instance_makes_room_for_several_placements() {
    let mut card = Table::new(&[10]);
    card.run(InstanceKey(1), 6);
    card.now = 10 * SECOND;
    card.run(InstanceKey(2), 2);
    card.now = 10_050 * MS;
    card.busy(InstanceKey(1));
    assert_eq!(card.place(InstanceKey(3), 4), [Action::Yield { instance: InstanceKey(1) }]);
    assert_eq!(card.place(InstanceKey(4), 3), [], "1 has enough for both");
    assert_eq!(card.at(10_200 * MS), [], "2 is idle for long enough by now, and was used before 1");
}

/// 1 and 2 are busy and hold this many GiB that cannot move; the turn of 2 began a second later.
fn holders(one: u64, two: u64) -> Table {
    let mut card = Table::new(&[10]);
    for (instance, device) in [(1, one), (2, two)] {
        card.place(InstanceKey(instance), 5);
        let number = only_command(
            &card.feed(&Event::Ready { instance: InstanceKey(instance) }),
            InstanceKey(instance),
            Command::Report,
        );
        card.moved(InstanceKey(instance), number, usage(0, 0, device));
        card.busy(InstanceKey(instance));
        card.now += SECOND;
    }
    card
}

#[test]
fn an_instance_finishes_its_requests_before_it_yields() {
    let mut card = holders(3, 3);
    // 8 beside 3 and 3: both have to go. The turn of 1 is over, that of 2 is not.
    assert_eq!(card.place(InstanceKey(3), 8), [Action::Yield { instance: InstanceKey(1) }]);
    assert_eq!(card.at(2500 * MS), [], "1 still has a request");
    assert_eq!(card.at(3 * SECOND), [Action::Yield { instance: InstanceKey(2) }]);
    assert_eq!(card.yielded(InstanceKey(1)), [Action::End { instance: InstanceKey(1), reason: EndCause::InTheWay }]);
    assert_eq!(card.yielded(InstanceKey(2)), [Action::End { instance: InstanceKey(2), reason: EndCause::InTheWay }]);
}

#[test]
fn no_more_instances_end_than_necessary() {
    let mut card = holders(3, 2);
    assert_eq!(card.place(InstanceKey(3), 8), [Action::Yield { instance: InstanceKey(1) }]);
    assert_eq!(card.at(3 * SECOND), [], "8 fit beside the 2 of the other");
    assert_eq!(card.yielded(InstanceKey(1)), [Action::End { instance: InstanceKey(1), reason: EndCause::InTheWay }]);
    assert_eq!(
        card.feed(&Event::Gone { instance: InstanceKey(1) }),
        [Action::Placed { instance: InstanceKey(3), card: CardIndex(0) }]
    );
}

#[test]
fn while_the_host_is_short_the_longest_waiting_of_all_cards_is_first() {
    let mut node = Table::with(Settings { host_budget: 30 * GIB, quantum: 100 * SECOND, ..settings(&[10, 10]) });
    for instance in 1..=8 {
        node.now += 10 * SECOND;
        if let [Action::Yield { instance: out }] = node.place(InstanceKey(instance), 5)[..] {
            leave(&mut node, out, 5, 5);
        }
        node.ready(InstanceKey(instance), 5);
    }
    // 5 and 7 are on the first card, 6 and 8 on the second; 10 GiB of each are in the host, 30 may be.
    for instance in 5..=8 {
        node.busy(InstanceKey(instance));
    }
    for instance in [2, 4, 1, 3] {
        node.now += SECOND;
        assert_eq!(node.want(InstanceKey(instance)), [], "all turns are young");
    }
    assert_eq!(
        node.at(300 * SECOND),
        [Action::Yield { instance: InstanceKey(6) }, Action::Yield { instance: InstanceKey(8) }]
    );
}

#[test]
fn room_that_comes_back_bit_by_bit_goes_to_the_first_decided() {
    let mut card = idle(&[(InstanceKey(1), 5, 3), (InstanceKey(2), 5, 4)]);
    card.now = 10 * SECOND;
    assert_eq!(card.place(InstanceKey(9), 5), [Action::Yield { instance: InstanceKey(1) }]);
    card.now += MS;
    assert_eq!(card.place(InstanceKey(5), 5), [Action::Yield { instance: InstanceKey(2) }]);
    let number = only_command(&card.yielded(InstanceKey(2)), InstanceKey(2), evict(5));
    let placed = card.moved(InstanceKey(2), number, usage(5, 0, 0));
    assert_eq!(
        placed,
        [Action::Placed { instance: InstanceKey(9), card: CardIndex(0) }],
        "decided first, though its key is later"
    );
}

#[test]
fn growth_after_a_decision_takes_the_later_decision_back() {
    let mut card = Table::new(&[10]);
    card.place(InstanceKey(1), 9);
    card.ready(InstanceKey(1), 4);
    card.place(InstanceKey(2), 6);
    card.ready(InstanceKey(2), 5);
    card.now = 10 * SECOND;
    assert_eq!(
        card.place(InstanceKey(3), 6),
        [Action::Yield { instance: InstanceKey(1) }, Action::Yield { instance: InstanceKey(2) }]
    );
    let one = only_command(&card.yielded(InstanceKey(1)), InstanceKey(1), evict(4));
    let two = only_command(&card.yielded(InstanceKey(2)), InstanceKey(2), evict(1));
    // Both are wanted while they leave, and fit beside each other as far as is known.
    card.want(InstanceKey(1));
    card.want(InstanceKey(2));
    assert_eq!(card.feed(&Event::Gone { instance: InstanceKey(3) }), []);
    // Both have grown, and each now needs what the other has.
    assert_eq!(card.moved(InstanceKey(1), one, usage(9, 5, 0)), []);
    let two = only_command(&card.moved(InstanceKey(2), two, usage(6, 5, 0)), InstanceKey(2), evict(4));
    let one = only_command(&card.moved(InstanceKey(2), two, usage(6, 1, 0)), InstanceKey(1), Command::Restore);
    let grant = Action::Grant { instance: InstanceKey(1), swap: Duration::ZERO };
    assert_eq!(card.moved(InstanceKey(1), one, usage(9, 9, 0)), [grant]);
    assert_eq!(card.policy.wake_at(), Some(card.now + 100 * MS), "2 waits again");
}
