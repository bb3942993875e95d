//! Reservations of memory for bodies: refusals, evictions, and what one share leaves to the others.

use super::*;

/// The only share of a budget of twice the limit, so that it may reserve `limit`.
fn share(limit: u64) -> Arc<BudgetShare> {
    BodyBudget::new(2 * limit, 2, BodyMetrics::default()).share()
}

fn is_evicted(client: &SlowReader) -> bool {
    client.is_evicted(&Context::from_waker(Waker::noop()))
}

#[test]
fn a_share_has_half_of_what_the_others_leave() {
    let now = Instant::now();
    let budget = BodyBudget::new(100, 8, BodyMetrics::default());
    let shares: Vec<_> = (0..4).map(|_| budget.share()).collect();
    let mut held: Vec<_> = shares.iter().map(|share| share.body()).collect();
    for (held, most) in held.iter_mut().zip([50, 25, 13, 6]) {
        assert!(!held.grow(most + 1, now) && held.grow(most, now) && !held.grow(1, now), "{most}");
    }
    assert_eq!(budget.reserved(), 94);
    held.remove(0);
    assert!(held[1].grow(12, now), "what a dropped permit had is shared anew");
    let places: Vec<_> = std::iter::repeat_with(|| shares[0].upload()).map_while(|place| place).collect();
    let others: Vec<_> = std::iter::repeat_with(|| shares[1].upload()).map_while(|place| place).collect();
    assert_eq!((places.len(), others.len()), (4, 2));
    drop(places);
    assert!(shares[1].upload().is_some());
}

#[test]
fn slow_readers_of_another_share_are_evicted_too() {
    let now = Instant::now();
    let budget = BodyBudget::new(100, 1, BodyMetrics::default());
    let (slow, other) = (budget.share(), budget.share());
    let client = Arc::new(SlowReader::default());
    let answer = slow.response(50, now).unwrap();
    answer.assign(&client);
    assert!(!other.has_room(26, now));
    let held = other.response(26, now + READ_GRACE).unwrap();
    assert!(is_evicted(&client));
    assert_eq!((budget.reserved(), slow.reserved.load(Ordering::Relaxed)), (26, 0));
    drop((answer, held));
    assert_eq!((budget.reserved(), other.reserved.load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn memory_moves_to_another_share_that_has_room() {
    let now = Instant::now();
    let budget = BodyBudget::new(100, 1, BodyMetrics::default());
    let (arrivals, model) = (budget.share(), budget.share());
    let reserved = || [&arrivals, &model].map(|share| share.reserved.load(Ordering::Relaxed));
    let (mut first, mut second) = (arrivals.body(), arrivals.body());
    assert!(first.grow(40, now) && first.move_to(&model, now) && first.move_to(&model, now));
    assert_eq!((reserved(), budget.reserved()), ([0, 40], 40));
    assert!(second.grow(20, now) && !second.move_to(&model, now), "the model has half at most");
    assert_eq!((reserved(), budget.reserved(), second.bytes()), ([20, 40], 60, 20));
    drop(first);
    assert!(second.move_to(&model, now) && second.grow(30, now));
    assert_eq!(reserved(), [0, 50]);
    drop(second);
    assert_eq!((reserved(), budget.reserved()), ([0, 0], 0));
}

#[test]
fn a_request_without_room_is_refused() {
    let (share, now) = (share(10), Instant::now());
    let mut held = share.body();
    assert!(held.grow(6, now));
    assert!(!held.grow(5, now) && share.has_room(4, now) && !share.has_room(5, now));
    assert!(held.grow(4, now));
    assert_eq!((held.bytes(), share.budget.reserved()), (10, 10));
    assert!(share.response(1, now).is_none());
    drop(held);
    assert_eq!(share.budget.reserved(), 0);
    assert!(!share.body().grow(u64::MAX, now));
}

#[test]
fn slow_readers_are_evicted_the_longest_first() {
    let (share, now) = (share(10), Instant::now());
    let clients: Vec<_> = (0..3).map(|_| Arc::new(SlowReader::default())).collect();
    let lent: Vec<_> = (0..3)
        .map(|n| {
            let answer = share.response(3, now + Duration::from_millis(n)).unwrap();
            answer.assign(&clients[n as usize]);
            answer
        })
        .collect();
    assert!(share.response(3, now + READ_GRACE - Duration::from_millis(1)).is_none(), "within the grace");
    let evicted = || clients.iter().map(|client| is_evicted(client)).collect::<Vec<_>>();
    assert!(share.response(8, now + READ_GRACE + Duration::from_millis(1)).is_none(), "the third is younger");
    assert_eq!(evicted(), [false; 3], "nothing is evicted when that would not be enough");
    let fourth = share.response(3, now + READ_GRACE).unwrap();
    assert_eq!((evicted(), share.budget.reserved()), (vec![true, false, false], 9));
    let mut body = share.body();
    assert!(body.grow(4, now + 2 * READ_GRACE), "a request's body evicts too");
    assert_eq!((evicted(), share.budget.reserved()), (vec![true, true, false], 10));
    assert!(clients.iter().all(|client| client.has_unread()), "their memory goes with their connections");
    drop(lent);
    assert!(
        !clients.iter().any(|client| client.has_unread() || is_evicted(client)),
        "a next response has a grace of its own"
    );
    assert_eq!(share.budget.reserved(), 7, "what was evicted is not released twice");
    let BodyMetrics { reserved, refused, evicted, .. } = &share.budget.metrics;
    assert_eq!((reserved.get(), refused.get(), evicted.get()), (7, 2, 2));
    drop((fourth, body));
    assert_eq!(share.budget.reserved(), 0);
}

#[test]
fn a_response_without_a_connection_is_not_evicted() {
    let (share, now) = (share(10), Instant::now());
    let answer = share.response(10, now).unwrap();
    assert!(share.response(1, now + 2 * READ_GRACE).is_none());
    let client = Arc::new(SlowReader::default());
    answer.assign(&client);
    answer.assign(&Arc::default());
    let larger_than_all = share.response(11, now + 2 * READ_GRACE);
    assert!(is_evicted(&client) && share.budget.reserved() == 10);
    drop(larger_than_all);
    assert_eq!(share.budget.reserved(), 0);
}
