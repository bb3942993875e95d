//! Results of commands, and instances that report falsely.

use super::*;

/// 1 was told to give up 6 of its 8 GiB, for the start of 2; the number of that command.
fn evicting() -> (Table, u64) {
    let mut card = Table::new(&[10]);
    card.run(InstanceKey(1), 8);
    card.now = 10 * SECOND;
    assert_eq!(card.place(InstanceKey(2), 8), [Action::Yield { instance: InstanceKey(1) }]);
    let number = only_command(&card.yielded(InstanceKey(1)), InstanceKey(1), evict(6));
    (card, number)
}

fn ended(reason: EndCause) -> [Action; 1] {
    [Action::End { instance: InstanceKey(1), reason }]
}

#[test]
fn a_command_without_an_answer_ends_the_instance() {
    let (mut card, number) = evicting();
    assert_eq!(card.policy.wake_at(), Some(20 * SECOND));
    assert_eq!(card.at(20 * SECOND - MS), []);
    assert_eq!(card.at(20 * SECOND), ended(EndCause::Silent));
    assert_eq!(card.moved(InstanceKey(1), number, usage(8, 2, 0)), [], "too late");
    assert_eq!(card.at(30 * SECOND), [], "said once; its memory counts until it is gone");
    assert_eq!(
        card.feed(&Event::Gone { instance: InstanceKey(1) }),
        [Action::Placed { instance: InstanceKey(2), card: CardIndex(0) }]
    );
}

#[test]
fn an_eviction_is_repeated_once() {
    let (mut card, number) = evicting();
    let again = only_command(&card.moved(InstanceKey(1), number, usage(8, 4, 0)), InstanceKey(1), evict(2));
    let failed = Event::Reported {
        instance: InstanceKey(1),
        report: Report { number: again, usage: usage(8, 4, 0), error: 700, unanswered: 0 },
    };
    assert_eq!(card.feed(&failed), ended(EndCause::DidNotLeave { error: 700 }));

    let (mut card, number) = evicting();
    let unanswered = Event::Reported {
        instance: InstanceKey(1),
        report: Report { number, usage: usage(8, 4, 0), error: 0, unanswered: 1 },
    };
    let again = only_command(&card.feed(&unanswered), InstanceKey(1), evict(2));
    assert_eq!(
        card.moved(InstanceKey(1), again, usage(8, 2, 0)),
        [Action::Placed { instance: InstanceKey(2), card: CardIndex(0) }]
    );
}

#[test]
fn answers_to_other_commands_and_from_strangers_are_ignored() {
    let (mut card, number) = evicting();
    assert_eq!(card.moved(InstanceKey(1), number + 1, usage(8, 0, 0)), []);
    assert_eq!(card.moved(InstanceKey(7), number, usage(8, 0, 0)), []);
    assert_eq!(
        card.feed(&Event::UsageSampled { instance: InstanceKey(1), usage: usage(8, 0, 0) }),
        [],
        "while memory is on its way"
    );
    assert_eq!(
        card.moved(InstanceKey(1), number, usage(8, 2, 0)),
        [Action::Placed { instance: InstanceKey(2), card: CardIndex(0) }]
    );
    assert_eq!(card.moved(InstanceKey(1), number, usage(8, 8, 0)), [], "answered already");
}

#[test]
fn usage_beyond_the_instances_limit_is_clamped() {
    let mut card = Table::new(&[10]);
    card.place(InstanceKey(1), 8);
    card.ready(InstanceKey(1), 3);
    for wild in [usage(9000, 9000, 9000), usage(9000, 9000, 0), Usage { resident: u64::MAX, ..usage(8, 0, 0) }] {
        card.feed(&Event::UsageSampled { instance: InstanceKey(1), usage: wild });
        let view = &card.policy.cards()[0];
        assert_eq!((view.resident, view.instances[0].allocated), (8 * GIB, 8 * GIB));
    }
}

#[test]
fn a_restore_that_failed_is_no_obstacle() {
    let (mut card, number) = evicting();
    card.moved(InstanceKey(1), number, usage(8, 2, 0));
    card.feed(&Event::Gone { instance: InstanceKey(2) });
    let number = only_command(&card.want(InstanceKey(1)), InstanceKey(1), Command::Restore);
    let failed = Event::Reported {
        instance: InstanceKey(1),
        report: Report { number, usage: usage(8, 3, 0), error: 2, unanswered: 0 },
    };
    let grant = Action::Grant { instance: InstanceKey(1), swap: Duration::ZERO };
    assert_eq!(card.feed(&failed), [grant], "its pages come when they are touched");
    assert_eq!(card.place(InstanceKey(3), 4), [], "all of it counts");
}

#[test]
fn memory_needed_briefly_by_setup_does_not_count_later() {
    let mut card = Table::new(&[10]);
    card.place(InstanceKey(1), 9);
    card.feed(&Event::UsageSampled { instance: InstanceKey(1), usage: usage(9, 9, 0) });
    card.ready(InstanceKey(1), 4);
    assert_eq!(card.place(InstanceKey(2), 6), [Action::Placed { instance: InstanceKey(2), card: CardIndex(0) }]);
    // The peak since it was ready counts, or the next request would find no room.
    card.ready(InstanceKey(2), 1);
    card.feed(&Event::UsageSampled { instance: InstanceKey(1), usage: usage(8, 8, 0) });
    card.feed(&Event::UsageSampled { instance: InstanceKey(1), usage: usage(4, 4, 0) });
    card.busy(InstanceKey(1));
    assert_eq!(card.place(InstanceKey(3), 2), [], "8 and 1 are taken");
}

