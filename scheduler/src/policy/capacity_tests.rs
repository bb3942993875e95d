//! Nodes as tables, and generated ones whose asks and answers are checked against the rules of the header.

use super::*;
use proptest::prelude::*;
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn memory(mib: u64) -> Amounts {
    Amounts { memory: mib * MIB, millicpus: 1000, processes: 10 }
}

fn budget(mib: u64) -> Amounts {
    Amounts { memory: mib * MIB, millicpus: u64::MAX, processes: u64::MAX }
}

fn ask(ledger: &mut Ledger, seat: SeatKey, model: &str, mib: u64) -> Vec<Action> {
    ledger.step(&Event::Ask { seat, model: model.into(), need: memory(mib), zygote: None, min: 0 })
}

/// Idle since this second.
fn idle(ledger: &mut Ledger, seat: SeatKey, second: u64) {
    let idle_since = Some(Duration::from_secs(second));
    assert_eq!(ledger.step(&Event::Serves { seat, idle_since }), []);
}

fn busy(ledger: &mut Ledger, seat: SeatKey) {
    assert_eq!(ledger.step(&Event::Serves { seat, idle_since: None }), []);
}

/// Instances that have their seats: of this model, so large, idle since then or busy.
fn node(mib: u64, seats: &[(&str, u64, Option<u64>)]) -> Ledger {
    let mut ledger = Ledger::new(budget(mib));
    for (seat, (model, mib, since)) in (0..).zip(seats) {
        assert_eq!(ask(&mut ledger, seat, model, *mib), [Action::Grant(seat)]);
        match since {
            Some(since) => idle(&mut ledger, seat, *since),
            None => busy(&mut ledger, seat),
        }
    }
    ledger
}

fn full(seat: SeatKey, mib: u64) -> Vec<Action> {
    vec![Action::Refuse { seat, why: Refusal::Full { resource: Resource::Memory, free: mib * MIB } }]
}

#[test]
fn what_fits_starts_to_the_last_byte() {
    let mut ledger = Ledger::new(budget(100));
    assert_eq!(ask(&mut ledger, 0, "a", 60), [Action::Grant(0)]);
    assert_eq!(ask(&mut ledger, 1, "b", 41), full(1, 40));
    assert_eq!(ask(&mut ledger, 2, "b", 40), [Action::Grant(2)]);
    assert_eq!(ask(&mut ledger, 3, "c", 1), full(3, 0));
    let view = ledger.view();
    assert_eq!((view.committed.memory, view.seats, view.waiting), (100 * MIB, 2, 0));
    assert_eq!(ledger.step(&Event::Gone(2)), []);
    assert_eq!(ask(&mut ledger, 4, "c", 1), [Action::Grant(4)]);
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
        let mut ask = |seat, need| ledger.step(&Event::Ask { seat, model: "a".into(), need, zygote: None, min: 0 });
        assert_eq!(ask(0, need), [Action::Grant(0)]);
        let free = budget.of(resource) - need.of(resource);
        assert_eq!(ask(1, need), [Action::Refuse { seat: 1, why: Refusal::Full { resource, free } }]);
        let twice = need.plus(need);
        let why = Refusal::TooBig { resource, budget: budget.of(resource) };
        assert_eq!(ask(2, twice), [Action::Refuse { seat: 2, why }]);
    }
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
        (&[("a", 50, None), ("b", 50, Some(1))], ("a", 50), None),       // the last one only for a first one
        (&[("a", 50, None), ("b", 25, Some(1)), ("b", 25, Some(2))], ("a", 25), Some(&[1])),
        (&[("a", 50, None), ("b", 25, Some(1)), ("b", 25, Some(2))], ("a", 50), None),
        (&[("a", 50, None), ("b", 25, Some(1)), ("b", 25, Some(2))], ("c", 50), Some(&[1, 2])),
        (&[("a", 50, None), ("b", 25, None), ("b", 25, Some(2))], ("a", 25), Some(&[2])), // b keeps the busy one
    ];
    for (seats, (model, mib), expected) in cases {
        let mut ledger = node(100, seats);
        let actions = ask(&mut ledger, 99, model, *mib);
        match expected {
            None => assert!(matches!(actions[..], [Action::Refuse { seat: 99, .. }]), "{seats:?} {model} {actions:?}"),
            Some(gone) => {
                let displaced: Vec<_> = gone.iter().map(|seat| Action::Displace(*seat)).collect();
                assert_eq!(actions, displaced, "{seats:?} {model}");
                let granted: Vec<_> = gone.iter().flat_map(|seat| ledger.step(&Event::Gone(*seat))).collect();
                assert_eq!(granted, [Action::Grant(99)], "{seats:?} {model}");
            }
        }
    }
}

