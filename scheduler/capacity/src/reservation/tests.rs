//! Decisions delivered to models' actors, and their order.

use super::*;
use omni_config::size::ByteSize;
use omni_task::Watchdog;
use tokio::sync::mpsc;

const SECOND: Moment = Moment::from_secs(1);

/// A node with a memory budget, and one inbox for all models.
struct World {
    handle: CapacityHandle,
    answers: DecisionSender,
    inbox: mpsc::Sender<(ReservationId, Decision)>,
    heard: mpsc::Receiver<(ReservationId, Decision)>,
}

impl World {
    fn new(gib: u64) -> Self {
        let budget = Amounts { memory: gib << 30, millicpus: u64::MAX, processes: u64::MAX };
        let (handle, answers) = new(budget, CapacityMetrics::default(), Instant::now());
        let (inbox, heard) = mpsc::channel(8);
        Self { handle, answers, inbox, heard }
    }

    fn reserve(&self, model: &str, gib: u64) -> Reservation {
        let resources = Resources { memory: ByteSize::from_gib(gib), ..Resources::default() };
        self.handle.reserve(ReservationRequest {
            model,
            resources: &resources,
            zygote: None,
            min: 0,
            reason: StartReason::Load,
            mailbox: self.mailbox(),
        })
    }

    fn mailbox(&self) -> Mailbox<(ReservationId, Decision)> {
        Mailbox::new(self.inbox.clone(), |decision| decision)
    }

    /// Decisions since the last call.
    fn decisions(&self) -> Vec<(ReservationId, Decision)> {
        self.answers.take_due().decisions.into_iter().map(|(_, id, decision)| (id, decision)).collect()
    }

    /// The same, once no request is pending any more.
    fn told_in_the_end(&self) -> Vec<(ReservationId, Decision)> {
        self.answers.0.state().step(&Event::Retry(Moment::MAX));
        self.decisions()
    }
}

fn displaced_by(model: &str) -> Decision {
    Decision::Displaced { by: model.into(), purpose: Purpose::First, from: DisplacedFrom::Node }
}

#[test]
fn room_is_given_refused_and_given_back() {
    let world = World::new(10);
    let one = world.reserve("a", 7);
    assert_eq!(world.decisions(), [(one.id(), Decision::Granted)]);
    let two = world.reserve("b", 4);
    let message =
        "the node is full: it may use 4GiB, 3GiB are free, and no instance is idle that could make room".to_owned();
    assert_eq!(world.decisions(), []);
    assert_eq!(
        world.told_in_the_end(),
        [(two.id(), Decision::Refused { permanent: false, recreate_fits: false, message })]
    );
    let three = world.reserve("c", 11);
    let message = "it may use 11GiB, and [capacity] gives all instances of the node 10GiB".to_owned();
    assert_eq!(world.decisions(), [(three.id(), Decision::Refused { permanent: true, recreate_fits: false, message })]);
    drop(one);
    let four = world.reserve("b", 10);
    assert_eq!(world.decisions(), [(four.id(), Decision::Granted)]);
    assert_eq!((world.handle.view().committed.memory, world.handle.view().reservations), (10 << 30, 1));
    drop((two, three, four));
    assert_eq!((world.handle.view().committed.memory, world.handle.view().reservations), (0, 0));
}

#[test]
fn the_one_that_is_idle_longest_makes_room() {
    let world = World::new(10);
    let reservations = ["a", "b", "c"].map(|model| world.reserve(model, 3));
    let (four, granted) = (world.reserve("d", 3), world.told_in_the_end());
    assert_eq!(granted.len(), 4);
    assert!(matches!(granted[3], (_, Decision::Refused { .. })), "they start: {granted:?}");
    drop(four);
    for (reservation, since) in reservations.iter().zip([1, 3, 2]) {
        reservation.on_serving(since * SECOND);
    }
    reservations[0].on_busy();
    let five = world.reserve("d", 3);
    assert_eq!(world.decisions(), [(reservations[2].id(), displaced_by("d"))]);
    reservations[0].on_idle(9 * SECOND);
    reservations[1].on_busy();
    let six = world.reserve("e", 3);
    assert_eq!(world.decisions(), [(reservations[0].id(), displaced_by("e"))]);
    let [first, _second, third] = reservations;
    drop(first);
    assert_eq!(world.decisions(), [(five.id(), Decision::Granted)], "in the order in which they asked");
    drop(third);
    assert_eq!(world.decisions(), [(six.id(), Decision::Granted)]);
}

#[test]
fn a_pending_reservation_is_granted_at_a_later_poll() {
    let world = World::new(10);
    let (one, two) = (world.reserve("a", 7), world.reserve("b", 7));
    one.on_serving(SECOND);
    one.on_busy();
    world.answers.poll();
    assert_eq!(world.decisions(), [(one.id(), Decision::Granted)]);
    one.on_idle(2 * SECOND);
    world.answers.poll();
    assert_eq!(world.decisions(), [(one.id(), displaced_by("b"))]);
    drop(one);
    assert_eq!(world.decisions(), [(two.id(), Decision::Granted)]);
}