#[test]
fn nvml_does_not_trust_the_shim() {
    let seen = |bytes, processes| Event::Measured { instance: InstanceKey(1), bytes, processes };
    let mut card = Table::new(&[10]);
    card.run(InstanceKey(1), 8);
    let mut look = |after, bytes, processes| {
        card.now += after;
        card.feed(&seen(bytes, processes))
    };
    assert_eq!(look(MS, 8 * GIB + GIB / 2, 1), [], "the limit and a context");
    assert_eq!(look(MS, 9 * GIB, 2), [], "two contexts");
    assert_eq!(look(MS, 9 * GIB, 1), []);
    assert_eq!(look(SECOND, 8 * GIB, 1), [], "once may be an old figure");
    assert_eq!(look(SECOND, 9 * GIB, 1), []);
    assert_eq!(look(MS, 9 * GIB, 1), [], "the driver may need a moment");
    let allowed = 8 * GIB + GIB / 2;
    assert_eq!(look(SECOND, 9 * GIB, 1), ended(EndCause::BeyondLimit { seen: 9 * GIB, allowed }));

    let (mut card, number) = evicting();
    for _ in 0..3 {
        card.now += SECOND;
        assert_eq!(card.feed(&seen(8 * GIB, 1)), [], "it is still leaving");
    }
    card.moved(InstanceKey(1), number, usage(8, 2, 0));
    assert_eq!(card.feed(&seen(8 * GIB, 1)), []);
    card.now += SECOND;
    let allowed = 2 * GIB + GIB / 2;
    assert_eq!(card.feed(&seen(8 * GIB, 1)), ended(EndCause::StillOnCard { seen: 8 * GIB, allowed }));
}

/// Two adopted instances with limits of 8 GiB on a card of 10; the numbers of the questions to them.
fn adopted() -> (Table, [u64; 2]) {
    let mut card = Table::new(&[10]);
    let adopt = |instance| {
        let adopted =
            Event::Adopted { instance, card: Some(CardIndex(0)), limit: 8 * GIB, mode: GpuMode::Unified, ready: true };
        only_command(&card.feed(&adopted), instance, Command::Report)
    };
    let numbers = [1, 2].map(InstanceKey).map(adopt);
    (card, numbers)
}

#[test]
fn nothing_is_evicted_before_every_adopted_instance_has_reported() {
    for (first, second) in [(0, 1), (1, 0)] {
        let keys = [1, 2];
        let (mut card, numbers) = adopted();
        assert_eq!(
            card.moved(InstanceKey(keys[first]), numbers[first], usage(5, 5, 0)),
            [],
            "the other's limit is not what it has"
        );
        assert_eq!(card.want(InstanceKey(keys[first])), [], "it is not sure yet that there is room");
        let grant = Action::Grant { instance: InstanceKey(keys[first]), swap: Duration::ZERO };
        assert_eq!(card.moved(InstanceKey(keys[second]), numbers[second], usage(5, 5, 0)), [grant]);
    }

    // Both together have too much, as after a smaller budget: the excess leaves once it is known.
    let (mut card, numbers) = adopted();
    card.moved(InstanceKey(1), numbers[0], usage(6, 6, 0));
    only_command(&card.moved(InstanceKey(2), numbers[1], usage(6, 6, 0)), InstanceKey(1), evict(2));

    // An instance that does not report stops the others no longer than a command may take.
    let (mut card, numbers) = adopted();
    card.moved(InstanceKey(1), numbers[0], usage(5, 1, 0));
    card.want(InstanceKey(1));
    let unanswered = Action::End { instance: InstanceKey(2), reason: EndCause::Silent };
    assert_eq!(card.at(10 * SECOND), [unanswered]);
    only_command(&card.feed(&Event::Gone { instance: InstanceKey(2) }), InstanceKey(1), Command::Restore);
}

#[test]
fn memory_allocated_during_an_eviction_is_no_disobedience() {
    let (mut card, number) = evicting();
    let again = only_command(&card.moved(InstanceKey(1), number, usage(8, 3, 0)), InstanceKey(1), evict(1));
    assert_eq!(card.moved(InstanceKey(1), again, usage(8, 3, 0)).len(), 1, "this one was");

    let mut card = Table::new(&[10]);
    card.place(InstanceKey(1), 9);
    card.ready(InstanceKey(1), 5);
    card.now = 10 * SECOND;
    card.place(InstanceKey(2), 8);
    let mut number = only_command(&card.yielded(InstanceKey(1)), InstanceKey(1), evict(3));
    for has in [6, 7, 8] {
        number = only_command(&card.moved(InstanceKey(1), number, usage(has, 3, 0)), InstanceKey(1), evict(1));
    }
    assert_eq!(
        card.moved(InstanceKey(1), number, usage(8, 2, 0)),
        [Action::Placed { instance: InstanceKey(2), card: CardIndex(0) }]
    );
}
