//! Nodes as tables. Generated ones are in [`generated`], who goes for whom in [`room`].

mod displacement;
mod generated;

use super::*;
use crate::Generation;

const MIB: u64 = 1 << 20;

fn memory(mib: u64) -> Amounts {
    Amounts { memory: mib * MIB, millicpus: 1000, processes: 10 }
}

fn budget(mib: u64) -> Amounts {
    Amounts { memory: mib * MIB, millicpus: u64::MAX, processes: u64::MAX }
}

/// Decisions at once, and those of pending requests at the end of their wait.
fn ask_at(ledger: &mut Ledger, second: u64, reservation: ReservationId, model: &str, mib: u64) -> Vec<Action> {
    let now = Duration::from_secs(second);
    let need = memory(mib);
    plain(ledger.step(&Event::Request {
        reservation,
        model: model.into(),
        need,
        zygote: None,
        min: 0,
        reason: StartReason::Load,
        now,
    }))
}

/// Refusals without what is said of those that are idle.
fn plain(actions: Vec<Action>) -> Vec<Action> {
    let plain = |action| match action {
        Action::Refuse { reservation, refusal: Refusal::Full(Shortage { resource, free, .. }) } => {
            refused(reservation, resource, free)
        }
        other => other,
    };
    actions.into_iter().map(plain).collect()
}

fn refused(reservation: ReservationId, resource: Resource, free: u64) -> Action {
    let shortage = Shortage { resource, free, idle: 0, kept: 0, recent: 0, recreate_fits: false };
    Action::Refuse { reservation, refusal: Refusal::Full(shortage) }
}

fn goes(reservation: ReservationId, by: &str, purpose: Purpose) -> Action {
    Action::Displace { reservation, by: by.into(), purpose }
}

/// When those of the tables are idle for long.
const LATE: u64 = 60;

/// A request that may be pending waits in vain.
fn request(ledger: &mut Ledger, reservation: ReservationId, model: &str, mib: u64) -> Vec<Action> {
    let said = ask_at(ledger, LATE, reservation, model, mib);
    if !ledger.pending.contains_key(&reservation) {
        return said;
    }
    assert_eq!(said, []);
    plain(ledger.step(&Event::Retry(Duration::from_secs(LATE) + MAX_WAIT)))
}

/// Idle since this second.
fn idle(ledger: &mut Ledger, reservation: ReservationId, second: u64) {
    let idle_since = Some(Duration::from_secs(second));
    assert_eq!(ledger.step(&Event::Serving { reservation, idle_since }), []);
}

fn gone(ledger: &mut Ledger, second: u64, reservation: ReservationId) -> Vec<Action> {
    ledger.step(&Event::Gone { reservation, now: Duration::from_secs(second) })
}

fn busy(ledger: &mut Ledger, reservation: ReservationId) {
    assert_eq!(ledger.step(&Event::Serving { reservation, idle_since: None }), []);
}

/// Instances that have their seats: of this model, so large, idle since then or busy.
fn node(mib: u64, reservations: &[(&str, u64, Option<u64>)]) -> Ledger {
    let mut ledger = Ledger::new(budget(mib));
    for (reservation, (model, mib, since)) in (0..).zip(reservations) {
        assert_eq!(
            request(&mut ledger, ReservationId(reservation), model, *mib),
            [Action::Grant(ReservationId(reservation))]
        );
        match since {
            Some(since) => idle(&mut ledger, ReservationId(reservation), *since),
            None => busy(&mut ledger, ReservationId(reservation)),
        }
    }
    ledger
}

fn full(reservation: ReservationId, mib: u64) -> Vec<Action> {
    vec![refused(reservation, Resource::Memory, mib * MIB)]
}

#[test]
fn reservations_fit_to_the_last_byte() {
    let mut ledger = Ledger::new(budget(100));
    assert_eq!(request(&mut ledger, ReservationId(0), "a", 60), [Action::Grant(ReservationId(0))]);
    assert_eq!(request(&mut ledger, ReservationId(1), "b", 41), full(ReservationId(1), 40));
    assert_eq!(request(&mut ledger, ReservationId(2), "b", 40), [Action::Grant(ReservationId(2))]);
    assert_eq!(request(&mut ledger, ReservationId(3), "c", 1), full(ReservationId(3), 0));
    let view = ledger.view();
    assert_eq!((view.committed.memory, view.reservations, view.waiting), (100 * MIB, 2, 0));
    assert_eq!(gone(&mut ledger, 0, ReservationId(2)), []);
    assert_eq!(request(&mut ledger, ReservationId(4), "c", 1), [Action::Grant(ReservationId(4))]);
}