#[test]
fn room_of_one_that_leaves_is_counted_on() {
    let world = World::new(10);
    let (one, two) = (world.reserve("a", 6), world.reserve("b", 4));
    assert_eq!(world.decisions().len(), 2);
    one.on_serving(SECOND);
    one.on_busy();
    one.on_leaving();
    let three = world.reserve("c", 6);
    assert_eq!(world.decisions(), []);
    one.on_serving(2 * SECOND);
    drop(one);
    assert_eq!(world.decisions(), [(three.id(), Decision::Granted)]);
    drop(two);
}

#[test]
fn a_dropped_reservation_gets_no_decision() {
    let world = World::new(10);
    let gone = world.reserve("a", 6).id();
    assert_eq!(world.decisions(), []);
    let one = world.reserve("a", 10);
    assert!(one.id() != gone);
    assert_eq!(world.decisions(), [(one.id(), Decision::Granted)]);
}

#[test]
fn a_min_holds_from_the_moment_it_is_said() {
    let world = World::new(10);
    let one = world.reserve("a", 10);
    one.on_serving(SECOND);
    one.set_min(1);
    let two = world.reserve("b", 1);
    assert!(matches!(world.decisions()[..], [_, (_, Decision::Refused { permanent: false, .. })]));
    one.set_min(0);
    drop(two);
    let _three = world.reserve("b", 1);
    assert_eq!(world.decisions(), [(one.id(), displaced_by("b"))]);
}

/// Models that are refused are told of instances that end, once for each refusal, and never of each other's refusals.
#[test]
fn a_refused_model_is_told_when_an_instance_has_ended() {
    let world = World::new(10);
    let wait = || world.answers.take_due().freed.len();
    let freed = || Mailbox::new(mpsc::channel(1).0, |()| ());
    let one = world.reserve("a", 6);
    one.on_launch();
    for model in ["b", "c", "c"] {
        drop(world.reserve(model, 6));
        world.handle.notify_when_freed(model, freed());
    }
    assert_eq!(wait(), 0, "one that was refused frees nothing");
    drop(one);
    assert_eq!(wait(), 2);
    let adopted = Resources { memory: ByteSize::from_gib(1), ..Resources::default() };
    let (zygote, min, reason, mailbox) = (None, 0, StartReason::Load, world.mailbox());
    drop(world.handle.adopt(ReservationRequest { model: "a", resources: &adopted, zygote, min, reason, mailbox }));
    assert_eq!(wait(), 0, "they were notified");
    world.handle.notify_when_freed("b", freed());
    let (zygote, min, reason, mailbox) = (None, 0, StartReason::Load, world.mailbox());
    drop(world.handle.adopt(ReservationRequest { model: "a", resources: &adopted, zygote, min, reason, mailbox }));
    assert_eq!(wait(), 1, "one of an earlier scheduler frees capacity too");
}

#[test]
fn a_place_on_a_card_is_left_by_those_that_may_go_and_they_are_told_for_whom() {
    let world = World::new(30);
    let reservations = ["a", "b", "kept", "busy"].map(|model| world.reserve(model, 2));
    reservations[2].set_min(1);
    for (reservation, second) in reservations.iter().zip([3, 2, 1, 1]) {
        reservation.on_serving(second * SECOND);
    }
    reservations[3].on_busy();
    let requester = world.reserve("c", 2);
    world.answers.take_due();
    let reclaimable = world
        .handle
        .displace_from_card(requester.id(), StartReason::Load, |reclaimable| (vec![reservations[1].id()], reclaimable));
    let keys = |which: &[usize]| which.iter().map(|at| reservations[*at].id()).collect::<Vec<_>>();
    assert_eq!((reclaimable.idle, reclaimable.kept, reclaimable.recent), (keys(&[1, 0]), keys(&[2]), vec![]));
    assert_eq!(reclaimable.if_idle, keys(&[1, 0, 3]), "what is idle, then what may become so");
    let decisions = Decision::Displaced { by: "c".into(), purpose: Purpose::First, from: DisplacedFrom::Card };
    assert_eq!(world.decisions(), [(reservations[1].id(), decisions)]);
    let again = world.handle.displace_from_card(requester.id(), StartReason::Load, |reclaimable| (vec![], reclaimable));
    assert_eq!((again.leaving, again.idle), (keys(&[1]), keys(&[0])), "it is promised once");
    let gone = requester.id();
    drop(requester);
    assert!(
        world.handle.displace_from_card(gone, StartReason::Load, |reclaimable| (vec![], reclaimable)).idle.is_empty()
    );
}

#[tokio::test]
async fn answers_are_carried_into_the_inbox() {
    let World { handle, answers, inbox, mut heard } = World::new(10);
    let carrier = tokio::spawn(async move { answers.run(Watchdog::default().heartbeat("capacity")).await });
    let resources = Resources { memory: ByteSize::from_gib(1), ..Resources::default() };
    let mut reservations = Vec::new();
    // More than fit into the inbox at a time.
    for _ in 0..50 {
        reservations.push(handle.reserve(ReservationRequest {
            model: "a",
            resources: &resources,
            zygote: None,
            min: 0,
            reason: StartReason::Load,
            mailbox: Mailbox::new(inbox.clone(), |decision| decision),
        }));
    }
    for reservation in &reservations {
        let Some((key, _)) = heard.recv().await else { panic!("another message") };
        assert_eq!(key, reservation.id());
    }
    carrier.abort();
}
