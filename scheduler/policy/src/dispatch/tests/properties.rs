//! Generated lives of a model's requests against a simple reference: a map of requests and what became of each.

use super::*;
use crate::batching::window;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Most requests of the batches here.
const MOST_MEMBERS: u32 = 5;

#[derive(Debug, Clone)]
enum Step {
    Submit { priority: u8, session: Option<u64>, cost: Option<u64> },
    Next { blocked: u32 },
    Finish(usize),
    GiveBack(usize),
    Cancel(usize),
    WriteOff(u32),
    Open { instance: u32, mode: HandlerMode, concurrency: u32 },
    Close(u32),
    Elsewhere { instance: u32, requests: u32 },
    Lose(u32),
    GiveUp,
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let submit = (0_u8..=HIGHEST_PRIORITY, prop::option::of(0_u64..5), prop::option::weighted(0.8, 1_u64..5))
        .prop_map(|(priority, session, cost)| Step::Submit { priority, session, cost });
    let bounds = (1..=MOST_MEMBERS, 1_u64..12).prop_map(|(requests, cost)| BatchBounds { requests, cost });
    let mode =
        prop_oneof![Just(HandlerMode::Serial), Just(HandlerMode::Concurrent), bounds.prop_map(HandlerMode::Batches),];
    let open =
        (0_u32..5, mode, 1_u32..4).prop_map(|(instance, mode, concurrency)| Step::Open { instance, mode, concurrency });
    let step = prop_oneof![
        10 => submit,
        // Mostly everybody may be sent to.
        10 => prop_oneof![3 => Just(0_u32), 1 => 0_u32..32].prop_map(|blocked| Step::Next { blocked }),
        8 => (0_usize..8).prop_map(Step::Finish),
        1 => (0_usize..8).prop_map(Step::GiveBack),
        1 => (0_usize..20).prop_map(Step::Cancel),
        1 => (0_u32..5).prop_map(Step::WriteOff),
        3 => open,
        1 => (0_u32..5).prop_map(Step::Close),
        1 => (0_u32..5, 0_u32..4).prop_map(|(instance, requests)| Step::Elsewhere { instance, requests }),
        1 => (0_u32..5).prop_map(Step::Lose),
        1 => Just(Step::GiveUp),
        // Up to microseconds, so that handlers are fast, or up to seconds, so that priorities age.
        4 => prop_oneof![0_u64..50, 0_u64..5_000_000].prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..300)
}

/// A request that has not ended.
#[derive(Debug, Clone, Copy)]
struct Alive {
    came: Moment,
    priority: u8,
    session: Option<u64>,
    cost: Option<u64>,
    at: Option<InstanceNumber>,
    cancelled: bool,
    written_off: bool,
}

impl Alive {
    /// Rank: the arrival at which a request of the highest priority would be its equal.
    fn rank(&self) -> Moment {
        self.came + u32::from(HIGHEST_PRIORITY - self.priority) * SECOND
    }
}

#[derive(Debug, Default)]
struct Reference {
    alive: BTreeMap<RequestId, Alive>,
    ended: usize,
    /// By instance: whether it is open, its mode, its concurrency.
    routes: BTreeMap<InstanceNumber, (bool, HandlerMode, u32)>,
    /// Requests of another scheduler.
    external_requests: BTreeMap<InstanceNumber, u32>,
}

impl Reference {
    fn end(&mut self, id: RequestId) {
        assert!(self.alive.remove(&id).is_some(), "{id:?} ends twice");
        self.ended += 1;
    }

    /// Queued requests, and those on enabled routes: a new request has to fit beside them.
    fn counted(&self) -> usize {
        let counts = |at: InstanceNumber| self.routes.get(&at).is_some_and(|(open, ..)| *open);
        self.alive.values().filter(|request| !request.written_off && request.at.is_none_or(counts)).count()
    }

    fn at(&self, instance: InstanceNumber) -> usize {
        self.alive.values().filter(|request| request.at == Some(instance)).count()
    }

    /// Requests of any scheduler.
    fn has(&self, instance: InstanceNumber) -> usize {
        self.at(instance) + self.external_requests.get(&instance).map_or(0, |requests| *requests as usize)
    }

    /// In flight for each that runs at once.
    fn load(&self, instance: InstanceNumber) -> f64 {
        let at_once = match self.routes[&instance] {
            (_, HandlerMode::Serial, _) => 1,
            (_, HandlerMode::Concurrent, concurrency) => concurrency,
            (_, HandlerMode::Batches(bounds), _) => bounds.requests,
        };
        self.has(instance) as f64 / f64::from(at_once)
    }

    /// The most that an instance may have when it has just been sent one.
    fn most(&self, instance: InstanceNumber) -> usize {
        match self.routes[&instance] {
            (_, HandlerMode::Serial, _) => 1 + AHEAD_LIMIT as usize,
            (_, HandlerMode::Concurrent, concurrency) => concurrency as usize,
            (_, HandlerMode::Batches(bounds), _) => bounds.requests as usize,
        }
    }

