//! What models' tasks are told, and when.

use super::*;
use crate::watchdog::Watchdog;
use omni_config::size::ByteSize;

const SECOND: Moment = Moment::from_secs(1);

/// A node with so much memory and everybody's inbox.
struct World {
    handle: CapacityHandle,
    answers: Answers,
    inbox: mpsc::Sender<Message>,
    heard: mpsc::Receiver<Message>,
}

impl World {
    fn new(gib: u64) -> Self {
        let budget = Amounts { memory: gib << 30, millicpus: u64::MAX, processes: u64::MAX };
        let (handle, answers) = new(budget, CapacityMetrics::default(), Instant::now());
        let (inbox, heard) = mpsc::channel(8);
        Self { handle, answers, inbox, heard }
    }

    fn ask(&self, model: &str, gib: u64) -> CapacitySeat {
        let resources = Resources { memory: ByteSize::from_gib(gib), ..Resources::default() };
        self.handle.ask(Applicant {
            model,
            resources: &resources,
            zygote: None,
            min: 0,
            cause: Cause::Load,
            inbox: self.inbox.clone(),
        })
    }

    /// What was said since the last time.
    fn told(&self) -> Vec<(SeatKey, Told)> {
        let said = |message| match message {
            Message::Capacity(seat, told) => (seat, told),
            other => panic!("{other:?}"),
        };
        self.answers.take().into_iter().map(|(_, message)| said(message)).collect()
    }

    /// The same, once nobody hopes any more.
    fn told_in_the_end(&self) -> Vec<(SeatKey, Told)> {
        self.answers.0.book().step(&Event::Look(Moment::MAX));
        self.told()
    }
}

fn displaced_by(model: &str) -> Told {
    Told::Displaced { by: model.into(), purpose: Purpose::First, room: Room::Node }
}

#[test]
fn room_is_given_refused_and_given_back() {
    let world = World::new(10);
    let one = world.ask("a", 7);
    assert_eq!(world.told(), [(one.key(), Told::Granted)]);
    let two = world.ask("b", 4);
    let message =
        "the node is full: it may use 4GiB, 3GiB are free, and no instance is idle that could make room".to_owned();
    assert_eq!(world.told(), []);
    assert_eq!(world.told_in_the_end(), [(two.key(), Told::Refused { hopeless: false, in_place: false, message })]);
    let three = world.ask("c", 11);
    let message = "it may use 11GiB, and [capacity] gives all instances of the node 10GiB".to_owned();
    assert_eq!(world.told(), [(three.key(), Told::Refused { hopeless: true, in_place: false, message })]);
    drop(one);
    let four = world.ask("b", 10);
    assert_eq!(world.told(), [(four.key(), Told::Granted)]);
    assert_eq!((world.handle.view().committed.memory, world.handle.view().seats), (10 << 30, 1));
    drop((two, three, four));
    assert_eq!((world.handle.view().committed.memory, world.handle.view().seats), (0, 0));
}

#[test]
fn the_one_that_is_idle_longest_makes_room() {
    let world = World::new(10);
    let seats = ["a", "b", "c"].map(|model| world.ask(model, 3));
    let (four, granted) = (world.ask("d", 3), world.told_in_the_end());
    assert_eq!(granted.len(), 4);
    assert!(matches!(granted[3], (_, Told::Refused { .. })), "they start: {granted:?}");
    drop(four);
    for (seat, since) in seats.iter().zip([1, 3, 2]) {
        seat.serves(since * SECOND);
    }
    seats[0].busy();
    let five = world.ask("d", 3);
    assert_eq!(world.told(), [(seats[2].key(), displaced_by("d"))]);
    seats[0].idle(9 * SECOND);
    seats[1].busy();
    let six = world.ask("e", 3);
    assert_eq!(world.told(), [(seats[0].key(), displaced_by("e"))]);
    let [first, _second, third] = seats;
    drop(first);
    assert_eq!(world.told(), [(five.key(), Told::Granted)], "in the order in which they asked");
    drop(third);
    assert_eq!(world.told(), [(six.key(), Told::Granted)]);
}

#[test]
fn who_hopes_is_helped_by_the_next_look() {
    let world = World::new(10);
    let (one, two) = (world.ask("a", 7), world.ask("b", 7));
    one.serves(SECOND);
    one.busy();
    world.answers.look();
    assert_eq!(world.told(), [(one.key(), Told::Granted)]);
    one.idle(2 * SECOND);
    world.answers.look();
    assert_eq!(world.told(), [(one.key(), displaced_by("b"))]);
    drop(one);
    assert_eq!(world.told(), [(two.key(), Told::Granted)]);
}