#[test]
fn each_resource_counts_and_what_never_fits_is_said_so() {
    let budget = Amounts { memory: 100, millicpus: 4000, processes: 50 };
    for (resource, need) in [
        (Resource::Memory, Amounts { memory: 60, millicpus: 1, processes: 1 }),
        (Resource::Cpus, Amounts { memory: 1, millicpus: 2500, processes: 1 }),
        (Resource::Processes, Amounts { memory: 1, millicpus: 1, processes: 30 }),
    ] {
        let mut ledger = Ledger::new(budget);
        let now = Duration::ZERO;
        let asked = |reservation, need| Event::Request {
            reservation,
            model: "a".into(),
            need,
            zygote: None,
            min: 0,
            reason: StartReason::Load,
            now,
        };
        let mut request = |reservation, need| plain(ledger.step(&asked(reservation, need)));
        assert_eq!(request(ReservationId(0), need), [Action::Grant(ReservationId(0))]);
        busy(&mut ledger, ReservationId(0));
        let mut request = |reservation, need| plain(ledger.step(&asked(reservation, need)));
        let free = budget.of(resource) - need.of(resource);
        assert_eq!(request(ReservationId(1), need), [refused(ReservationId(1), resource, free)]);
        let twice = need.plus(need);
        let refusal = Refusal::TooBig { resource, budget: budget.of(resource) };
        assert_eq!(request(ReservationId(2), twice), [Action::Refuse { reservation: ReservationId(2), refusal }]);
    }
}

#[test]
fn a_model_keeps_its_min() {
    let mut ledger = node(100, &[("a", 50, Some(1)), ("a", 50, Some(2))]);
    let min = |ledger: &mut Ledger, min| assert_eq!(ledger.step(&Event::MinInstances { model: "a".into(), min }), []);
    min(&mut ledger, 2);
    assert_eq!(request(&mut ledger, ReservationId(9), "b", 50), full(ReservationId(9), 0));
    min(&mut ledger, 1);
    assert_eq!(request(&mut ledger, ReservationId(10), "b", 60), full(ReservationId(10), 0));
    assert_eq!(request(&mut ledger, ReservationId(11), "b", 50), [goes(ReservationId(0), "b", Purpose::First)]);
    assert_eq!(
        request(&mut ledger, ReservationId(12), "b", 50),
        full(ReservationId(12), 0),
        "the other is the only one that stays"
    );
    gone(&mut ledger, 0, ReservationId(0));
    gone(&mut ledger, 0, ReservationId(1));
    assert!(ledger.mins.is_empty(), "a model without instances is forgotten");
}

#[test]
fn a_starting_instance_is_not_displaced() {
    let mut ledger = Ledger::new(budget(100));
    request(&mut ledger, ReservationId(0), "a", 100);
    assert_eq!(request(&mut ledger, ReservationId(1), "b", 100), full(ReservationId(1), 0));
    idle(&mut ledger, ReservationId(0), 1);
    assert_eq!(request(&mut ledger, ReservationId(2), "b", 100), [goes(ReservationId(0), "b", Purpose::First)]);
    idle(&mut ledger, ReservationId(0), 2);
    assert_eq!(
        request(&mut ledger, ReservationId(3), "c", 100),
        full(ReservationId(3), 0),
        "what was freed for another is not free"
    );
    assert_eq!(gone(&mut ledger, 0, ReservationId(0)), [Action::Grant(ReservationId(2))]);
}

#[test]
fn room_that_comes_anyway_is_waited_for() {
    let mut ledger = node(100, &[("a", 50, Some(1)), ("b", 50, None)]);
    assert_eq!(ledger.step(&Event::Leaving(ReservationId(1))), []);
    assert_eq!(request(&mut ledger, ReservationId(2), "c", 50), [], "nobody is displaced");
    assert_eq!(ledger.view().waiting, 1);
    assert_eq!(gone(&mut ledger, 0, ReservationId(1)), [Action::Grant(ReservationId(2))]);
}

#[test]
fn a_small_one_does_not_wait_behind_a_large_one_that_has_to() {
    let mut ledger = node(100, &[("a", 50, Some(1)), ("b", 20, None)]);
    assert_eq!(request(&mut ledger, ReservationId(2), "c", 60), [goes(ReservationId(0), "c", Purpose::First)]);
    assert_eq!(
        request(&mut ledger, ReservationId(3), "d", 20),
        [Action::Grant(ReservationId(3))],
        "there is room for both in the end"
    );
    assert_eq!(request(&mut ledger, ReservationId(4), "d", 1), full(ReservationId(4), 0));
    assert_eq!(gone(&mut ledger, 0, ReservationId(0)), [Action::Grant(ReservationId(2))]);
}

