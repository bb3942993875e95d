//! Table, properties and a simulated day of the plan.

use super::*;
use proptest::prelude::*;

const HOUR: Duration = Duration::from_secs(3600);
const SETTINGS: Settings = Settings { idle: Duration::from_secs(10) };

fn idle(seats: u32) -> Load {
    Load { waiting: 0, in_flight: 0, idle_for: HOUR, seats, ready_seats: seats, idle_seats: seats, free_seats: 0 }
}

fn demand(pending: u64, hours_left: u32, item_seconds: u64) -> Demand {
    Demand {
        owner: 0,
        asked: 0,
        pending,
        in_flight: 0,
        window: HOUR * 24,
        left: HOUR * hours_left,
        item_time: Some(Duration::from_secs(item_seconds)),
    }
}

fn one(load: &Load, demand: Demand) -> (u32, u32) {
    let grants = plan(load, &[demand], &SETTINGS);
    (grants[0].seats, grants[0].aged)
}

#[test]
fn seats_follow_the_load() {
    let small = demand(100, 24, 1);
    let table = [
        ("idle", idle(8), (8, 0)),
        ("idle, but not for long enough", Load { idle_for: Duration::from_secs(9), ..idle(8) }, (0, 0)),
        ("a request waits", Load { waiting: 1, free_seats: 3, ..idle(8) }, (0, 0)),
        ("in flight, the batch full", Load { in_flight: 2, ..idle(8) }, (0, 0)),
        ("in flight, with free seats", Load { in_flight: 2, free_seats: 6, ..idle(8) }, (6, 0)),
        ("no instance", idle(0), (0, 0)),
        ("another card is in use", Load { idle_seats: 4, ..idle(8) }, (4, 0)),
    ];
    for (name, load, expected) in table {
        assert_eq!(one(&load, small), expected, "{name}");
    }
    assert_eq!(one(&idle(8), demand(3, 24, 1)), (3, 0), "never more than there is to do");
    let in_flight = Demand { in_flight: 2, ..demand(3, 24, 1) };
    assert_eq!(one(&idle(8), in_flight), (5, 0), "what is in flight has its seats");
}

#[test]
fn ageing_keeps_the_window_under_load() {
    let busy = Load { waiting: 5, in_flight: 8, ..idle(8) };
    let table = [
        ("a little work, much time", demand(100, 24, 1), (0, 0)),
        ("in the reserve", demand(100, 3, 1), (7, 7)),
        ("one item in the reserve", demand(1, 2, 1), (1, 1)),
        // 7 seats finish 88,000 items of 3 s in 10.5 h; 21 h are left without the reserve.
        ("just short of half of the time", demand(87_000, 24, 3), (0, 0)),
        ("half of the time", demand(89_000, 24, 3), (4, 4)),
        ("hopeless: all seats but one", demand(1_000_000, 24, 60), (7, 7)),
        ("never timed, new", Demand { item_time: None, ..demand(100, 24, 0) }, (0, 0)),
        ("never timed, a quarter of the window over", Demand { item_time: None, ..demand(100, 18, 0) }, (1, 1)),
        ("never timed, in the reserve", Demand { item_time: None, ..demand(100, 3, 0) }, (7, 7)),
    ];
    for (name, demand, expected) in table {
        assert_eq!(one(&busy, demand), expected, "{name}");
    }
    let in_flight = Load { waiting: 0, in_flight: 2, free_seats: 3, ..busy };
    assert_eq!(one(&in_flight, demand(100, 3, 1)), (7, 7), "the seat that is left is not taken as a free one");
    assert_eq!(one(&in_flight, demand(1, 3, 1)), (1, 1));
    let growing = Load { ready_seats: 4, ..busy };
    assert_eq!(one(&growing, demand(100, 3, 1)), (3, 3), "one of those that are there");
    let only = Load { seats: 1, ready_seats: 1, ..busy };
    assert_eq!(one(&only, demand(100, 3, 1)), (1, 1), "the only seat");
    assert_eq!(one(&idle(8), demand(89_000, 24, 3)), (8, 4), "idle seats come on top");
}

#[test]
fn batches_share_and_the_most_urgent_is_first() {
    let seats = |load: &Load, demands: &[Demand]| {
        plan(load, demands, &SETTINGS).iter().map(|grant| grant.seats).collect::<Vec<_>>()
    };
    assert_eq!(seats(&idle(5), &[demand(100, 24, 1), demand(100, 20, 1)]), [2, 3]);
    assert_eq!(seats(&idle(5), &[demand(1, 24, 1), demand(100, 20, 1)]), [1, 4]);
    assert_eq!(seats(&idle(1), &[demand(100, 24, 1), demand(100, 20, 1)]), [0, 1]);
    assert_eq!(seats(&idle(4), &[demand(9, 24, 1), demand(9, 2, 1)]), [1, 3], "an aged one before all others");
    assert_eq!(seats(&idle(4), &[]), [0; 0]);
}

fn any_load() -> impl Strategy<Value = Load> {
    (0..3_u32, 0..9_u32, 0..20_u64, 0..64_u32, (0..64_u32, 0..64_u32)).prop_map(
        |(waiting, in_flight, idle, seats, (idle_seats, free_seats))| {
            let (idle_seats, free_seats) = (idle_seats.min(seats), free_seats.min(seats));
            let idle_for = Duration::from_secs(idle);
            Load { waiting, in_flight, idle_for, seats, ready_seats: idle_seats, idle_seats, free_seats }
        },
    )
}

