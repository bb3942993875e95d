//! Generated nodes, whose asks and answers are checked against the rules of the header.

use super::*;
use crate::Generation;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Ask { model: usize, min: u32, candidate: bool },
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
        6 => (model(), 0_u32..3, any::<bool>()).prop_map(|(model, min, candidate)| Step::Ask { model, min, candidate }),
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
    /// Until then, with this `min`; perhaps of a new version.
    Hopes(Moment, u32, bool),
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
    /// Models whose zygote waits for an instance, and until when; who waits longest first.
    lingering: Vec<(usize, Moment)>,
}

/// Of instances of these models: each its own, and one zygote for all of a model.
fn needs(models: impl Iterator<Item = usize>) -> Amounts {
    let models: Vec<usize> = models.collect();
    let own = models.iter().map(|model| MODELS[*model].1);
    let distinct = (0..MODELS.len()).filter(|model| models.contains(model));
    let shared = distinct.filter_map(|model| MODELS[model].2).map(|zygote| zygote.need);
    own.chain(shared).fold(Amounts::default(), Amounts::plus)
}

impl State {
    /// Its room is its own, now and later.
    fn stays(self) -> bool {
        !matches!(self, Self::Hopes(..) | Self::Leaves)
    }

    fn waits(self) -> bool {
        matches!(self, Self::Waits | Self::Hopes(..))
    }

    /// For the first instance of a model at once, for others when it is not used.
    fn makes_room(self, purpose: Purpose, now: Moment) -> bool {
        matches!(self, Self::Idle(since) if purpose == Purpose::First || now >= since.saturating_add(UNUSED))
    }
}

impl Reference {
    fn sum(&self, counts: impl Fn(State) -> bool) -> Amounts {
        needs(self.seats.values().filter(|(_, state)| counts(*state)).map(|(model, _)| *model))
    }

    fn count(&self, model: usize, counts: impl Fn(State) -> bool) -> u32 {
        self.seats.values().filter(|(other, state)| *other == model && counts(*state)).count() as u32
    }

    fn serving(&self, model: usize) -> u32 {
        self.count(model, |state| matches!(state, State::Idle(_) | State::Busy))
    }

    /// With one more of this model.
    fn fits(&self, model: Option<usize>) -> bool {
        let stays = self.seats.values().filter(|(_, state)| state.stays()).map(|(model, _)| *model);
        needs(stays.chain(model)).beyond(&NODE).is_none()
    }

    fn purpose(&self, model: usize, candidate: bool) -> Purpose {
        match (self.serving(model), candidate) {
            (0, _) => Purpose::First,
            (_, true) => Purpose::Candidate,
            (_, false) => Purpose::Further,
        }
    }

    /// Instances that a model keeps, whoever asks for what.
    fn keeps(&self, model: usize, purpose: Purpose, now: Moment) -> u32 {
        let used = |state| match state {
            State::Idle(since) => now < since.saturating_add(UNUSED_MODEL),
            state => state == State::Busy,
        };
        let is_in_use = purpose == Purpose::Further && self.count(model, used) > 0;
        self.mins[model].max(u32::from(is_in_use))
    }

    /// By the rules, one after the other, until it fits or nobody is left. `hoping`: as if everybody were idle.
    fn could_fit(&mut self, model: usize, purpose: Purpose, hoping: bool, now: Moment) -> bool {
        let keeps = [0, 1, 2, 3].map(|other| self.keeps(other, purpose, now));
        let saved = self.seats.clone();
        while !self.fits(Some(model)) {
            let may_go = |(other, state): &(usize, State)| {
                let others = if hoping { self.count(*other, State::stays) } else { self.serving(*other) };
                let is_idle = state.makes_room(purpose, now) || hoping && state.stays();
                is_idle && *other != model && others > keeps[*other]
            };
            let Some(seat) = self.seats.iter().find(|(_, seat)| may_go(seat)).map(|(key, _)| *key) else { break };
            self.seats.get_mut(&seat).unwrap().1 = State::Leaves;
        }
        let fits = needs([model].into_iter()).beyond(&NODE).is_none() && self.fits(Some(model));
        self.seats = saved;
        fits
    }

