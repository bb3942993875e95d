//! Downloads that models share, wait for, take turns in, and leave.

use super::*;
use omni_config::NodeConfig;
use omni_node_protocol::launcher::WeightsRequest;

fn snapshot(number: u32) -> SnapshotDigest {
    SnapshotDigest::parse(&format!("{number:064x}")).unwrap()
}

fn environment() -> EnvironmentKey {
    EnvironmentKey::parse(&"e".repeat(64)).unwrap()
}

fn order(name: &str) -> Order {
    let config = NodeConfig::parse("[weights.sources.\"https://host\"]\n").unwrap().weights;
    let request = WeightsRequest { source: format!("https://host/{name}"), sha256: None, files: BTreeMap::new() };
    Order::new(&request, &config, 0, "boot").unwrap()
}

fn waiter(number: u32) -> Waiter {
    (format!("model-{number}"), snapshot(number))
}

fn add(fetches: &mut Fetches, name: &str, number: u32) -> Digest {
    let key = order(name).key();
    fetches.add(key.clone(), order(name), waiter(number)).unwrap();
    key
}

fn begin(fetches: &mut Fetches) -> Option<Digest> {
    fetches.begin_next(Instant::now()).map(|(key, ..)| key)
}

#[test]
fn one_run_serves_all_models_of_its_order() {
    let mut fetches = Fetches::default();
    let key = add(&mut fetches, "w", 1);
    assert_eq!(begin(&mut fetches), Some(key.clone()));
    for number in [1, 2, 3] {
        add(&mut fetches, "w", number);
    }
    assert!(begin(&mut fetches).is_none());
    assert_eq!(fetches.environment_ready(&snapshot(2), environment()), None);
    assert_eq!(fetches.environment_ready(&snapshot(9), environment()), Some(environment()));
    assert_eq!(fetches.take_changes().len(), 3);
    assert_eq!(fetches.listed(&key, 100, 60), 60);
    assert_eq!(fetches.take_changes(), [], "what is there of it is not known yet");
    fetches.fetched(&key, 40);
    let fetching = WeightsStage::Fetches { done: 40, total: 100 };
    let told = |change: &FromLauncher| matches!(change, FromLauncher::Weights { stage, .. } if *stage == fetching);
    assert!(fetches.take_changes().iter().all(told) && fetches.take_changes().is_empty());
    assert_eq!(fetches.ended(&key, RunEnd::Fetched), [waiter(1), waiter(2), waiter(3)]);
    assert_eq!(fetches.take_environment(&snapshot(2)), Some(environment()));
    assert_eq!(fetches.take_environment(&snapshot(1)), None);
}

#[test]
fn as_many_run_as_there_are_places_in_the_order_of_their_coming() {
    let mut fetches = Fetches::default();
    let keys: Vec<_> = (1..=4).map(|number| add(&mut fetches, &format!("w{number}"), number)).collect();
    let begun: Vec<_> = std::iter::from_fn(|| begin(&mut fetches)).collect();
    assert_eq!(begun, keys[..2]);
    fetches.leave(&waiter(3));
    fetches.ended(&keys[0], RunEnd::Failed);
    assert_eq!(begin(&mut fetches), Some(keys[3].clone()));
}

