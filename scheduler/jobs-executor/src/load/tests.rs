//! Tables of loads: of one model, and of models on cards.

use super::*;

const IDLE: Instances = Instances { queued: 0, per_instance: 4, ready: 1, most: 2 };

fn span() -> Span {
    let since = Instant::now();
    Span { since, now: since + Duration::from_secs(60), idle: Duration::from_secs(10) }
}

fn interactive(open: u32, cards: Cards) -> Interactive {
    Interactive { open, last_end: None, cards }
}

fn on(cards: &[u32]) -> Cards {
    Cards::On(cards.iter().copied().collect())
}

#[test]
fn loads_of_one_model() {
    let load = |open, instances| {
        let load = load(&[interactive(open, Cards::None)], 0, instances, span()).unwrap();
        assert_eq!((load.idle_for, load.idle_seats), (Duration::from_secs(60), load.seats));
        (load.waiting, load.in_flight, load.seats, load.free_seats)
    };
    assert_eq!(load(0, IDLE), (0, 0, 8, 3));
    assert_eq!(load(0, Instances { ready: 0, ..IDLE }), (0, 0, 4, 0), "its first instance");
    assert_eq!(load(0, Instances { ready: 2, ..IDLE }), (0, 0, 8, 7));
    assert_eq!(load(1, IDLE), (0, 1, 8, 1));
    assert_eq!(load(3, IDLE), (0, 3, 8, 0));
    assert_eq!(load(3, Instances { queued: 9, ..IDLE }), (3, 0, 8, 0));
    assert_eq!(load(0, Instances { queued: 9, ..IDLE }), (0, 0, 8, 3), "items of batches wait");
    assert_eq!(super::load(&[], 0, IDLE, span()), None);
}

#[test]
fn requests_to_models_on_the_same_card_are_its_load() {
    // Own cards, cards of a model with two requests in flight, whether they are the load of the own model, idle seats.
    let table = [
        ("no card, no card", Cards::None, Cards::None, false, 8),
        ("no card", Cards::None, on(&[0]), false, 8),
        ("the other has no card", on(&[0]), Cards::None, false, 8),
        ("the same card", on(&[0]), on(&[0]), true, 4),
        ("another card, which one more instance may come to", on(&[0]), on(&[1]), false, 4),
        ("one of two cards", on(&[0, 2]), on(&[1, 2]), true, 4),
        ("two cards and two others", on(&[0, 2]), on(&[1, 3]), false, 4),
        ("not placed yet", Cards::Unplaced, on(&[1]), true, 4),
        ("the other is not placed yet", on(&[0]), Cards::Unplaced, true, 4),
        ("none is placed", Cards::Unplaced, Cards::Unplaced, true, 4),
    ];
    for (name, own, other, is_load, idle_seats) in table {
        let models = [interactive(0, own), interactive(2, other)];
        let load = load(&models, 0, IDLE, span()).unwrap();
        assert_eq!((load.in_flight, load.idle_seats), (if is_load { 2 } else { 0 }, idle_seats), "{name}");
        assert_eq!((load.seats, load.free_seats), (8, if is_load { 0 } else { 3 }), "{name}");
    }
}

#[test]
fn a_card_is_idle_since_the_last_request_on_it() {
    let table = [
        ("the same card", on(&[0]), on(&[0]), 5, 4),
        ("another card", on(&[0]), on(&[1]), 60, 4),
        ("not placed yet", Cards::Unplaced, on(&[1]), 5, 4),
        ("no card", Cards::None, on(&[1]), 60, 8),
    ];
    let span = span();
    for (name, own, other, idle_for, idle_seats) in table {
        let ended = Interactive { last_end: Some(span.now - Duration::from_secs(5)), ..interactive(0, other) };
        let load = load(&[interactive(0, own), ended], 0, IDLE, span).unwrap();
        assert_eq!((load.idle_for.as_secs(), load.idle_seats), (idle_for, idle_seats), "{name}");
    }
    let ended = Interactive { last_end: Some(span.now - span.idle), ..interactive(0, on(&[1])) };
    let load = load(&[interactive(0, on(&[0])), ended], 0, IDLE, span).unwrap();
    assert_eq!(load.idle_seats, 8, "all cards are idle");
}

#[test]
fn cards_of_a_model() {
    let cards = BTreeSet::from([1, 3]);
    assert_eq!(Cards::new(false, Some(&cards)), on(&[1, 3]), "an instance of an earlier version");
    assert_eq!(Cards::new(false, None), Cards::None);
    assert_eq!(Cards::new(true, Some(&cards)), on(&[1, 3]));
    assert_eq!(Cards::new(true, Some(&BTreeSet::new())), Cards::Unplaced);
    assert_eq!(Cards::new(true, None), Cards::Unplaced);
}