    /// The one that hopes.
    fn hope(&self) -> Option<(SeatKey, usize, (Moment, u32, bool))> {
        let hope = |(seat, (model, state)): (&SeatKey, &(usize, State))| match state {
            State::Hopes(until, min, candidate) => Some((*seat, *model, (*until, *min, *candidate))),
            _ => None,
        };
        self.seats.iter().find_map(hope)
    }

    /// Carries out and checks what is said to an ask.
    fn asked(
        &mut self,
        seat: SeatKey,
        model: usize,
        (until, min, candidate): (Moment, u32, bool),
        now: Moment,
        actions: &[Action],
    ) {
        self.seats.remove(&seat);
        let purpose = self.purpose(model, candidate);
        let keeps = [0, 1, 2, 3].map(|other| self.keeps(other, purpose, now));
        let could = self.could_fit(model, purpose, false, now);
        let hopes = purpose != Purpose::Further && now < until && self.could_fit(model, purpose, true, now);
        if !could && hopes {
            assert_eq!(actions, []);
            self.seats.insert(seat, (model, State::Hopes(until, min, candidate)));
            return;
        }
        let mut went = Vec::new();
        for action in actions {
            if let Action::Displace { seat: displaced, by, purpose: said } = action {
                assert_eq!((&**by, *said), (MODELS[model].0, purpose));
                let (other, state) = self.seats[displaced];
                assert!(state.makes_room(purpose, now) && other != model, "{displaced} is displaced");
                assert!(self.serving(other) > keeps[other], "its model needs it");
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

    fn zygotes(&self) -> Amounts {
        let needs = self.lingering.iter().filter_map(|(model, _)| MODELS[*model].2).map(|zygote| zygote.need);
        needs.fold(Amounts::default(), Amounts::plus)
    }

    fn gone(&mut self, seat: SeatKey, now: Moment) {
        let Some((model, state)) = self.seats.remove(&seat) else { return };
        let others = self.count(model, |state| !state.waits());
        if MODELS[model].2.is_some() && !state.waits() && others == 0 {
            self.lingering.push((model, now.saturating_add(ZYGOTE_LINGER)));
        }
    }

    /// Zygotes go when their room was given, the one that waits longest first.
    fn ended(&mut self, actions: &[Action]) {
        for action in actions {
            if let Action::EndZygotes(name) = action {
                let given = self.sum(|state| !state.waits());
                assert!(given.plus(self.zygotes()).beyond(&NODE).is_some(), "in vain");
                let (model, _) = self.lingering.remove(0);
                assert_eq!(*MODELS[model].0, **name);
            }
        }
    }

    fn granted(&mut self, actions: &[Action]) {
        for action in actions {
            if let Action::Grant(seat) = action {
                let (model, state) = self.seats.get_mut(seat).unwrap();
                assert_eq!(*state, State::Waits, "granted twice");
                *state = State::Starts;
                self.lingering.retain(|(waits, _)| waits != model);
                let given = self.sum(|state| !state.waits());
                assert!(given.beyond(&NODE).is_none(), "beyond the budget");
            }
        }
        self.ended(actions);
    }

    fn check(&mut self, ledger: &Ledger) {
        self.adopted &= self.sum(|state| !state.waits()).beyond(&NODE).is_some();
        assert!(self.adopted || self.sum(|state| !state.waits()).beyond(&NODE).is_none());
        let given = self.sum(|state| !state.waits());
        assert!(self.lingering.is_empty() || given.plus(self.zygotes()).beyond(&NODE).is_none());
        let committed = self.sum(|state| !matches!(state, State::Hopes(..)));
        assert_eq!(ledger.view().committed, committed.plus(self.zygotes()));
        let waiting = self.seats.values().filter(|(_, state)| state.waits()).count();
        assert_eq!((ledger.view().waiting, ledger.view().seats), (waiting, self.seats.len() - waiting));
    }
}

proptest! {
    #[test]
    fn never_beyond_the_budget_and_nobody_goes_in_vain(steps in steps()) {
        let (mut ledger, mut node) = (Ledger::new(NODE), Reference::default());
        for (seat, step) in (0..).zip(steps) {
            let now = Duration::from_secs(seat);
            node.lingering.retain(|(_, until)| *until > now);
            let actions = ledger.step(&Event::Look(now));
            match node.hope() {
                Some((seat, model, hope)) => {
                    node.asked(seat, model, hope, now, &actions);
                    node.granted(&actions);
                    node.mins[model] = hope.1;
                }
                None => prop_assert_eq!(actions, []),
            }
            match step {
                // One hopes at a time, so that it is clear for whom somebody goes.
                Step::Ask { .. } if node.hope().is_some() => {}
                Step::Ask { model, min, candidate } => {
                    let (name, need, zygote) = MODELS[model];
                    let actions = ledger.step(&Event::Ask { seat, model: name.into(), need, zygote, min, cause: if candidate { Cause::Version } else { Cause::Load }, now });
                    node.asked(seat, model, (now + PATIENCE, min, candidate), now, &actions);
                    node.granted(&actions);
                    node.mins[model] = min;
                }
                Step::Adopt { model } => {
                    let (name, need, zygote) = MODELS[model];
                    let min = node.mins[model];
                    let actions = ledger.step(&Event::Adopted { seat, model: name.into(), need, zygote, min });
                    node.seats.insert(seat, (model, State::Starts));
                    node.adopted = true;
                    node.lingering.retain(|(waits, _)| *waits != model);
                    let (refused, ended): (Vec<Action>, Vec<Action>) =
                        actions.into_iter().partition(|action| matches!(action, Action::Refuse { .. }));
                    node.ended(&ended);
                    for action in refused {
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
                    let found = node.seats.iter_mut().filter(|(_, (_, state))| !state.waits()).nth(nth);
                    if let Some((seat, (_, state))) = found {
                        prop_assert_eq!(ledger.step(&Event::Leaves(*seat)), []);
                        *state = State::Leaves;
                    }
                }
                Step::Gone(nth) => {
                    if let Some(seat) = node.seats.keys().nth(nth).copied() {
                        node.gone(seat, now);
                        node.granted(&ledger.step(&Event::Gone { seat, now }));
                    }
                }
                Step::Min { model, min } => {
                    prop_assert_eq!(ledger.step(&Event::Min { model: MODELS[model].0.into(), min }), []);
                    node.mins[model] = min;
                    for (other, state) in node.seats.values_mut() {
                        if let State::Hopes(_, hoped, _) = state
                            && *other == model
                        {
                            *hoped = min;
                        }
                    }
                }
            }
            // A model without a seat says its `min` when it asks.
            for (model, min) in node.mins.iter_mut().enumerate() {
                let is_seated = |(other, state): &(usize, State)| *other == model && !matches!(state, State::Hopes(..));
                *min *= u32::from(node.seats.values().any(is_seated));
            }
            node.check(&ledger);
        }
        // Every ask is answered, as soon as those who leave are gone or patience is over.
        let never = Moment::MAX;
        node.lingering.clear();
        let actions = ledger.step(&Event::Look(never));
        if let Some((seat, model, hope)) = node.hope() {
            node.asked(seat, model, hope, never, &actions);
            node.granted(&actions);
        }
        prop_assert!(!ledger.has_hopes());
        let leaves = |(seat, (_, state)): (&SeatKey, &(usize, State))| (*state == State::Leaves).then_some(*seat);
        while let Some(seat) = node.seats.iter().find_map(leaves) {
            node.lingering.clear(); // at the end of time each has waited for long enough
            node.gone(seat, never);
            node.granted(&ledger.step(&Event::Gone { seat, now: never }));
        }
        let waits = node.seats.values().any(|(_, state)| *state == State::Waits);
        prop_assert!(!waits, "somebody waits for nobody");
    }
}