#[test]
fn a_withdrawn_reservation_leaves_its_room_to_the_next() {
    let mut ledger = node(100, &[("a", 100, Some(1))]);
    assert_eq!(request(&mut ledger, ReservationId(1), "b", 60), [goes(ReservationId(0), "b", Purpose::First)]);
    assert_eq!(request(&mut ledger, ReservationId(2), "c", 50), full(ReservationId(2), 40));
    assert_eq!(gone(&mut ledger, 0, ReservationId(1)), []);
    assert_eq!(request(&mut ledger, ReservationId(3), "c", 50), []);
    assert_eq!(gone(&mut ledger, 0, ReservationId(0)), [Action::Grant(ReservationId(3))]);
}

#[test]
fn adopted_instances_are_reserved_even_beyond_the_budget() {
    let mut ledger = Ledger::new(budget(100));
    for (reservation, model) in [(0, "a"), (1, "b")] {
        let min = u32::from(model == "b");
        let adopted = Event::Adopted {
            reservation: ReservationId(reservation),
            model: model.into(),
            need: memory(80),
            zygote: None,
            min,
        };
        assert_eq!(ledger.step(&adopted), []);
        idle(&mut ledger, ReservationId(reservation), reservation);
    }
    assert_eq!(
        request(&mut ledger, ReservationId(2), "c", 21),
        full(ReservationId(2), 0),
        "even without the one that could go"
    );
    assert_eq!(request(&mut ledger, ReservationId(3), "c", 20), [goes(ReservationId(0), "c", Purpose::First)]);
    assert_eq!(gone(&mut ledger, 0, ReservationId(0)), [Action::Grant(ReservationId(3))]);
}

#[test]
fn an_adopted_instance_takes_room_promised_to_a_pending_reservation() {
    let mut ledger = node(100, &[("a", 60, Some(1)), ("b", 20, None)]);
    assert_eq!(request(&mut ledger, ReservationId(2), "c", 30), [goes(ReservationId(0), "c", Purpose::First)]);
    assert_eq!(request(&mut ledger, ReservationId(3), "d", 40), []);
    let adopted =
        Event::Adopted { reservation: ReservationId(4), model: "e".into(), need: memory(40), zygote: None, min: 0 };
    assert_eq!(plain(ledger.step(&adopted)), full(ReservationId(3), 10));
    assert_eq!(gone(&mut ledger, 0, ReservationId(0)), [Action::Grant(ReservationId(2))]);
}

#[test]
fn a_zygote_counts_once_and_on_while_it_waits_for_the_next_instance() {
    let mut ledger = Ledger::new(budget(100));
    let request = |ledger: &mut Ledger, reservation, generation| {
        let zygote = Some(Zygote { generation: Generation(generation), need: memory(30) });
        ledger.step(&Event::Request {
            reservation,
            model: "a".into(),
            need: memory(20),
            zygote,
            min: 0,
            reason: StartReason::Load,
            now: Duration::ZERO,
        })
    };
    for reservation in [0, 1, 2] {
        assert_eq!(request(&mut ledger, ReservationId(reservation), 1), [Action::Grant(ReservationId(reservation))]);
        idle(&mut ledger, ReservationId(reservation), reservation);
    }
    assert_eq!(ledger.view().committed, Amounts { memory: 90 * MIB, millicpus: 4000, processes: 40 });
    assert_eq!(
        request(&mut ledger, ReservationId(3), 2),
        full(ReservationId(3), 10),
        "another generation has another zygote"
    );
    assert_eq!(
        ask_at(&mut ledger, 0, ReservationId(4), "b", 50),
        [0, 1].map(|reservation| goes(ReservationId(reservation), "b", Purpose::First))
    );
    gone(&mut ledger, 0, ReservationId(0));
    assert_eq!(gone(&mut ledger, 0, ReservationId(1)), [Action::Grant(ReservationId(4))]);
    assert_eq!(gone(&mut ledger, 9, ReservationId(2)), []);
    assert_eq!(ledger.view().committed, memory(50).plus(memory(30)), "it waits");
    assert_eq!(request(&mut ledger, ReservationId(5), 1), [Action::Grant(ReservationId(5))]);
    assert_eq!(ledger.view().committed, Amounts { memory: 100 * MIB, millicpus: 3000, processes: 30 }, "and is used");
    gone(&mut ledger, 10, ReservationId(5));
    let last = Duration::from_secs(10) + ZYGOTE_LINGER;
    ledger.step(&Event::Retry(last - Duration::from_nanos(1)));
    assert_eq!(ledger.view().committed, memory(50).plus(memory(30)));
    ledger.step(&Event::Retry(last));
    assert_eq!(ledger.view().committed, memory(50), "by itself it does not wait for longer");
}

