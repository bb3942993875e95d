//! Loads over time as tables, and generated ones against a list of all that was said.

use super::*;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);
const MANY: Bounds = Bounds { min: 0, max: 1000, concurrency: 1 };

fn ms(ms: u64) -> Moment {
    Duration::from_millis(ms)
}

/// A life: from each moment on, in milliseconds, that load.
fn loaded(script: &[(u64, u32)]) -> Demand {
    let mut demand = Demand::default();
    for (at, load) in script {
        demand.observe(*load, ms(*at));
    }
    demand
}

/// How many are wanted at these moments, in milliseconds.
fn wanted(demand: &Demand, bounds: Bounds, at: &[u64]) -> Vec<u32> {
    at.iter().map(|at| demand.wanted(ms(*at), bounds)).collect()
}

#[test]
fn the_first_request_wants_one_at_once() {
    assert_eq!(Demand::default().wanted(SECOND, MANY), 0);
    let demand = loaded(&[(5000, 1)]);
    assert_eq!(wanted(&demand, MANY, &[5000, 5001, 60_000]), [1, 1, 1]);
}

#[test]
fn a_load_that_stays_is_wanted_in_full_within_two_seconds() {
    let demand = loaded(&[(10_000, 4)]);
    assert_eq!(wanted(&demand, MANY, &[10_000, 10_400, 10_600, 11_000, 11_400, 11_600, 12_100]), [1, 1, 2, 2, 3, 4, 4]);
    let of_sixteen = Bounds { concurrency: 16, ..MANY };
    assert_eq!(wanted(&demand, of_sixteen, &[12_000]), [1]);
    let demand = loaded(&[(0, 33)]);
    assert_eq!(wanted(&demand, of_sixteen, &[900, 1000, 1900, 2100]), [1, 2, 2, 3]);
}

#[test]
fn a_short_burst_wants_no_more_than_one() {
    let demand = loaded(&[(10_000, 10), (10_150, 0)]);
    assert_eq!(wanted(&demand, MANY, &[10_150, 11_000, 39_000]), [1, 1, 1]);
}

/// A queue that is being emptied wants only as many as it still has.
#[test]
fn ended_load_needs_no_instance() {
    let mut demand = loaded(&[(0, 100)]);
    demand.observe(3, ms(100));
    assert_eq!(wanted(&demand, MANY, &[100, 150, 2000]), [5, 5, 5], "an average of 5, once");
    assert_eq!(wanted(&demand, MANY, &[35_000]), [3]);
}

#[test]
fn wanted_instances_are_kept_for_half_a_minute() {
    let demand = loaded(&[(0, 3), (10_500, 0)]);
    assert_eq!(wanted(&demand, MANY, &[10_500, 40_400, 40_999, 41_000, 90_000]), [3, 3, 3, 0, 0]);
    let demand = loaded(&[(0, 3), (10_000, 1)]);
    assert_eq!(wanted(&demand, MANY, &[40_000, 41_000]), [3, 1]);
    // The load comes back in between.
    let demand = loaded(&[(0, 3), (10_000, 0), (30_000, 2), (33_000, 0)]);
    assert_eq!(wanted(&demand, MANY, &[40_999, 41_000, 63_999, 64_000]), [3, 2, 2, 0]);
}

#[test]
fn the_manifest_has_the_last_word() {
    let demand = loaded(&[(0, 5)]);
    for (min, max, at_five, at_none) in [(0, 3, 3, 0), (2, 8, 5, 2), (6, 8, 6, 6), (0, 1, 1, 0)] {
        let bounds = Bounds { min, max, concurrency: 1 };
        assert_eq!(demand.wanted(5 * SECOND, bounds), at_five, "{bounds:?}");
        assert_eq!(Demand::default().wanted(5 * SECOND, bounds), at_none, "{bounds:?}");
    }
}

#[test]
fn the_number_is_explained() {
    let reason = |script: &[(u64, u32)], at, min, max| {
        let bounds = Bounds { min, max, concurrency: 1 };
        let explanation = loaded(script).explain(ms(at), bounds);
        assert_eq!(explanation.wanted, loaded(script).wanted(ms(at), bounds));
        explanation.reason
    };
    assert_eq!(reason(&[], 9000, 0, 4), ScalingReason::Min);
    assert_eq!(reason(&[(0, 2)], 9000, 2, 4), ScalingReason::Min);
    assert_eq!(reason(&[(0, 2)], 9000, 0, 4), ScalingReason::Load);
    assert_eq!(reason(&[(0, 4)], 9000, 0, 4), ScalingReason::Load);
    assert_eq!(reason(&[(0, 5)], 9000, 0, 4), ScalingReason::Max);
    assert_eq!(reason(&[(0, 2), (5000, 1)], 9000, 0, 4), ScalingReason::RecentLoad);
    let explanation = loaded(&[(0, 2), (9000, 1)]).explain(ms(10_000), MANY);
    assert_eq!((explanation.load, explanation.average, explanation.greatest), (1, 1.5, 2.0));
}

