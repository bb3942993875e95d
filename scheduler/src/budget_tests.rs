//! Memory for bodies: who has room, who gives way, and what one share leaves to the others.

use super::*;

/// Twice as much, so that a share that is alone has `limit`.
fn share(limit: u64) -> Arc<Share> {
    Budget::new(2 * limit, 2, BodyMetrics::default()).share()
}

fn is_given_up(client: &Debtor) -> bool {
    client.is_given_up(&Context::from_waker(Waker::noop()))
}

#[test]
fn a_share_has_half_of_what_the_others_leave() {
    let now = Instant::now();
    let budget = Budget::new(100, 8, BodyMetrics::default());
    let shares: Vec<_> = (0..4).map(|_| budget.share()).collect();
    let mut held: Vec<_> = shares.iter().map(|share| share.request()).collect();
    for (held, most) in held.iter_mut().zip([50, 25, 13, 6]) {
        assert!(!held.grow(most + 1, now) && held.grow(most, now) && !held.grow(1, now), "{most}");
    }
    assert_eq!(budget.lent(), 94);
    held.remove(0);
    assert!(held[1].grow(12, now), "the room of one that has gone is shared anew");
    let places: Vec<_> = std::iter::repeat_with(|| shares[0].upload()).map_while(|place| place).collect();
    let others: Vec<_> = std::iter::repeat_with(|| shares[1].upload()).map_while(|place| place).collect();
    assert_eq!((places.len(), others.len()), (4, 2));
    drop(places);
    assert!(shares[1].upload().is_some());
}

#[test]
fn slow_readers_of_another_share_give_way_too() {
    let now = Instant::now();
    let budget = Budget::new(100, 1, BodyMetrics::default());
    let (slow, other) = (budget.share(), budget.share());
    let client = Arc::new(Debtor::default());
    let answer = slow.answer(50, now).unwrap();
    answer.owed_by(&client);
    assert!(!other.has(26, now));
    let held = other.answer(26, now + PATIENCE).unwrap();
    assert!(is_given_up(&client));
    assert_eq!((budget.lent(), slow.lent.load(Ordering::Relaxed)), (26, 0));
    drop((answer, held));
    assert_eq!((budget.lent(), other.lent.load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn requests_are_refused_what_is_not_there() {
    let (share, now) = (share(10), Instant::now());
    let mut held = share.request();
    assert!(held.grow(6, now));
    assert!(!held.grow(5, now) && share.has(4, now) && !share.has(5, now));
    assert!(held.grow(4, now));
    assert_eq!((held.bytes(), share.budget.lent()), (10, 10));
    assert!(share.answer(1, now).is_none());
    drop(held);
    assert_eq!(share.budget.lent(), 0);
    assert!(!share.request().grow(u64::MAX, now));
}

#[test]
fn who_takes_an_answer_slowly_gives_way_and_the_longest_first() {
    let (share, now) = (share(10), Instant::now());
    let clients: Vec<_> = (0..3).map(|_| Arc::new(Debtor::default())).collect();
    let lent: Vec<_> = (0..3)
        .map(|n| {
            let answer = share.answer(3, now + Duration::from_millis(n)).unwrap();
            answer.owed_by(&clients[n as usize]);
            answer
        })
        .collect();
    assert!(share.answer(3, now + PATIENCE - Duration::from_millis(1)).is_none(), "they may be quick yet");
    let given_up = || clients.iter().map(|client| is_given_up(client)).collect::<Vec<_>>();
    assert!(share.answer(8, now + PATIENCE + Duration::from_millis(1)).is_none(), "the third is younger");
    assert_eq!(given_up(), [false; 3], "nobody is given up in vain");
    let fourth = share.answer(3, now + PATIENCE).unwrap();
    assert_eq!((given_up(), share.budget.lent()), (vec![true, false, false], 9));
    let mut body = share.request();
    assert!(body.grow(4, now + 2 * PATIENCE), "a request's body has the same right");
    assert_eq!((given_up(), share.budget.lent()), (vec![true, true, false], 10));
    assert!(clients.iter().all(|client| client.owes()), "their memory goes with their connections");
    drop(lent);
    assert!(!clients.iter().any(|client| client.owes() || is_given_up(client)), "a next answer has a time of its own");
    assert_eq!(share.budget.lent(), 7, "what was given up is not given back twice");
    let BodyMetrics { held, refused, given_up, .. } = &share.budget.metrics;
    assert_eq!((held.get(), refused.get(), given_up.get()), (7, 2, 2));
    drop((fourth, body));
    assert_eq!(share.budget.lent(), 0);
}

#[test]
fn an_answer_that_no_connection_has_yet_stays() {
    let (share, now) = (share(10), Instant::now());
    let answer = share.answer(10, now).unwrap();
    assert!(share.answer(1, now + 2 * PATIENCE).is_none());
    let client = Arc::new(Debtor::default());
    answer.owed_by(&client);
    answer.owed_by(&Arc::default());
    let larger_than_all = share.answer(11, now + 2 * PATIENCE);
    assert!(is_given_up(&client) && share.budget.lent() == 10);
    drop(larger_than_all);
    assert_eq!(share.budget.lent(), 0);
}