#[test]
fn a_model_keeps_its_min() {
    let mut ledger = node(100, &[("a", 50, Some(1)), ("a", 50, Some(2))]);
    let min = |ledger: &mut Ledger, min| assert_eq!(ledger.step(&Event::Min { model: "a".into(), min }), []);
    min(&mut ledger, 2);
    assert_eq!(ask(&mut ledger, 9, "b", 50), full(9, 0));
    min(&mut ledger, 1);
    assert_eq!(ask(&mut ledger, 10, "b", 60), full(10, 0));
    assert_eq!(ask(&mut ledger, 11, "b", 50), [Action::Displace(0)]);
    assert_eq!(ask(&mut ledger, 12, "b", 50), full(12, 0), "the other is the only one that stays");
    ledger.step(&Event::Gone(0));
    ledger.step(&Event::Gone(1));
    assert!(ledger.mins.is_empty(), "a model without instances is forgotten");
}

#[test]
fn one_that_starts_is_left_alone() {
    let mut ledger = Ledger::new(budget(100));
    ask(&mut ledger, 0, "a", 100);
    assert_eq!(ask(&mut ledger, 1, "b", 100), full(1, 0));
    idle(&mut ledger, 0, 1);
    assert_eq!(ask(&mut ledger, 2, "b", 100), [Action::Displace(0)]);
    idle(&mut ledger, 0, 2);
    assert_eq!(ask(&mut ledger, 3, "c", 100), full(3, 0), "what was freed for another is not free");
    assert_eq!(ledger.step(&Event::Gone(0)), [Action::Grant(2)]);
}

#[test]
fn room_that_comes_anyway_is_waited_for() {
    let mut ledger = node(100, &[("a", 50, Some(1)), ("b", 50, None)]);
    assert_eq!(ledger.step(&Event::Leaves(1)), []);
    assert_eq!(ask(&mut ledger, 2, "c", 50), [], "nobody is displaced");
    assert_eq!(ledger.view().waiting, 1);
    assert_eq!(ledger.step(&Event::Gone(1)), [Action::Grant(2)]);
}

#[test]
fn a_small_one_does_not_wait_behind_a_large_one_that_has_to() {
    let mut ledger = node(100, &[("a", 50, Some(1)), ("b", 20, None)]);
    assert_eq!(ask(&mut ledger, 2, "c", 60), [Action::Displace(0)]);
    assert_eq!(ask(&mut ledger, 3, "d", 20), [Action::Grant(3)], "there is room for both in the end");
    assert_eq!(ask(&mut ledger, 4, "d", 1), full(4, 0));
    assert_eq!(ledger.step(&Event::Gone(0)), [Action::Grant(2)]);
}

#[test]
fn who_gives_up_waiting_leaves_its_room_to_the_next() {
    let mut ledger = node(100, &[("a", 100, Some(1))]);
    assert_eq!(ask(&mut ledger, 1, "b", 60), [Action::Displace(0)]);
    assert_eq!(ask(&mut ledger, 2, "c", 50), full(2, 40));
    assert_eq!(ledger.step(&Event::Gone(1)), []);
    assert_eq!(ask(&mut ledger, 3, "c", 50), []);
    assert_eq!(ledger.step(&Event::Gone(0)), [Action::Grant(3)]);
}

