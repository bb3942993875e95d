//! Generated nodes, whose asks and answers are checked against the rules of the header.

use super::*;
use crate::Generation;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Request { model: usize, min: u32, candidate: bool },
    Adopt { model: usize },
    Serve { nth: usize, idle: bool },
    Leave(usize),
    Gone(usize),
    MinInstances { model: usize, min: u32 },
}

const fn amounts(memory: u64, millicpus: u64, processes: u64) -> Amounts {
    Amounts { memory, millicpus, processes }
}

/// Limits of an instance, and its zygote.
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
        6 => (model(), 0_u32..3, any::<bool>()).prop_map(|(model, min, candidate)| Step::Request { model, min, candidate }),
        1 => model().prop_map(|model| Step::Adopt { model }),
        8 => (0_usize..12, any::<bool>()).prop_map(|(nth, idle)| Step::Serve { nth, idle }),
        1 => (0_usize..12).prop_map(Step::Leave),
        3 => (0_usize..12).prop_map(Step::Gone),
        1 => (model(), 0_u32..3).prop_map(|(model, min)| Step::MinInstances { model, min }),
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

/// Reference model of the node.
#[derive(Debug, Default)]
struct Reference {
    reservations: BTreeMap<ReservationId, (usize, State)>,
    mins: [u32; MODELS.len()],
    adopted: bool,
    /// Models whose zygote waits for an instance, and until when; who waits longest first.
    idle_zygotes: Vec<(usize, Moment)>,
}

/// Sum for instances of these models: each its own limits, and one zygote for all of a model.
fn needs(models: impl Iterator<Item = usize>) -> Amounts {
    let models: Vec<usize> = models.collect();
    let own = models.iter().map(|model| MODELS[*model].1);
    let distinct = (0..MODELS.len()).filter(|model| models.contains(model));
    let shared = distinct.filter_map(|model| MODELS[model].2).map(|zygote| zygote.need);
    own.chain(shared).fold(Amounts::default(), Amounts::plus)
}

impl State {
    /// The room is reserved, now and later.
    fn stays(self) -> bool {
        !matches!(self, Self::Hopes(..) | Self::Leaves)
    }

    fn waits(self) -> bool {
        matches!(self, Self::Waits | Self::Hopes(..))
    }

    /// For the first instance of a model at once, for others when it is not used.
    fn makes_room(self, purpose: Purpose, now: Moment) -> bool {
        matches!(self, Self::Idle(since) if purpose == Purpose::First || now >= since.saturating_add(MIN_IDLE))
    }
}

impl Reference {
    fn sum(&self, counts: impl Fn(State) -> bool) -> Amounts {
        needs(self.reservations.values().filter(|(_, state)| counts(*state)).map(|(model, _)| *model))
    }

    fn count(&self, model: usize, counts: impl Fn(State) -> bool) -> u32 {
        self.reservations.values().filter(|(other, state)| *other == model && counts(*state)).count() as u32
    }

    fn serving(&self, model: usize) -> u32 {
        self.count(model, |state| matches!(state, State::Idle(_) | State::Busy))
    }

    /// With one more of this model.
    fn fits(&self, model: Option<usize>) -> bool {
        let stays = self.reservations.values().filter(|(_, state)| state.stays()).map(|(model, _)| *model);
        needs(stays.chain(model)).beyond(&NODE).is_none()
    }

    fn purpose(&self, model: usize, candidate: bool) -> Purpose {
        match (self.serving(model), candidate) {
            (0, _) => Purpose::First,
            (_, true) => Purpose::Candidate,
            (_, false) => Purpose::ScaleUp,
        }
    }

    /// Instances that a model keeps, whoever asks for what.
    fn keeps(&self, model: usize, purpose: Purpose, now: Moment) -> u32 {
        let used = |state| match state {
            State::Idle(since) => now < since.saturating_add(MIN_IDLE_OF_LAST),
            state => state == State::Busy,
        };
        let is_in_use = purpose == Purpose::ScaleUp && self.count(model, used) > 0;
        self.mins[model].max(u32::from(is_in_use))
    }

    /// By the rules, one after the other, until it fits or none is left. `assume_idle`: as if all were idle.
    fn could_fit(&mut self, model: usize, purpose: Purpose, assume_idle: bool, now: Moment) -> bool {
        let keeps = [0, 1, 2, 3].map(|other| self.keeps(other, purpose, now));
        let saved = self.reservations.clone();
        while !self.fits(Some(model)) {
            let may_go = |(other, state): &(usize, State)| {
                let reclaimable = if assume_idle { self.count(*other, State::stays) } else { self.serving(*other) };
                let is_idle = state.makes_room(purpose, now) || assume_idle && state.stays();
                is_idle && *other != model && reclaimable > keeps[*other]
            };
            let Some(reservation) =
                self.reservations.iter().find(|(_, reservation)| may_go(reservation)).map(|(key, _)| *key)
            else {
                break;
            };
            self.reservations.get_mut(&reservation).unwrap().1 = State::Leaves;
        }
        let fits = needs([model].into_iter()).beyond(&NODE).is_none() && self.fits(Some(model));
        self.reservations = saved;
        fits
    }

