//! Which card, and every reason for none.

use super::*;

fn refused(actions: &[Action]) -> Refusal {
    match actions {
        [Action::Refused { reason, .. }] => *reason,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn the_card_with_most_left_to_commit_is_chosen_then_the_emptiest() {
    let mut node = Table::new(&[10, 20, 20]);
    let mut placed = Vec::new();
    for instance in 1..=4 {
        match node.place(InstanceKey(instance), 8)[..] {
            [Action::Placed { card, .. }] => placed.push(card),
            ref other => panic!("{other:?}"),
        }
    }
    assert_eq!(
        placed,
        [1, 2, 1, 2].map(CardIndex),
        "80 left on either large card, then 72, then 64; 40 on the small one"
    );
}

#[test]
fn every_refusal_says_what_is_missing() {
    assert_eq!(refused(&Table::new(&[]).place(InstanceKey(1), 1)), Refusal::NoCard);
    let mut node = Table::new(&[10, 12]);
    assert_eq!(refused(&node.place(InstanceKey(1), 13)), Refusal::TooBig { budget: 12 * GIB });
    for card in [0, 1] {
        node.feed(&Event::CardLost { card: CardIndex(card) });
    }
    assert_eq!(refused(&node.place(InstanceKey(1), 1)), Refusal::CardLost);

    let mut node = Table::new(&[10]);
    node.place_device(InstanceKey(1), 4);
    assert_eq!(refused(&node.place(InstanceKey(2), 7)), Refusal::Pinned { free: 6 * GIB });
    node.place(InstanceKey(2), 5);
    assert_eq!(
        refused(&node.place_device(InstanceKey(3), 2)),
        Refusal::Pinned { free: GIB },
        "or 2 could never run again"
    );

    let mut node = Table::new(&[10]);
    for instance in 1..=4 {
        node.place(InstanceKey(instance), 9);
    }
    assert_eq!(refused(&node.place(InstanceKey(5), 5)), Refusal::Committed { free: 4 * GIB });
    node.feed(&Event::Gone { instance: InstanceKey(4) });
    assert_eq!(node.place(InstanceKey(5), 5), [], "it waits for the starts of others");
}

#[test]
fn the_host_has_to_hold_what_does_not_fit_and_what_changes_places() {
    let mut node = Table::with(Settings { host_budget: 12 * GIB, ..settings(&[10, 10]) });
    node.run(InstanceKey(1), 8);
    assert_eq!(node.place(InstanceKey(2), 8), [Action::Placed { instance: InstanceKey(2), card: CardIndex(1) }]);
    assert_eq!(node.policy.host_committed(), 0);
    node.ready(InstanceKey(2), 8);
    // 16 of 10 on the first card: 6 do not fit, 6 change places. Nothing is left for the second card.
    node.place(InstanceKey(3), 8);
    assert_eq!(node.policy.host_committed(), 12 * GIB);
    assert_eq!(refused(&node.place(InstanceKey(4), 3)), Refusal::HostBudget { free: 0 });
    assert_eq!(
        node.place(InstanceKey(4), 2),
        [Action::Placed { instance: InstanceKey(4), card: CardIndex(1) }],
        "this one still fits on the card"
    );
}

#[test]
fn evicted_memory_counts_in_the_host_after_its_cause_is_gone() {
    let mut node = Table::new(&[10]);
    node.run(InstanceKey(1), 10);
    node.now = 10 * SECOND;
    node.place(InstanceKey(2), 10);
    let number = only_command(&node.yielded(InstanceKey(1)), InstanceKey(1), evict(10));
    node.moved(InstanceKey(1), number, usage(10, 0, 0));
    node.feed(&Event::Gone { instance: InstanceKey(2) });
    assert_eq!(node.policy.host_committed(), 10 * GIB, "nobody brought it back");
}

#[test]
fn a_start_on_a_lost_card_moves_and_the_running_end() {
    let mut node = Table::new(&[10, 8]);
    node.run(InstanceKey(1), 9);
    assert_eq!(node.place(InstanceKey(2), 3), [Action::Placed { instance: InstanceKey(2), card: CardIndex(1) }]);
    node.busy(InstanceKey(1));
    assert_eq!(node.place(InstanceKey(3), 4), [], "31 left there and 29 here: it waits for 1");
    let actions = node.feed(&Event::CardLost { card: CardIndex(0) });
    let ended = Action::End { instance: InstanceKey(1), reason: EndCause::CardLost };
    assert_eq!(actions, [ended, Action::Placed { instance: InstanceKey(3), card: CardIndex(1) }]);
    assert_eq!(refused(&node.place(InstanceKey(4), 9)), Refusal::TooBig { budget: 8 * GIB });
    assert!(node.policy.cards()[0].lost);
    assert_eq!(node.feed(&Event::CardLost { card: CardIndex(0) }), [], "an end is said once");
}

#[test]
fn adopted_instances_are_taken_as_they_are() {
    let mut node = Table::new(&[10]);
    let adopted =
        |instance, card, gib, ready| Event::Adopted { instance, card, limit: gib * GIB, mode: GpuMode::Unified, ready };
    let ended = |instance, reason| [Action::End { instance, reason }];
    assert_eq!(node.feed(&adopted(InstanceKey(1), None, 4, true)), ended(InstanceKey(1), EndCause::CardLost));
    assert_eq!(
        node.feed(&adopted(InstanceKey(2), Some(CardIndex(0)), 11, true)),
        ended(InstanceKey(2), EndCause::TooBig { budget: 10 * GIB })
    );
    node.feed(&Event::Gone { instance: InstanceKey(2) });
    let requested_at = node.feed(&adopted(InstanceKey(3), Some(CardIndex(0)), 8, true));
    let number = only_command(&requested_at, InstanceKey(3), Command::Report);
    assert_eq!(node.want(InstanceKey(3)), [], "what it has is not known yet");
    let back = node.moved(InstanceKey(3), number, usage(6, 2, 0));
    let number = only_command(&back, InstanceKey(3), Command::Restore);
    let grant = Action::Grant { instance: InstanceKey(3), swap: Duration::ZERO };
    assert_eq!(node.moved(InstanceKey(3), number, usage(6, 6, 0)), [grant]);
    // An instance that is still starting keeps all of its limit.
    assert_eq!(node.feed(&adopted(InstanceKey(4), Some(CardIndex(0)), 4, false)), []);
    assert_eq!(node.place(InstanceKey(5), 1), [], "6 and 4 are taken");
}