#[test]
fn those_of_an_earlier_scheduler_are_there_whatever_the_budget_says() {
    let mut ledger = Ledger::new(budget(100));
    for (seat, model) in [(0, "a"), (1, "b")] {
        let min = u32::from(model == "b");
        let adopted = Event::Adopted { seat, model: model.into(), need: memory(80), zygote: None, min };
        assert_eq!(ledger.step(&adopted), []);
        idle(&mut ledger, seat, seat);
    }
    assert_eq!(ask(&mut ledger, 2, "c", 21), full(2, 0), "even without the one that could go");
    assert_eq!(ask(&mut ledger, 3, "c", 20), [Action::Displace(0)]);
    assert_eq!(ledger.step(&Event::Gone(0)), [Action::Grant(3)]);
}

#[test]
fn what_was_promised_to_one_that_waits_goes_to_one_that_is_there() {
    let mut ledger = node(100, &[("a", 60, Some(1)), ("b", 20, None)]);
    assert_eq!(ask(&mut ledger, 2, "c", 30), [Action::Displace(0)]);
    assert_eq!(ask(&mut ledger, 3, "d", 40), []);
    let adopted = Event::Adopted { seat: 4, model: "e".into(), need: memory(40), zygote: None, min: 0 };
    assert_eq!(ledger.step(&adopted), full(3, 10));
    assert_eq!(ledger.step(&Event::Gone(0)), [Action::Grant(2)]);
}

#[test]
fn a_zygote_counts_once_and_until_the_last_of_its_generation_is_gone() {
    let mut ledger = Ledger::new(budget(100));
    let ask = |ledger: &mut Ledger, seat, generation| {
        let zygote = Some(Zygote { generation: Generation(generation), need: memory(30) });
        ledger.step(&Event::Ask { seat, model: "a".into(), need: memory(20), zygote, min: 0 })
    };
    for seat in [0, 1, 2] {
        assert_eq!(ask(&mut ledger, seat, 1), [Action::Grant(seat)]);
        idle(&mut ledger, seat, seat);
    }
    assert_eq!(ledger.view().committed, Amounts { memory: 90 * MIB, millicpus: 4000, processes: 40 });
    assert_eq!(ask(&mut ledger, 3, 2), full(3, 10), "another generation has another zygote");
    assert_eq!(
        ledger.step(&Event::Ask { seat: 4, model: "b".into(), need: memory(50), zygote: None, min: 0 }),
        [Action::Displace(0), Action::Displace(1),]
    );
    ledger.step(&Event::Gone(0));
    assert_eq!(ledger.step(&Event::Gone(1)), [Action::Grant(4)]);
    ledger.step(&Event::Gone(2));
    assert_eq!(ledger.view().committed, memory(50));
}

#[derive(Debug, Clone)]
enum Step {
    Ask { model: usize, min: u32 },
    Adopt { model: usize },
    Serve { nth: usize, idle: bool },
    Leave(usize),
    Gone(usize),
    Min { model: usize, min: u32 },
}

const fn amounts(memory: u64, millicpus: u64, processes: u64) -> Amounts {
    Amounts { memory, millicpus, processes }
}

/// What an instance takes, and its zygote.
const MODELS: [(&str, Amounts, Option<Zygote>); 4] = [
    ("small", amounts(1, 100, 3), Some(Zygote { generation: Generation(1), need: amounts(3, 0, 2) })),
    ("wide", amounts(2, 2000, 1), None),
    ("large", amounts(7, 500, 2), None),
    ("crowd", amounts(3, 300, 9), Some(Zygote { generation: Generation(1), need: amounts(1, 0, 1) })),
];
const NODE: Amounts = Amounts { memory: 14, millicpus: 4500, processes: 20 };

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let model = || 0..MODELS.len();
    let step = prop_oneof![
        6 => (model(), 0_u32..3).prop_map(|(model, min)| Step::Ask { model, min }),
        1 => model().prop_map(|model| Step::Adopt { model }),
        8 => (0_usize..12, any::<bool>()).prop_map(|(nth, idle)| Step::Serve { nth, idle }),
        1 => (0_usize..12).prop_map(Step::Leave),
        3 => (0_usize..12).prop_map(Step::Gone),
        1 => (model(), 0_u32..3).prop_map(|(model, min)| Step::Min { model, min }),
    ];
    prop::collection::vec(step, 1..200)
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Waits,
    Starts,
    Idle(Moment),
    Busy,
    Leaves,
}