    fn home(&self, session: u64) -> InstanceNumber {
        let mut empty = with_room(1);
        for (instance, (is_open, ..)) in &self.routes {
            if *is_open {
                enable(&mut empty, *instance, HandlerMode::Serial, 1);
            }
        }
        empty.submit(Ticket { session: Some(session), ..plain(RequestId(0)) }, Duration::ZERO);
        next(&mut empty, Duration::ZERO).unwrap().1
    }

    fn check_route(&self, dispatch: &Dispatch, sent: (RequestId, InstanceNumber), takers: &[InstanceNumber]) {
        let (id, instance) = sent;
        let request = self.alive[&id];
        assert!(request.at.is_none() && !request.cancelled, "{id:?} is sent twice");
        for (other, waiting) in self.alive.iter().filter(|(_, other)| other.at.is_none()) {
            assert!((request.rank(), id) <= (waiting.rank(), *other), "{id:?} before {other:?}");
            assert!(waiting.came + 9 * SECOND + MS > request.came, "{other:?} starves");
        }
        assert!(takers.contains(&instance), "{instance:?} has no room");
        assert!(self.has(instance) < self.most(instance), "{instance:?} is full");
        let home = request.session.map(|session| self.home(session)).filter(|home| takers.contains(home));
        match home {
            Some(home) => assert_eq!(instance, home),
            None => {
                let least = takers.iter().map(|taker| self.load(*taker)).fold(f64::INFINITY, f64::min);
                assert!(self.load(instance) <= least, "{instance:?} is not the least loaded of {takers:?}");
            }
        }
        assert!(dispatch.in_flight_of(instance) > 0);
    }

    /// The members that joined the first one of a batch.
    fn check_joiners(&self, (members, instance): (&[RequestId], InstanceNumber), takers: &[InstanceNumber]) {
        let (_, HandlerMode::Batches(bounds), _) = self.routes[&instance] else { panic!("it gets single requests") };
        let costs: Vec<u64> = members.iter().map(|id| self.alive[id].cost.unwrap()).collect();
        assert!(members.len() <= bounds.requests as usize && costs.iter().sum::<u64>() <= bounds.cost);
        assert_eq!(self.has(instance), 0, "one batch at a time");
        let rank = |id: &RequestId| (self.alive[id].rank(), *id);
        assert!(members.is_sorted_by_key(rank));
        for id in members {
            let request = &self.alive[id];
            assert!(request.at.is_none() && !request.cancelled, "{id:?} is sent twice");
            let home = request.session.map(|session| self.home(session));
            assert!(home.is_none_or(|home| home == instance || !takers.contains(&home)), "{id:?} has its home's room");
        }
        let last = members.last().map(rank).unwrap();
        for (other, waiting) in &self.alive {
            if waiting.at.is_none() && (waiting.rank(), *other) < last && !members.contains(other) {
                let home = waiting.session.map(|session| self.home(session)).unwrap();
                assert!(home != instance && takers.contains(&home), "{other:?} was passed over");
            }
        }
    }
}

fn open_with_room(dispatch: &Dispatch, blocked: u32) -> Vec<InstanceNumber> {
    let takers = dispatch.routes.iter().filter(|route| route.has_room() && blocked & (1 << route.instance.0) == 0);
    takers.map(|route| route.instance).collect()
}

