//! Properties of the history: bounds, sums that are kept, averages, time that jumps.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;

fn key(card: Option<u32>, model: usize) -> LaneKey {
    LaneKey { card, model: format!("m{model}") }
}

/// Values of a lane in a span, one for each step.
fn values(history: &History, span: Span, at: f64, lane: &LaneKey) -> Vec<Sample> {
    let json: Value = serde_json::to_value(history.encoded(span, at, 0)).unwrap();
    let lanes = json["lanes"].as_array().unwrap();
    let Some(found) = lanes
        .iter()
        .find(|found| found["model"] == lane.model.as_str() && found["card"].as_u64() == lane.card.map(u64::from))
    else {
        return Vec::new();
    };
    let expand = |runs: &Value| -> Vec<u32> {
        let runs: Vec<u32> = serde_json::from_value(runs.clone()).unwrap();
        runs.chunks(2).flat_map(|run| std::iter::repeat_n(run[0], run[1] as usize)).collect()
    };
    let [a, b, c, d] = [0, 1, 2, 3].map(|at| expand(&found["values"][at]));
    assert_eq!(a.len() as u64, json["steps"].as_u64().unwrap());
    (0..a.len()).map(|at| [a[at], b[at], c[at], d[at]]).collect()
}

proptest! {
    #[test]
    fn sums_are_kept_and_averages_are_between_the_extremes(
        points in vec((0_u64..1000, 0_u64..1000, 0_u64..50, 0_u64..50), 1..600),
    ) {
        let mut history = History::default();
        let lane = key(Some(0), 1);
        for (second, (a, b, c, d)) in points.iter().enumerate() {
            history.record(second as f64, [(lane.clone(), [*a, *b, *c, *d])]);
        }
        // An end without further values closes the last step of both levels.
        let end = points.len() as f64 + 240.0;
        history.record(end, []);
        for span in Span::ALL {
            let samples = values(&history, span, end, &lane);
            let sum = |at: usize| samples.iter().map(|sample| u64::from(sample[at])).sum::<u64>();
            prop_assert_eq!(sum(2), points.iter().map(|point| point.2).sum::<u64>());
            prop_assert_eq!(sum(3), points.iter().map(|point| point.3).sum::<u64>());
            let most = points.iter().map(|point| point.0).max().unwrap();
            prop_assert!(samples.iter().all(|sample| u64::from(sample[0]) <= most));
        }
    }

    #[test]
    fn memory_is_bounded_whatever_comes(
        moments in vec((0_u32..200_000, vec((0_u32..3, 0_usize..2000, 0_u64..u64::MAX), 0..20)), 1..80),
    ) {
        let mut history = History::default();
        for (at, points) in moments {
            let points = points.into_iter().map(|(card, model, value)| {
                (key((card > 0).then_some(card), model), [value, value, value, value])
            });
            history.record(f64::from(at), points);
            prop_assert!(history.lanes.len() <= LANES);
            for (axis, resolution) in history.axes.iter().zip(RESOLUTIONS) {
                prop_assert!(axis.observed().len() <= resolution.steps);
            }
            for series in history.lanes.values() {
                for (level, resolution) in RESOLUTIONS.iter().enumerate() {
                    prop_assert!(series.samples(level, 0).count() <= resolution.steps);
                }
            }
        }
    }
}

#[test]
fn a_day_of_each_second_is_kept_for_a_day() {
    let mut history = History::default();
    let lane = key(None, 1);
    let day = 24 * 3600;
    for second in 0..=day {
        history.record(f64::from(second), [(lane.clone(), [100, 0, 1, 0])]);
    }
    let samples = values(&history, Span::Day, f64::from(day), &lane);
    assert_eq!(samples.len(), 720);
    assert_eq!(samples.iter().map(|sample| sample[2]).sum::<u32>(), 86_400, "every request of the day");
    assert!(samples.iter().all(|sample| sample[0] == 100));
    let hour = values(&history, Span::Hour, f64::from(day), &lane);
    assert_eq!((hour.len(), hour.iter().map(|sample| sample[2]).sum::<u32>()), (360, 3600));
    // A quiet day later nothing is left.
    for minute in 0..=1442 {
        history.record(f64::from(day + 1 + minute * 60), []);
    }
    assert_eq!(history.lanes.len(), 0);
}

#[test]
fn many_lanes_share_one_place_and_lose_nothing() {
    let mut history = History::default();
    let all = 3 * LANES;
    history.record(0.0, (0..all).map(|model| (key(Some(0), model), [1, 0, 1, 0])));
    history.record(10.0, []);
    assert!(history.lanes.len() <= LANES);
    let requests: u32 = history.lanes.values().map(|series| series.last(0)[2]).sum();
    assert_eq!(requests as usize, all);
}

#[test]
fn steps_without_a_moment_are_marked() {
    let mut history = History::default();
    let lane = key(Some(0), 1);
    history.record(0.0, [(lane.clone(), [8, 0, 0, 0])]);
    history.record(35.0, [(lane.clone(), [8, 0, 0, 0])]);
    history.record(30.0, [(lane.clone(), [8, 0, 0, 0])]); // a clock that goes back
    assert!(history.record(40.0, []));
    let json = serde_json::to_value(history.encoded(Span::Hour, 41.0, 1_000_000)).unwrap();
    assert_eq!(json["observed"], serde_json::json!([1, 1, 0, 2, 1, 1]));
    assert_eq!(json["end_ms"], 999_000);
    let averages: Vec<u32> = values(&history, Span::Hour, 41.0, &lane).iter().map(|sample| sample[0]).collect();
    assert_eq!(averages, [8, 0, 0, 8]);
}

#[test]
fn the_bound_is_as_documented() {
    let lane = RESOLUTIONS.iter().map(|resolution| resolution.steps).sum::<usize>() * size_of::<Sample>();
    assert_eq!((lane, LANES * lane), (17_280, 8_847_360));
}