#[test]
fn a_run_whose_turn_is_over_makes_way_and_goes_on_behind_the_others() {
    let mut fetches = Fetches::default();
    let keys: Vec<_> = (1..=3).map(|number| add(&mut fetches, &format!("w{number}"), number)).collect();
    let begun = Instant::now();
    let after = |minutes| begun + Duration::from_mins(minutes);
    let (first, _, stop) = fetches.begin_next(begun).unwrap();
    fetches.begin_next(after(1)).unwrap();
    assert_eq!((first == keys[0], fetches.begin_next(after(1)).is_none()), (true, true));
    assert_eq!(fetches.end_turns(after(2)), Some(Duration::from_mins(28)));
    assert!(stop.check().is_ok());
    assert_eq!(fetches.end_turns(after(30)), Some(Duration::from_mins(1)));
    assert!(stop.check().unwrap_err().contains("makes way"));
    assert_eq!(fetches.ended(&first, RunEnd::Failed), [], "its models wait on");
    assert_eq!(fetches.begin_next(after(31)).map(|(key, ..)| key), Some(keys[2].clone()));
    assert_eq!(fetches.ended(&keys[1], RunEnd::Fetched), [waiter(2)]);
    let (again, _, stop) = fetches.begin_next(after(32)).unwrap();
    assert!(again == first && stop.check().is_ok());
    assert_eq!(fetches.counts.failed, 0);
    // A second turn is longer, and ends for others only.
    assert_eq!(fetches.end_turns(after(1000)), None);
    fetches.ended(&keys[2], RunEnd::Fetched);
    let late = [4, 5].map(|number| add(&mut fetches, &format!("w{number}"), number));
    assert_eq!(fetches.begin_next(after(40)).map(|(key, ..)| key), Some(late[0].clone()));
    assert_eq!(fetches.end_turns(after(70)), Some(Duration::from_mins(22)));
    // A model that leaves meanwhile ends it for good.
    assert_eq!(fetches.ended(&late[0], RunEnd::Failed), []);
    fetches.begin_next(after(71)).unwrap();
    assert_eq!(fetches.end_turns(after(100)), Some(Duration::from_mins(1)));
    fetches.leave(&waiter(1));
    assert_eq!(fetches.ended(&first, RunEnd::Failed), []);
    assert!(!fetches.running().contains(&first) && fetches.counts.cancelled == 1);
}

#[test]
fn a_run_without_models_ends_and_begins_anew_for_one_that_comes_meanwhile() {
    let mut fetches = Fetches::default();
    let key = add(&mut fetches, "w", 1);
    begin(&mut fetches).unwrap();
    fetches.environment_ready(&snapshot(1), environment());
    fetches.forget(&snapshot(1));
    assert_eq!(fetches.take_environment(&snapshot(1)), None);
    add(&mut fetches, "w", 2);
    assert_eq!(fetches.ended(&key, RunEnd::Failed), []);
    assert_eq!(begin(&mut fetches), Some(key.clone()));
    assert_eq!(fetches.ended(&key, RunEnd::Fetched), [waiter(2)]);
    assert_eq!((fetches.counts.cancelled, fetches.counts.failed, fetches.counts.fetched), (1, 0, 1));
}

#[test]
fn what_downloads_write_is_counted_once_and_never_beyond_the_whole() {
    let mut fetches = Fetches::default();
    let key = add(&mut fetches, "w", 1);
    begin(&mut fetches).unwrap();
    fetches.set_cache(7, 1000);
    let mut count = |step: &dyn Fn(&mut Fetches)| {
        step(&mut fetches);
        fetches.take_counts();
        fetches.counts.fetched_bytes
    };
    // An earlier attempt has left 30 of 100.
    count(&|fetches| {
        fetches.listed(&key, 100, 100);
    });
    let counts = [30, 50, 50, 40, 60, u64::MAX].map(|done| count(&|fetches| fetches.fetched(&key, done)));
    assert_eq!(counts, [0, 20, 20, 20, 40, 80]);
    assert_eq!(
        fetches.take_changes(),
        [FromLauncher::Weights { snapshot: snapshot(1), stage: WeightsStage::Fetches { done: 100, total: 100 } }]
    );
    // All of it anew, as it has changed.
    fetches.listed(&key, 100, 100);
    fetches.fetched(&key, 0);
    fetches.fetched(&key, 100);
    assert_eq!(fetches.ended(&key, RunEnd::Refused), [waiter(1)]);
    let counts = WeightsCounts {
        fetched_bytes: 180,
        refused: 1,
        cache_bytes: 7,
        cache_limit_bytes: 1000,
        ..WeightsCounts::default()
    };
    assert_eq!(fetches.take_counts(), Some(FromLauncher::WeightsCounts(counts)));
    assert_eq!(fetches.take_counts(), None);
    fetches.reset_sent();
    assert_eq!(fetches.take_counts(), Some(FromLauncher::WeightsCounts(counts)));
}