/// What the test knows of the node.
#[derive(Debug, Default)]
struct Reference {
    seats: BTreeMap<SeatKey, (usize, State)>,
    mins: [u32; MODELS.len()],
    adopted: bool,
}

/// Of instances of these models: each its own, and one zygote for all of a model.
fn needs(models: impl Iterator<Item = usize>) -> Amounts {
    let models: Vec<usize> = models.collect();
    let own = models.iter().map(|model| MODELS[*model].1);
    let distinct = (0..MODELS.len()).filter(|model| models.contains(model));
    let shared = distinct.filter_map(|model| MODELS[model].2).map(|zygote| zygote.need);
    own.chain(shared).fold(Amounts::default(), Amounts::plus)
}

impl Reference {
    fn sum(&self, counts: impl Fn(State) -> bool) -> Amounts {
        needs(self.seats.values().filter(|(_, state)| counts(*state)).map(|(model, _)| *model))
    }

    fn serving(&self, model: usize) -> u32 {
        let serves = |state: &State| matches!(state, State::Idle(_) | State::Busy);
        self.seats.values().filter(|(other, state)| *other == model && serves(state)).count() as u32
    }

    /// With one more of this model.
    fn fits(&self, model: Option<usize>) -> bool {
        let stays = self.seats.values().filter(|(_, state)| *state != State::Leaves).map(|(model, _)| *model);
        needs(stays.chain(model)).beyond(&NODE).is_none()
    }

    /// By the rules, one after the other, until it fits or nobody is left.
    fn could_fit(&mut self, model: usize) -> bool {
        let is_first = self.serving(model) == 0;
        let saved = self.seats.clone();
        while !self.fits(Some(model)) {
            let may_go = |(other, state): &(usize, State)| {
                let keeps = self.mins[*other].max(u32::from(!is_first));
                matches!(state, State::Idle(_)) && *other != model && self.serving(*other) > keeps
            };
            let Some(seat) = self.seats.iter().find(|(_, seat)| may_go(seat)).map(|(key, _)| *key) else { break };
            self.seats.get_mut(&seat).unwrap().1 = State::Leaves;
        }
        let fits = needs([model].into_iter()).beyond(&NODE).is_none() && self.fits(Some(model));
        self.seats = saved;
        fits
    }

    /// Carries out and checks what is said to an ask.
    fn asked(&mut self, seat: SeatKey, model: usize, actions: &[Action]) {
        let is_first = self.serving(model) == 0;
        let could = self.could_fit(model);
        let mut went = Vec::new();
        for action in actions {
            if let Action::Displace(displaced) = action {
                let (other, state) = self.seats[displaced];
                assert!(matches!(state, State::Idle(_)) && other != model, "{displaced} is displaced");
                assert!(self.serving(other) > self.mins[other].max(u32::from(!is_first)), "its model needs it");
                self.seats.get_mut(displaced).unwrap().1 = State::Leaves;
                went.push((*displaced, state));
            }
        }
        let refused = actions.iter().any(|action| matches!(action, Action::Refuse { .. }));
        assert_eq!(refused, !could, "refused or taken wrongly: {actions:?}");
        if refused {
            assert!(went.is_empty(), "displaced in vain");
            return;
        }
        for (stays, state) in &went {
            self.seats.get_mut(stays).unwrap().1 = *state;
            assert!(!self.fits(Some(model)), "{stays} went in vain");
            self.seats.get_mut(stays).unwrap().1 = State::Leaves;
        }
        assert!(self.fits(Some(model)));
        self.seats.insert(seat, (model, State::Waits));
    }