    /// The one that hopes.
    fn request(&self) -> Option<(ReservationId, usize, (Moment, u32, bool))> {
        let request = |(reservation, (model, state)): (&ReservationId, &(usize, State))| match state {
            State::Hopes(until, min, candidate) => Some((*reservation, *model, (*until, *min, *candidate))),
            _ => None,
        };
        self.reservations.iter().find_map(request)
    }

    /// Carries out and checks what is said to an ask.
    fn asked(
        &mut self,
        reservation: ReservationId,
        model: usize,
        (until, min, candidate): (Moment, u32, bool),
        now: Moment,
        actions: &[Action],
    ) {
        self.reservations.remove(&reservation);
        let purpose = self.purpose(model, candidate);
        let keeps = [0, 1, 2, 3].map(|other| self.keeps(other, purpose, now));
        let could = self.could_fit(model, purpose, false, now);
        let pending = purpose != Purpose::ScaleUp && now < until && self.could_fit(model, purpose, true, now);
        if !could && pending {
            assert_eq!(actions, []);
            self.reservations.insert(reservation, (model, State::Hopes(until, min, candidate)));
            return;
        }
        let mut went = Vec::new();
        for action in actions {
            if let Action::Displace { reservation: displaced, by, purpose: said } = action {
                assert_eq!((&**by, *said), (MODELS[model].0, purpose));
                let (other, state) = self.reservations[displaced];
                assert!(state.makes_room(purpose, now) && other != model, "{displaced:?} is displaced");
                assert!(self.serving(other) > keeps[other], "its model needs it");
                self.reservations.get_mut(displaced).unwrap().1 = State::Leaves;
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
            self.reservations.get_mut(stays).unwrap().1 = *state;
            assert!(!self.fits(Some(model)), "{stays:?} went in vain");
            self.reservations.get_mut(stays).unwrap().1 = State::Leaves;
        }
        assert!(self.fits(Some(model)));
        self.reservations.insert(reservation, (model, State::Waits));
    }

    fn zygotes(&self) -> Amounts {
        let needs = self.idle_zygotes.iter().filter_map(|(model, _)| MODELS[*model].2).map(|zygote| zygote.need);
        needs.fold(Amounts::default(), Amounts::plus)
    }

    fn gone(&mut self, reservation: ReservationId, now: Moment) {
        let Some((model, state)) = self.reservations.remove(&reservation) else { return };
        let reclaimable = self.count(model, |state| !state.waits());
        if MODELS[model].2.is_some() && !state.waits() && reclaimable == 0 {
            self.idle_zygotes.push((model, now.saturating_add(ZYGOTE_LINGER)));
        }
    }

    /// Zygotes go when their room was given, the one that waits longest first.
    fn ended(&mut self, actions: &[Action]) {
        for action in actions {
            if let Action::EndZygotes(name) = action {
                let granted_sum = self.sum(|state| !state.waits());
                assert!(granted_sum.plus(self.zygotes()).beyond(&NODE).is_some(), "in vain");
                let (model, _) = self.idle_zygotes.remove(0);
                assert_eq!(*MODELS[model].0, **name);
            }
        }
    }

    fn granted(&mut self, actions: &[Action]) {
        for action in actions {
            if let Action::Grant(reservation) = action {
                let (model, state) = self.reservations.get_mut(reservation).unwrap();
                assert_eq!(*state, State::Waits, "granted twice");
                *state = State::Starts;
                self.idle_zygotes.retain(|(waits, _)| waits != model);
                let granted_sum = self.sum(|state| !state.waits());
                assert!(granted_sum.beyond(&NODE).is_none(), "beyond the budget");
            }
        }
        self.ended(actions);
    }

    fn check(&mut self, ledger: &Ledger) {
        self.adopted &= self.sum(|state| !state.waits()).beyond(&NODE).is_some();
        assert!(self.adopted || self.sum(|state| !state.waits()).beyond(&NODE).is_none());
        let granted_sum = self.sum(|state| !state.waits());
        assert!(self.idle_zygotes.is_empty() || granted_sum.plus(self.zygotes()).beyond(&NODE).is_none());
        let committed = self.sum(|state| !matches!(state, State::Hopes(..)));
        assert_eq!(ledger.view().committed, committed.plus(self.zygotes()));
        let waiting = self.reservations.values().filter(|(_, state)| state.waits()).count();
        assert_eq!((ledger.view().waiting, ledger.view().reservations), (waiting, self.reservations.len() - waiting));
    }
}

proptest! {
    #[test]
    fn never_beyond_the_budget_and_nobody_goes_in_vain(steps in steps()) {
        let (mut ledger, mut node) = (Ledger::new(NODE), Reference::default());
        for (reservation, step) in (0..).zip(steps) {
            let now = Duration::from_secs(reservation);
            node.idle_zygotes.retain(|(_, until)| *until > now);
            let actions = ledger.step(&Event::Retry(now));
            match node.request() {
                Some((reservation, model, request)) => {
                    node.asked(reservation, model, request, now, &actions);
                    node.granted(&actions);
                    node.mins[model] = request.1;
                }
                None => prop_assert_eq!(actions, []),
            }
            match step {
                // At most one request is pending, so that it is clear for which one an instance goes.
                Step::Request { .. } if node.request().is_some() => {}
                Step::Request { model, min, candidate } => {
                    let (name, need, zygote) = MODELS[model];
                    let actions = ledger.step(&Event::Request { reservation: ReservationId(reservation), model: name.into(), need, zygote, min, reason: if candidate { StartReason::Rollout } else { StartReason::Load }, now });
                    node.asked(ReservationId(reservation), model, (now + MAX_WAIT, min, candidate), now, &actions);
                    node.granted(&actions);
                    node.mins[model] = min;
                }
                Step::Adopt { model } => {
                    let (name, need, zygote) = MODELS[model];
                    let min = node.mins[model];
                    let actions = ledger.step(&Event::Adopted { reservation: ReservationId(reservation), model: name.into(), need, zygote, min });
                    node.reservations.insert(ReservationId(reservation), (model, State::Starts));
                    node.adopted = true;
                    node.idle_zygotes.retain(|(waits, _)| *waits != model);
                    let (refused, ended): (Vec<Action>, Vec<Action>) =
                        actions.into_iter().partition(|action| matches!(action, Action::Refuse { .. }));
                    node.ended(&ended);
                    for action in refused {
                        let Action::Refuse { reservation, .. } = action else { panic!("{action:?}") };
                        prop_assert!(!node.fits(None), "it could wait on");
                        prop_assert_eq!(node.reservations.remove(&reservation).map(|(_, state)| state), Some(State::Waits));
                    }
                }
                Step::Serve { nth, idle } => {
                    let serves = |state: State| matches!(state, State::Starts | State::Idle(_) | State::Busy);
                    let found = node.reservations.iter_mut().filter(|(_, (_, state))| serves(*state)).nth(nth);
                    if let Some((reservation, (_, state))) = found {
                        let idle_since = idle.then_some(now);
                        prop_assert_eq!(ledger.step(&Event::Serving { reservation: *reservation, idle_since }), []);
                        *state = if idle { State::Idle(now) } else { State::Busy };
                    }
                }
                Step::Leave(nth) => {
                    let found = node.reservations.iter_mut().filter(|(_, (_, state))| !state.waits()).nth(nth);
                    if let Some((reservation, (_, state))) = found {
                        prop_assert_eq!(ledger.step(&Event::Leaving(*reservation)), []);
                        *state = State::Leaves;
                    }
                }
                Step::Gone(nth) => {
                    if let Some(reservation) = node.reservations.keys().nth(nth).copied() {
                        node.gone(reservation, now);
                        node.granted(&ledger.step(&Event::Gone { reservation, now }));
                    }
                }
                Step::MinInstances { model, min } => {
                    prop_assert_eq!(ledger.step(&Event::MinInstances { model: MODELS[model].0.into(), min }), []);
                    node.mins[model] = min;
                    for (other, state) in node.reservations.values_mut() {
                        if let State::Hopes(_, if_idle, _) = state
                            && *other == model
                        {
                            *if_idle = min;
                        }
                    }
                }
            }
            // A model without a seat says its `min` when it asks.
            for (model, min) in node.mins.iter_mut().enumerate() {
                let is_seated = |(other, state): &(usize, State)| *other == model && !matches!(state, State::Hopes(..));
                *min *= u32::from(node.reservations.values().any(is_seated));
            }
            node.check(&ledger);
        }
        // Every ask is answered, as soon as those who leave are gone or patience is over.
        let never = Moment::MAX;
        node.idle_zygotes.clear();
        let actions = ledger.step(&Event::Retry(never));
        if let Some((reservation, model, request)) = node.request() {
            node.asked(reservation, model, request, never, &actions);
            node.granted(&actions);
        }
        prop_assert!(!ledger.has_pending());
        let leave = |(reservation, (_, state)): (&ReservationId, &(usize, State))| (*state == State::Leaves).then_some(*reservation);
        while let Some(reservation) = node.reservations.iter().find_map(leave) {
            node.idle_zygotes.clear(); // at the end of time each has waited for long enough
            node.gone(reservation, never);
            node.granted(&ledger.step(&Event::Gone { reservation, now: never }));
        }
        let waits = node.reservations.values().any(|(_, state)| *state == State::Waits);
        prop_assert!(!waits, "somebody waits for nobody");
    }
}