proptest! {
    /// Every request is in one place and ends once; order, routes and bounds are kept.
    #[test]
    fn no_request_is_lost_doubled_or_starved(steps in steps(), queue in 0_u32..12, places in 1_u32..12) {
        let mut dispatch = with_room(queue);
        dispatch.set_bounds(queue, places);
        let (mut reference, mut now, mut next_id) = (Reference::default(), Duration::ZERO, 0);
        for step in steps {
            match step {
                Step::Wait(micros) => now += Duration::from_micros(micros),
                Step::Submit { priority, session, cost } => {
                    now += Duration::from_nanos(1);
                    let full = reference.counted() >= (queue + places) as usize;
                    let candidate = cost.map(|cost| Candidate { cost, deadline: now + SECOND });
                    let ticket = Ticket { id: RequestId(next_id), priority, session, candidate };
                    let admission = dispatch.submit(ticket, now);
                    prop_assert_eq!(admission == Admission::Full, full);
                    if !full {
                        let (at, cancelled, written_off) = (None, false, false);
                        let request = Alive { came: now, priority, session, cost, at, cancelled, written_off };
                        reference.alive.insert(RequestId(next_id), request);
                    }
                    next_id += 1;
                }
                Step::Next { blocked } => {
                    let takers = open_with_room(&dispatch, blocked);
                    let waits = reference.alive.values().any(|request| request.at.is_none());
                    let sent = dispatch.next(now, |instance| blocked & (1 << instance.0) == 0);
                    let waits_for_more = dispatch.wakes_at().is_some();
                    let longest_wait = window(MOST_MEMBERS as usize);
                    prop_assert!(dispatch.wakes_at().is_none_or(|at| now < at && at <= now + longest_wait));
                    prop_assert_eq!(sent.is_some() || waits_for_more, waits && !takers.is_empty());
                    if let Some(Dispatched { instance, requests }) = sent {
                        let ids = match requests {
                            Members::One(id) => vec![id],
                            Members::Batch(ids) => {
                                prop_assert!(ids.len() > 1);
                                reference.check_joiners((&ids, instance), &takers);
                                ids
                            }
                        };
                        prop_assert!(!waits_for_more);
                        reference.check_route(&dispatch, (ids[0], instance), &takers);
                        for id in ids {
                            reference.alive.get_mut(&id).unwrap().at = Some(instance);
                        }
                    }
                }
                Step::Finish(nth) => {
                    let sent = reference.alive.iter().filter_map(|(id, request)| Some((*id, request.at?))).nth(nth);
                    prop_assert_eq!(dispatch.finish(RequestId(next_id), now), None);
                    if let Some((RequestId(id), instance)) = sent {
                        prop_assert_eq!(dispatch.finish(RequestId(id), now), Some(instance));
                        reference.end(RequestId(id));
                    }
                }
                Step::GiveBack(nth) => {
                    let sent = reference.alive.iter().filter(|(_, request)| request.at.is_some()).nth(nth);
                    if let Some((RequestId(id), request)) = sent.map(|(id, request)| (*id, *request)) {
                        prop_assert_eq!(dispatch.requeue(RequestId(id)), !request.cancelled);
                        if !request.cancelled {
                            reference.alive.get_mut(&RequestId(id)).unwrap().at = None;
                        }
                    }
                }
                Step::Cancel(nth) => {
                    prop_assert_eq!(dispatch.cancel(RequestId(next_id), MS), Cancelled::Unknown);
                    if let Some(id) = reference.alive.keys().nth(nth).copied() {
                        match (dispatch.cancel(id, MS), reference.alive[&id].at) {
                            (Cancelled::Dequeued, None) => reference.end(id),
                            (Cancelled::InFlight(instance), Some(at)) if instance == at => {
                                reference.alive.get_mut(&id).unwrap().cancelled = true;
                            }
                            (answer, at) => prop_assert!(false, "{:?} for {:?} at {:?}", answer, id, at),
                        }
                    }
                }
                Step::WriteOff(instance) => {
                    let instance = InstanceNumber(instance);
                    let written_off = dispatch.write_off(instance, Duration::MAX);
                    for id in &written_off {
                        let request = reference.alive.get_mut(id).unwrap();
                        prop_assert!(request.cancelled && request.at == Some(instance));
                        prop_assert!(!std::mem::replace(&mut request.written_off, true), "{:?} twice", id);
                    }
                    prop_assert_eq!(dispatch.cancelled_since(instance), None);
                }
                Step::Open { instance, mode, concurrency } => {
                    let instance = InstanceNumber(instance);
                    // An instance is opened anew only when it has nothing.
                    if reference.at(instance) == 0 {
                        enable(&mut dispatch, instance, mode, concurrency);
                        reference.routes.insert(instance, (true, mode, concurrency));
                    }
                }
                Step::Close(instance) => {
                    dispatch.disable(InstanceNumber(instance));
                    if let Some((open, ..)) = reference.routes.get_mut(&InstanceNumber(instance)) {
                        *open = false;
                    }
                }
                Step::Elsewhere { instance, requests } => {
                    let instance = InstanceNumber(instance);
                    dispatch.set_external_requests(instance, requests);
                    if reference.routes.contains_key(&instance) {
                        reference.external_requests.insert(instance, requests);
                    }
                }
                Step::Lose(instance) => {
                    let instance = InstanceNumber(instance);
                    reference.external_requests.remove(&instance);
                    let had = dispatch.ids_in_flight(instance);
                    let mode = reference.routes.remove(&instance).map_or(HandlerMode::Serial, |(_, mode, _)| mode);
                    let Lost { failed, dropped } = dispatch.remove_instance(instance);
                    let begun = if mode == HandlerMode::Serial { had.len().min(1) } else { had.len() };
                    prop_assert_eq!(&failed[..], &had[..begun]);
                    for id in &dropped {
                        prop_assert!(reference.alive[id].cancelled && had[begun..].contains(id));
                    }
                    for id in failed.into_iter().chain(dropped) {
                        reference.end(id);
                    }
                    for request in reference.alive.values_mut().filter(|request| request.at == Some(instance)) {
                        prop_assert!(!request.cancelled);
                        request.at = None;
                    }
                }
                Step::GiveUp => {
                    for id in dispatch.drain_queue() {
                        prop_assert!(reference.alive[&id].at.is_none());
                        reference.end(id);
                    }
                }
            }
            let waiting = reference.alive.values().filter(|request| request.at.is_none()).count();
            prop_assert_eq!(dispatch.waiting(), waiting);
            prop_assert_eq!(dispatch.in_flight(), reference.alive.len() - waiting);
            prop_assert_eq!(dispatch.load(), reference.counted());
            for instance in reference.routes.keys() {
                prop_assert_eq!(dispatch.in_flight_of(*instance), reference.at(*instance));
                prop_assert!(reference.at(*instance) <= reference.most(*instance));
            }
        }
    }
}