#[test]
fn room_of_one_that_leaves_is_counted_on() {
    let world = World::new(10);
    let (one, two) = (world.ask("a", 6), world.ask("b", 4));
    assert_eq!(world.told().len(), 2);
    one.serves(SECOND);
    one.busy();
    one.leaves();
    let three = world.ask("c", 6);
    assert_eq!(world.told(), []);
    one.serves(2 * SECOND);
    drop(one);
    assert_eq!(world.told(), [(three.key(), Told::Granted)]);
    drop(two);
}

#[test]
fn who_has_left_is_told_nothing() {
    let world = World::new(10);
    let gone = world.ask("a", 6).key();
    assert_eq!(world.told(), []);
    let one = world.ask("a", 10);
    assert!(one.key() != gone);
    assert_eq!(world.told(), [(one.key(), Told::Granted)]);
}

#[test]
fn a_min_holds_from_the_moment_it_is_said() {
    let world = World::new(10);
    let one = world.ask("a", 10);
    one.serves(SECOND);
    one.set_min(1);
    let two = world.ask("b", 1);
    assert!(matches!(world.told()[..], [_, (_, Told::Refused { hopeless: false, .. })]));
    one.set_min(0);
    drop(two);
    let _three = world.ask("b", 1);
    assert_eq!(world.told(), [(one.key(), displaced_by("b"))]);
}

/// Models that are refused are told of instances that end, once for each refusal, and never of each other's refusals.
#[test]
fn a_refused_model_is_told_when_an_instance_has_ended() {
    let world = World::new(10);
    let news = || world.answers.take().into_iter().filter(|(_, message)| matches!(message, Message::Room)).count();
    let one = world.ask("a", 6);
    one.starts();
    for model in ["b", "c", "c"] {
        drop(world.ask(model, 6));
        world.handle.tell_of_room(model, world.inbox.clone());
    }
    assert_eq!(news(), 0, "one that was refused makes no room");
    drop(one);
    assert_eq!(news(), 2);
    let adopted = Resources { memory: ByteSize::from_gib(1), ..Resources::default() };
    let (zygote, min, cause, inbox) = (None, 0, Cause::Load, world.inbox.clone());
    drop(world.handle.adopt(Applicant { model: "a", resources: &adopted, zygote, min, cause, inbox }));
    assert_eq!(news(), 0, "they were told");
    world.handle.tell_of_room("b", world.inbox.clone());
    let (zygote, min, cause, inbox) = (None, 0, Cause::Load, world.inbox.clone());
    drop(world.handle.adopt(Applicant { model: "a", resources: &adopted, zygote, min, cause, inbox }));
    assert_eq!(news(), 1, "one of an earlier scheduler makes room too");
}

#[test]
fn a_place_on_a_card_is_left_by_those_that_may_go_and_they_are_told_for_whom() {
    let world = World::new(30);
    let seats = ["a", "b", "kept", "busy"].map(|model| world.ask(model, 2));
    seats[2].set_min(1);
    for (seat, second) in seats.iter().zip([3, 2, 1, 1]) {
        seat.serves(second * SECOND);
    }
    seats[3].busy();
    let asker = world.ask("c", 2);
    world.answers.take();
    let others = world.handle.displace_from_card(asker.key(), Cause::Load, |others| (vec![seats[1].key()], others));
    let keys = |which: &[usize]| which.iter().map(|at| seats[*at].key()).collect::<Vec<_>>();
    assert_eq!((others.idle, others.kept, others.recent), (keys(&[1, 0]), keys(&[2]), vec![]));
    assert_eq!(others.hoped, keys(&[1, 0, 3]), "what is idle, then what may become so");
    let told = Told::Displaced { by: "c".into(), purpose: Purpose::First, room: Room::Card };
    assert_eq!(world.told(), [(seats[1].key(), told)]);
    let again = world.handle.displace_from_card(asker.key(), Cause::Load, |others| (vec![], others));
    assert_eq!((again.leaving, again.idle), (keys(&[1]), keys(&[0])), "it is promised once");
    let gone = asker.key();
    drop(asker);
    assert!(world.handle.displace_from_card(gone, Cause::Load, |others| (vec![], others)).idle.is_empty());
}

#[tokio::test]
async fn answers_are_carried_into_the_inbox() {
    let World { handle, answers, inbox, mut heard } = World::new(10);
    let carrier = tokio::spawn(async move { answers.carry(Watchdog::default().pulse("capacity")).await });
    let resources = Resources { memory: ByteSize::from_gib(1), ..Resources::default() };
    let mut seats = Vec::new();
    // More than fit into the inbox at a time.
    for _ in 0..50 {
        seats.push(handle.ask(Applicant {
            model: "a",
            resources: &resources,
            zygote: None,
            min: 0,
            cause: Cause::Load,
            inbox: inbox.clone(),
        }));
    }
    for seat in &seats {
        let Some(Message::Capacity(key, _)) = heard.recv().await else { panic!("another message") };
        assert_eq!(key, seat.key());
    }
    carrier.abort();
}