    fn granted(&mut self, actions: &[Action]) {
        for action in actions {
            if let Action::Grant(seat) = action {
                let (_, state) = self.seats.get_mut(seat).unwrap();
                assert_eq!(*state, State::Waits, "granted twice");
                *state = State::Starts;
                let given = self.sum(|state| state != State::Waits);
                assert!(given.beyond(&NODE).is_none(), "beyond the budget");
            }
        }
    }

    fn check(&mut self, ledger: &Ledger) {
        self.adopted &= self.sum(|state| state != State::Waits).beyond(&NODE).is_some();
        assert!(self.adopted || self.sum(|state| state != State::Waits).beyond(&NODE).is_none());
        assert_eq!(ledger.view().committed, self.sum(|_| true));
        let waiting = self.seats.values().filter(|(_, state)| *state == State::Waits).count();
        assert_eq!((ledger.view().waiting, ledger.view().seats), (waiting, self.seats.len() - waiting));
    }
}

proptest! {
    #[test]
    fn never_beyond_the_budget_and_nobody_goes_in_vain(steps in steps()) {
        let (mut ledger, mut node) = (Ledger::new(NODE), Reference::default());
        for (seat, step) in (0..).zip(steps) {
            let now = Duration::from_secs(seat);
            match step {
                Step::Ask { model, min } => {
                    let (name, need, zygote) = MODELS[model];
                    let actions = ledger.step(&Event::Ask { seat, model: name.into(), need, zygote, min });
                    node.asked(seat, model, &actions);
                    node.granted(&actions);
                    node.mins[model] = min;
                }
                Step::Adopt { model } => {
                    let (name, need, zygote) = MODELS[model];
                    let min = node.mins[model];
                    let actions = ledger.step(&Event::Adopted { seat, model: name.into(), need, zygote, min });
                    node.seats.insert(seat, (model, State::Starts));
                    node.adopted = true;
                    for action in actions {
                        let Action::Refuse { seat, .. } = action else { panic!("{action:?}") };
                        prop_assert!(!node.fits(None), "it could wait on");
                        prop_assert_eq!(node.seats.remove(&seat).map(|(_, state)| state), Some(State::Waits));
                    }
                }
                Step::Serve { nth, idle } => {
                    let serves = |state: State| matches!(state, State::Starts | State::Idle(_) | State::Busy);
                    let found = node.seats.iter_mut().filter(|(_, (_, state))| serves(*state)).nth(nth);
                    if let Some((seat, (_, state))) = found {
                        let idle_since = idle.then_some(now);
                        prop_assert_eq!(ledger.step(&Event::Serves { seat: *seat, idle_since }), []);
                        *state = if idle { State::Idle(now) } else { State::Busy };
                    }
                }
                Step::Leave(nth) => {
                    let found = node.seats.iter_mut().filter(|(_, (_, state))| *state != State::Waits).nth(nth);
                    if let Some((seat, (_, state))) = found {
                        prop_assert_eq!(ledger.step(&Event::Leaves(*seat)), []);
                        *state = State::Leaves;
                    }
                }
                Step::Gone(nth) => {
                    if let Some(seat) = node.seats.keys().nth(nth).copied() {
                        node.seats.remove(&seat);
                        node.granted(&ledger.step(&Event::Gone(seat)));
                    }
                }
                Step::Min { model, min } => {
                    prop_assert_eq!(ledger.step(&Event::Min { model: MODELS[model].0.into(), min }), []);
                    node.mins[model] = min;
                }
            }
            // A model without a seat says its `min` when it asks.
            for (model, min) in node.mins.iter_mut().enumerate() {
                *min *= u32::from(node.seats.values().any(|(other, _)| *other == model));
            }
            node.check(&ledger);
        }
        // Every ask is answered as soon as those who leave are gone.
        let leaves = |(seat, (_, state)): (&SeatKey, &(usize, State))| (*state == State::Leaves).then_some(*seat);
        while let Some(seat) = node.seats.iter().find_map(leaves) {
            node.seats.remove(&seat);
            node.granted(&ledger.step(&Event::Gone(seat)));
        }
        let waits = node.seats.values().any(|(_, state)| *state == State::Waits);
        prop_assert!(!waits, "somebody waits for nobody");
    }
}
