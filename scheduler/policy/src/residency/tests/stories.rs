//! Whole stories, told with every action and every byte.

use super::*;

/// A card with a budget of 10 GiB; A has 4, B has 5, C has 4. A and B fit, C does not fit beside them.
#[test]
fn three_instances_swap_parts_of_their_memory_in_turn() {
    const A: InstanceKey = InstanceKey(1);
    const B: InstanceKey = InstanceKey(2);
    const C: InstanceKey = InstanceKey(3);
    let mut card = Table::new(&[10]);
    card.run(A, 4);
    card.run(B, 5);
    for (second, who) in [(3, B), (6, A)] {
        card.now = second * SECOND;
        assert_eq!([card.busy(who), card.idle(who)], [[], []], "both fit: no action");
    }

    // C wants to start and lacks 3 GiB. B was used before A: 3 of its 5 GiB go to the host, A stays.
    card.now = 10 * SECOND;
    assert_eq!(card.place(C, 4), [Action::Yield { instance: B }]);
    let actions = card.yielded(B);
    let number = only_command(&actions, B, evict(3));
    card.now += 100 * MS;
    assert_eq!(card.moved(B, number, usage(5, 2, 0)), [Action::Placed { instance: C, card: CardIndex(0) }]);
    assert_eq!(card.ready(C, 4), []);
    assert_eq!(resident(&card), [(A, 4), (B, 2), (C, 4)]);

    // B is asked for. A was used before C: 3 of its 4 GiB go, 3 GiB of B come back.
    card.now = 20 * SECOND;
    assert_eq!(card.want(B), [Action::Yield { instance: A }]);
    let number = only_command(&card.yielded(A), A, evict(3));
    card.now += 100 * MS;
    let number = only_command(&card.moved(A, number, usage(4, 1, 0)), B, Command::Restore);
    card.now += 150 * MS;
    let grant = Action::Grant { instance: B, swap: 250 * MS };
    assert_eq!(card.moved(B, number, usage(5, 5, 0)), [grant]);
    assert_eq!(resident(&card), [(A, 1), (B, 5), (C, 4)]);
    card.busy(B);
    card.idle(B);

    // A is asked for. C was used before B: 3 of its 4 GiB go, and A is back.
    card.now = 30 * SECOND;
    assert_eq!(card.want(A), [Action::Yield { instance: C }]);
    let number = only_command(&card.yielded(C), C, evict(3));
    let number = only_command(&card.moved(C, number, usage(4, 1, 0)), A, Command::Restore);
    let grant = Action::Grant { instance: A, swap: Duration::ZERO };
    assert_eq!(card.moved(A, number, usage(4, 4, 0)), [grant]);
    assert_eq!(resident(&card), [(A, 4), (B, 5), (C, 1)]);
    assert_eq!(card.policy.host_committed(), 6 * GIB, "3 GiB do not fit, and 3 more while two change places");
    assert_eq!(card.policy.wake_at(), None);
}

/// The scheduler is replaced while C's 3 GiB are in the host: nothing is moved for that, in whatever order the three
/// say what they have; the next request moves what it needs.
#[test]
fn a_new_scheduler_moves_nothing_before_the_next_request() {
    let has = [(1, 4, 4), (2, 5, 5), (3, 4, 1)];
    for state in 0..has.len() {
        let mut card = Table::new(&[10]);
        let questions: Vec<_> = has
            .iter()
            .map(|(instance, gib, _)| {
                let (instance, limit, mode) = (*instance, gib * GIB, GpuMode::Unified);
                let adopted = Event::Adopted {
                    instance: InstanceKey(instance),
                    card: Some(CardIndex(0)),
                    limit,
                    mode,
                    ready: true,
                };
                only_command(&card.feed(&adopted), InstanceKey(instance), Command::Report)
            })
            .collect();
        for step in 0..has.len() {
            let next = (state + step) % has.len();
            let (instance, gib, resident) = has[next];
            assert_eq!(card.moved(InstanceKey(instance), questions[next], usage(gib, resident, 0)), []);
        }
        assert_eq!(resident(&card), [(InstanceKey(1), 4), (InstanceKey(2), 5), (InstanceKey(3), 1)]);
        let number = only_command(&card.want(InstanceKey(3)), InstanceKey(1), evict(3));
        let number =
            only_command(&card.moved(InstanceKey(1), number, usage(4, 1, 0)), InstanceKey(3), Command::Restore);
        let grant = Action::Grant { instance: InstanceKey(3), swap: Duration::ZERO };
        assert_eq!(card.moved(InstanceKey(3), number, usage(4, 4, 0)), [grant]);
    }
}

/// GiB on the card, in the order of the keys.
fn resident(card: &Table) -> Vec<(InstanceKey, u64)> {
    let cards = card.policy.cards();
    let mut all: Vec<_> = cards[0].instances.iter().map(|one| (one.instance, one.resident / GIB)).collect();
    all.sort_unstable();
    all
}

/// Two models that fill the card one by one, both always asked for: turns of a quantum, not one request each.
#[test]
fn two_that_do_not_fit_together_take_turns_of_a_quantum() {
    let mut world = world::World::new(settings(&[10]), 10.0 * GIB as f64, world::Faults::default(), 0);
    for _ in 0..2 {
        world.model(10 * GIB, 10 * GIB, GpuMode::Unified);
    }
    for request in 0..200 {
        for model in 0..2 {
            world.request(request * MS, model, 50 * MS);
        }
    }
    world.run();
    let grants = world.log.iter().filter(|(_, action)| matches!(action, Action::Grant { .. })).count();
    // 200 requests of 50 ms are ten seconds of work each; a turn is 2 s, and the first ones follow the starts.
    assert_eq!((world.waits.len(), grants), (400, 8));
    assert!(world.longest_want <= 6 * SECOND, "an exchange of 2 s, a start, a turn of 2 s: {:?}", world.longest_want);
}