fn any_demand() -> impl Strategy<Value = Demand> {
    let item_time = prop_oneof![Just(None), (0..100_000_u64).prop_map(|ms| Some(Duration::from_millis(ms)))];
    let work = (0..60_000_u64, 0..64_u32, 0..3_u64, 0..3_u64);
    (work, 0..=24 * 60_u32, item_time).prop_map(|((pending, in_flight, owner, asked), minutes, item_time)| Demand {
        owner,
        asked,
        pending,
        in_flight,
        window: HOUR * 24,
        left: Duration::from_secs(60) * minutes,
        item_time,
    })
}

proptest! {
    #[test]
    fn grants_stay_within_bounds(load in any_load(), demands in proptest::collection::vec(any_demand(), 0..6)) {
        let grants = plan(&load, &demands, &SETTINGS);
        let total: u32 = grants.iter().map(|grant| grant.seats).sum();
        prop_assert!(total <= load.seats);
        for (grant, demand) in grants.iter().zip(&demands) {
            prop_assert!(grant.aged <= grant.seats && u64::from(grant.seats) <= open(demand));
        }
        let unaged: u32 = grants.iter().map(|grant| grant.seats - grant.aged).sum();
        let aged = total - unaged;
        prop_assert!(total <= aged.max(free(&load, &SETTINGS)), "beyond ageing only what is free");
        let most = if load.ready_seats > 0 { load.ready_seats.min(load.seats) } else { load.seats };
        prop_assert!(aged <= most.saturating_sub(1).max(1), "aged batches leave a seat to requests");
        if free(&load, &SETTINGS) == load.seats {
            let wanted = demands.iter().map(open).fold(0, u64::saturating_add);
            prop_assert_eq!(u64::from(total), wanted.min(u64::from(load.seats)), "an idle model has no empty seat");
        }
    }

    /// Owners with any number of batches, none of them aged, whose items end in any order: each has a seat again soon.
    #[test]
    fn no_owner_starves(
        seats in 1..4_u32, batches in proptest::collection::vec((0..4_u64, 4..24_u32), 1..12),
        ends in proptest::collection::vec(any::<prop::sample::Index>(), 60..100),
    ) {
        let of = |&(owner, hours): &(u64, u32)| Demand { owner, ..demand(1000, hours, 0) };
        let mut demands: Vec<Demand> = batches.iter().map(of).collect();
        let (mut waits, mut asks) = ([0; 4], 0);
        for end in ends {
            let grants = plan(&idle(seats), &demands, &SETTINGS);
            let mut served = [false; 4];
            for (demand, grant) in demands.iter_mut().zip(grants) {
                if grant.seats > demand.in_flight {
                    demand.in_flight = grant.seats;
                    served[demand.owner as usize] = true;
                }
            }
            asks += 1;
            let in_flight = |owner| demands.iter().any(|demand| demand.owner == owner && demand.in_flight > 0);
            for owner in 0..4 {
                waits[owner as usize] = if in_flight(owner) { 0 } else { waits[owner as usize] + 1 };
            }
            for demand in demands.iter_mut().filter(|demand| served[demand.owner as usize]) {
                demand.asked = asks;
            }
            prop_assert!(demands.iter().map(|demand| demand.in_flight).sum::<u32>() <= seats, "never beyond the seats");
            for (owner, waited) in waits.iter().enumerate() {
                let wants = demands.iter().any(|demand| demand.owner == owner as u64);
                prop_assert!(!wants || *waited <= 4, "{waits:?}");
            }
            // The item that has run longest may be of any owner: one of those with the most seats ends.
            let most = demands.iter().map(|demand| demand.in_flight).max().unwrap_or_default();
            let running: Vec<usize> = (0..demands.len()).filter(|at| demands[*at].in_flight == most).collect();
            demands[*end.get(&running)].in_flight -= 1;
        }
    }

    /// The need is judged within one effective time, where more time is never more seats: beyond half of it, none.
    #[test]
    fn less_time_is_never_fewer_seats_and_more_work_neither(
        demand in any_demand(), seats in 1..64_u32, minutes in 0..600_u32, more in 0..10_000_u64,
    ) {
        let later = Demand { left: demand.left.saturating_sub(Duration::from_secs(60) * minutes), ..demand };
        prop_assert!(aged(&later, seats) >= aged(&demand, seats));
        let larger = Demand { pending: demand.pending + more, ..demand };
        prop_assert!(aged(&larger, seats) >= aged(&demand, seats));
    }

    /// A model that is never idle: a batch that all seats could do in half of the window is done within the window,
    /// with estimates that are up to a tenth too short.
    #[test]
    fn the_window_is_kept_without_any_idle_time(
        seats in 1..32_u32, item_ms in 200..60_000_u64, share in 1..=100_u64, error in 90..=100_u64,
    ) {
        let window = HOUR * 24;
        let most = u64::try_from(window.as_millis()).unwrap() / 2 * u64::from(seats.saturating_sub(1).max(1)) / item_ms;
        let mut open = (most * share / 100).clamp(1, 50_000) * 1000; // thousandths of items
        let load = Load { waiting: 3, in_flight: seats, ..idle(seats) };
        let step = Duration::from_secs(60);
        let mut left = window;
        while open > 0 && !left.is_zero() {
            let item_time = Some(Duration::from_millis(item_ms * error / 100));
            let pending = open.div_ceil(1000);
            let demand = Demand { owner: 0, asked: 0, pending, in_flight: 0, window, left, item_time };
            let granted = plan(&load, &[demand], &SETTINGS)[0].seats;
            open = open.saturating_sub(60_000 * 1000 * u64::from(granted) / item_ms);
            left = left.saturating_sub(step);
        }
        prop_assert_eq!(open, 0);
    }
}
