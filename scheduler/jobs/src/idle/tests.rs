//! Table, properties and a simulated day of the plan.

use super::*;
use proptest::prelude::*;

const HOUR: Duration = Duration::from_secs(3600);
const SETTINGS: Settings = Settings { idle: Duration::from_secs(10) };

fn idle(seats: u32) -> Load {
    Load { waiting: 0, in_flight: 0, idle_for: HOUR, seats, free_seats: 0 }
}

fn demand(pending: u64, hours_left: u32, item_seconds: u64) -> Demand {
    Demand {
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
        ("in the reserve", demand(100, 3, 1), (8, 8)),
        ("one item in the reserve", demand(1, 2, 1), (1, 1)),
        // 8 seats finish 100,000 items of 3 s in 10.4 h; 21 h are left without the reserve.
        ("just short of half of the time", demand(100_000, 24, 3), (0, 0)),
        ("half of the time", demand(100_000, 23, 3), (5, 5)),
        ("hopeless: all seats", demand(1_000_000, 24, 60), (8, 8)),
        ("never timed, new", Demand { item_time: None, ..demand(100, 24, 0) }, (0, 0)),
        ("never timed, a quarter of the window over", Demand { item_time: None, ..demand(100, 18, 0) }, (1, 1)),
        ("never timed, in the reserve", Demand { item_time: None, ..demand(100, 3, 0) }, (8, 8)),
    ];
    for (name, demand, expected) in table {
        assert_eq!(one(&busy, demand), expected, "{name}");
    }
    assert_eq!(one(&idle(8), demand(100_000, 23, 3)), (8, 5), "idle seats come on top");
}

#[test]
fn batches_share_and_the_most_urgent_is_first() {
    let seats = |load: &Load, demands: &[Demand]| {
        plan(load, demands, &SETTINGS).iter().map(|grant| grant.seats).collect::<Vec<_>>()
    };
    assert_eq!(seats(&idle(5), &[demand(100, 24, 1), demand(100, 20, 1)]), [2, 3]);
    assert_eq!(seats(&idle(5), &[demand(1, 24, 1), demand(100, 20, 1)]), [1, 4]);
    assert_eq!(seats(&idle(1), &[demand(100, 24, 1), demand(100, 20, 1)]), [0, 1]);
    assert_eq!(seats(&idle(4), &[demand(9, 24, 1), demand(9, 2, 1)]), [0, 4], "an aged one before all others");
    assert_eq!(seats(&idle(4), &[]), [0; 0]);
}

fn any_load() -> impl Strategy<Value = Load> {
    (0..3_u32, 0..9_u32, 0..20_u64, 0..64_u32, 0..64_u32).prop_map(|(waiting, in_flight, idle, seats, free_seats)| {
        Load { waiting, in_flight, idle_for: Duration::from_secs(idle), seats, free_seats: free_seats.min(seats) }
    })
}

fn any_demand() -> impl Strategy<Value = Demand> {
    let item_time = prop_oneof![Just(None), (0..100_000_u64).prop_map(|ms| Some(Duration::from_millis(ms)))];
    (0..60_000_u64, 0..64_u32, 0..=24 * 60_u32, item_time).prop_map(|(pending, in_flight, minutes, item_time)| Demand {
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
        prop_assert!(unaged <= free(&load, &SETTINGS), "beyond ageing only what is free");
        if free(&load, &SETTINGS) == load.seats {
            let wanted = demands.iter().map(open).fold(0, u64::saturating_add);
            prop_assert_eq!(u64::from(total), wanted.min(u64::from(load.seats)), "an idle model has no empty seat");
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
        let most = u64::try_from(window.as_millis()).unwrap() / 2 * u64::from(seats) / item_ms;
        let mut open = (most * share / 100).clamp(1, 50_000) * 1000; // thousandths of items
        let load = Load { waiting: 3, in_flight: seats, ..idle(seats) };
        let step = Duration::from_secs(60);
        let mut left = window;
        while open > 0 && !left.is_zero() {
            let item_time = Some(Duration::from_millis(item_ms * error / 100));
            let demand = Demand { pending: open.div_ceil(1000), in_flight: 0, window, left, item_time };
            let granted = plan(&load, &[demand], &SETTINGS)[0].seats;
            open = open.saturating_sub(60_000 * 1000 * u64::from(granted) / item_ms);
            left = left.saturating_sub(step);
        }
        prop_assert_eq!(open, 0);
    }
}