#[test]
fn zygotes_that_wait_make_room_at_once() {
    let mut ledger = Ledger::new(budget(100));
    let request = |ledger: &mut Ledger, reservation, model: &str, second| {
        let (zygote, now) = (Some(Zygote { generation: Generation(1), need: memory(20) }), Duration::from_secs(second));
        ledger.step(&Event::Request {
            reservation,
            model: model.into(),
            need: memory(10),
            zygote,
            min: 0,
            reason: StartReason::Load,
            now,
        })
    };
    for (reservation, model) in [(0, "a"), (1, "b"), (2, "c")] {
        assert_eq!(
            request(&mut ledger, ReservationId(reservation), model, 0),
            [Action::Grant(ReservationId(reservation))]
        );
    }
    for (reservation, second) in [(1, 1), (0, 2)] {
        assert_eq!(gone(&mut ledger, second, ReservationId(reservation)), []);
    }
    assert_eq!(ledger.view().committed.memory, 70 * MIB);
    assert_eq!(
        ask_at(&mut ledger, 3, ReservationId(3), "d", 30),
        [Action::Grant(ReservationId(3))],
        "as long as there is room for all"
    );
    let ended = [Action::Grant(ReservationId(4)), Action::EndZygotes("b".into())];
    assert_eq!(ask_at(&mut ledger, 4, ReservationId(4), "e", 5), ended, "the one that waits longest");
    assert_eq!(
        request(&mut ledger, ReservationId(5), "a", 5),
        [Action::Grant(ReservationId(5))],
        "what waits for it is no room that it needs"
    );
    assert_eq!(ledger.view().committed.memory, 95 * MIB);
}

#[test]
fn the_first_of_a_model_gets_the_room_of_who_becomes_idle() {
    let mut ledger = node(100, &[("a", 50, None), ("b", 50, None)]);
    let at = |second| Event::Retry(Duration::from_secs(second));
    assert_eq!(
        (ask_at(&mut ledger, 1, ReservationId(2), "c", 50), ask_at(&mut ledger, 2, ReservationId(3), "d", 50)),
        (vec![], vec![])
    );
    assert_eq!((ledger.view().waiting, ledger.view().committed), (2, memory(50).plus(memory(50))));
    assert_eq!(ledger.step(&at(3)), []);
    idle(&mut ledger, ReservationId(1), 3);
    assert_eq!(
        ask_at(&mut ledger, 3, ReservationId(4), "e", 50),
        [goes(ReservationId(1), "c", Purpose::First)],
        "the one that asked first, at any retry"
    );
    assert_eq!(gone(&mut ledger, 0, ReservationId(1)), [Action::Grant(ReservationId(2))]);
    assert_eq!(gone(&mut ledger, 0, ReservationId(0)), []);
    assert_eq!(ledger.step(&at(4)), [Action::Grant(ReservationId(3))], "room that became free by itself");
    assert_eq!(ledger.step(&at(12)), []);
    assert_eq!(plain(ledger.step(&at(13))), full(ReservationId(4), 0), "ten seconds after it asked");
    assert!(!ledger.has_pending());
}

#[test]
fn a_reservation_that_cannot_be_met_does_not_wait() {
    let mut ledger = node(100, &[("a", 50, None), ("b", 50, None)]);
    ledger.step(&Event::MinInstances { model: "b".into(), min: 1 });
    assert_eq!(ask_at(&mut ledger, 0, ReservationId(2), "c", 60), full(ReservationId(2), 0), "b keeps its room");
    assert_eq!(ask_at(&mut ledger, 0, ReservationId(3), "a", 10), full(ReservationId(3), 0), "it has one that serves");
    assert_eq!(ask_at(&mut ledger, 0, ReservationId(4), "c", 50), []);
    ledger.step(&Event::MinInstances { model: "a".into(), min: 1 });
    assert_eq!(plain(ledger.step(&Event::Retry(Duration::ZERO))), full(ReservationId(4), 0), "not any more");
    ledger.step(&Event::MinInstances { model: "a".into(), min: 0 });
    assert_eq!(ask_at(&mut ledger, 0, ReservationId(5), "c", 50), []);
    assert_eq!(gone(&mut ledger, 0, ReservationId(5)), []);
    assert!(!ledger.has_pending(), "it does not want to start any more");
}