#[test]
fn the_policy_wakes_only_while_the_number_can_change() {
    let demand = loaded(&[(0, 2)]);
    assert_eq!(demand.wake_at(ms(10), MANY), Some(ms(100)));
    assert_eq!(demand.wake_at(ms(10), Bounds { max: 1, ..MANY }), None);
    assert_eq!(demand.wake_at(ms(10), Bounds { min: 2, ..MANY }), None);
    assert_eq!(demand.wake_at(ms(2000), MANY), None, "it is wanted in full");
    let demand = loaded(&[(0, 2), (9500, 0)]);
    assert_eq!(demand.wake_at(ms(9500), MANY), Some(ms(40_000)));
    assert_eq!(demand.wake_at(ms(40_000), MANY), None);
    assert_eq!(demand.wake_at(ms(9500), Bounds { min: 2, ..MANY }), None);
}

#[test]
fn the_largest_loads_and_longest_times_are_counted() {
    let mut demand = Demand::default();
    let year = Duration::from_hours(24 * 365);
    demand.observe(u32::MAX, SECOND);
    demand.observe(u32::MAX, year);
    assert_eq!(demand.wanted(year * 2, Bounds { min: 0, max: 1024, concurrency: 1024 }), 1024);
    demand.observe(0, year);
    demand.observe(7, SECOND);
    assert_eq!(demand.wanted(year + 2 * SECOND, MANY), 1000, "time does not go back");
}

/// The exact integral of the load over the last [`UP`], over [`UP`].
fn average(said: &[(Moment, u32)], now: Moment) -> f64 {
    let until = said.iter().skip(1).map(|(at, _)| *at).chain([now]);
    let pieces = said.iter().zip(until).map(|((from, load), until)| {
        let from = (*from).max(now.saturating_sub(UP));
        until.saturating_sub(from).as_secs_f64() * f64::from(*load)
    });
    pieces.sum::<f64>() / UP.as_secs_f64()
}

fn loads() -> impl Strategy<Value = Vec<(u64, u32)>> {
    let pause = prop_oneof![4 => 0_u64..3_000, 4 => 0_u64..3_000_000, 1 => 0_u64..60_000_000];
    prop::collection::vec((pause, prop_oneof![2 => Just(0_u32), 5 => 0_u32..40]), 1..120)
}

proptest! {
    #[test]
    fn any_load_is_averaged_and_remembered(
        loads in loads(), concurrency in 1_u32..5, min in 0_u32..3, room in 0_u32..20,
    ) {
        let bounds = Bounds { min, max: (min + room).max(1), concurrency };
        let (mut demand, mut now) = (Demand::default(), Duration::ZERO);
        let (mut said, mut needed) = (vec![(Duration::ZERO, 0)], vec![(Duration::ZERO, 0)]);
        for (pause, load) in loads {
            now += Duration::from_micros(pause);
            for load in [said.last().unwrap().1, load] {
                demand.observe(load, now);
                said.push((now, load));
                let explanation = demand.explain(now, bounds);
                // Within the far step the load is taken to be even.
                let highest = said.iter().rev().map(|(_, load)| *load).take(60).max().unwrap_or(0).max(40);
                let (exact, tolerance) = (average(&said, now), f64::from(highest) * 0.05);
                prop_assert!((explanation.average - exact).abs() <= tolerance, "{} {}", explanation.average, exact);

                let sustained = explanation.average.min(f64::from(load));
                // An instance is needed while there is a request; a request that took no time is not remembered.
                let present = u32::from(load > 0);
                needed.push((now, (sustained / f64::from(concurrency)).ceil() as u32));
                let within = |seconds: u64| {
                    let from = now.saturating_sub(Duration::from_secs(seconds));
                    needed.iter().filter(|(at, _)| *at >= from).map(|(_, need)| *need).max().unwrap_or(0).max(present)
                };
                let wanted = demand.wanted(now, bounds);
                let in_bounds = |need: u32| need.min(bounds.max).max(bounds.min);
                prop_assert!(wanted >= in_bounds(within(30)), "forgotten too soon");
                prop_assert!(wanted <= in_bounds(within(31)), "remembered too long");
                prop_assert_eq!(explanation.wanted, wanted);
            }
            // Until a step before it wakes, or for ever, the number stays.
            let wake = demand.wake_at(now, bounds);
            prop_assert!(wake.is_none_or(|wake| wake > now));
            let last = wake.map_or(Duration::from_secs(100), |wake| (wake - now).saturating_sub(ms(100)));
            for part in 0..40 {
                prop_assert_eq!(demand.wanted(now + last * part / 40, bounds), demand.wanted(now, bounds));
            }
        }
    }
}
