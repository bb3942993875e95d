//! Generated worlds in which everything goes wrong, and generated nonsense.

use super::world::{Faults, Happening, Nature, World};
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Debug, Clone)]
struct Plan {
    contents: Vec<(Nature, Settings)>,
    seats: u32,
    faults: Faults,
    adopted: Vec<(usize, bool)>,
    /// Generation that the persisted state names as the last one that served.
    served: Option<usize>,
    /// The directory is known before the instances are found.
    content_first: bool,
    /// After how many milliseconds, what.
    script: Vec<(u64, Happening)>,
    seed: u64,
}

fn contents() -> impl Strategy<Value = Vec<(Nature, Settings)>> {
    let nature = prop_oneof![
        6 => Just(Nature::Works),
        1 => Just(Nature::NoEnvironment),
        1 => Just(Nature::NoImport),
        1 => Just(Nature::Hangs),
        1 => Just(Nature::Crashes),
    ];
    let idle = prop_oneof![Just(0), Just(5), Just(600)];
    let settings = (0_u32..3, 1_u32..4, idle).prop_map(|(min, max, idle)| Settings {
        min: min.min(max),
        max,
        idle_timeout: idle * SECOND,
        startup: 20 * SECOND,
        drain: SECOND,
        request: 3 * SECOND,
    });
    prop::collection::vec((nature, settings), 4)
}

fn happenings() -> impl Strategy<Value = Happening> {
    prop_oneof![
        6 => (0_usize..4).prop_map(Happening::Content),
        1 => Just(Happening::Bad),
        12 => (1_usize..6).prop_map(Happening::Requests),
        1 => Just(Happening::LauncherLost),
        1 => Just(Happening::Displace),
        1 => Just(Happening::Start),
        1 => Just(Happening::Stop),
        1 => Just(Happening::Restart),
        1 => Just(Happening::Pull),
        2 => (0_usize..4).prop_map(Happening::RollBack),
        1 => (0_u32..5).prop_map(Happening::Seats),
    ]
}

fn faults() -> impl Strategy<Value = Faults> {
    let rare = || prop_oneof![Just(0.0), 0.0..0.4];
    (rare(), rare(), rare(), rare()).prop_map(|(prepare, start, request, stop)| Faults {
        prepare,
        start,
        request,
        stop,
    })
}

fn plans() -> impl Strategy<Value = Plan> {
    let adopted = prop_oneof![
        2 => Just(Vec::new()),
        1 => prop::collection::vec((0_usize..2, prop::bool::weighted(0.7)), 1..4),
    ];
    let pause = prop_oneof![3 => 0_u64..500, 3 => 0_u64..5000, 1 => 0_u64..60_000];
    let script = prop::collection::vec((pause, happenings()), 1..60);
    let served = prop_oneof![3 => Just(None), 1 => (0_usize..4).prop_map(Some)];
    (contents(), 0_u32..6, faults(), adopted, served, any::<bool>(), script, any::<u64>()).prop_map(
        |(contents, seats, faults, adopted, served, content_first, script, seed)| Plan {
            contents,
            seats,
            faults,
            adopted,
            served,
            content_first,
            script,
            seed,
        },
    )
}

/// Everything goes wrong, for as long as the script is.
fn run(plan: &Plan) -> World {
    let mut contents = plan.contents.clone();
    contents.push((Nature::Works, contents[0].1)); // comes in the end
    let mut world = World::new(contents, plan.seats, plan.faults, plan.seed);
    let first = Happening::Content(plan.adopted.first().map_or(0, |(content, _)| *content));
    if plan.content_first {
        world.plan(Moment::ZERO, first);
        world.run(Moment::ZERO);
    }
    if let Some(content) = plan.served {
        world.served(content);
    }
    for (content, ready) in &plan.adopted {
        world.adopt(*content, *ready);
    }
    world.plan(Moment::ZERO, first);
    let mut now = Moment::ZERO;
    for (pause, what) in &plan.script {
        now += Duration::from_millis(*pause);
        world.plan(now, *what);
    }
    world.run(now);
    world
}

/// From now on nothing goes wrong any more.
fn be_kind(world: &mut World) {
    world.faults = Faults::default();
    let now = world.now;
    world.plan(now, Happening::Seats(100));
    let works = |content: &usize| world.nature(*content) == Nature::Works;
    let pinned = world.fleet.candidate().or(world.fleet.serving()).map(|generation| world.numbers[&generation]);
    let last = world.directory.filter(works).filter(|_| pinned.as_ref().is_some_and(works)).unwrap_or(4);
    world.plan(now, Happening::Content(last));
    if world.fleet.held() {
        world.plan(now, Happening::Start);
    }
    for count in 0..20 {
        world.plan(now + count * 15 * SECOND, Happening::Requests(1));
    }
    world.run(now + 400 * SECOND);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// The world checks every action and every step while it runs.
    #[test]
    fn desired_instances_get_ready_and_unneeded_ones_end(plan in plans()) {
        let mut world = run(&plan);
        be_kind(&mut world);
        let (refused, before) = (world.refused, world.answered.len());
        let now = world.now;
        world.plan(now, Happening::Requests(3));
        world.run(now + 100 * SECOND);
        prop_assert_eq!(world.answered.len(), before + 3, "requests that nobody answered; state {:?}", world.fleet);
        prop_assert_eq!(world.refused, refused);
        let serving = world.fleet.serving().map(|generation| world.numbers[&generation]);
        let newest = world.answered.last_key_value().map(|(_, content)| *content);
        prop_assert_eq!(serving, newest);
        prop_assert!(world.fleet.candidate().is_none(), "it did not get ready: {:?}", world.fleet);

        world.remove();
        world.run(world.now + 200 * SECOND);
        prop_assert!(world.ended && world.fakes.is_empty() && world.numbers.is_empty(), "{:?}", world.fleet);
    }

    #[test]
    fn the_same_events_lead_to_the_same_actions(plan in plans()) {
        prop_assert_eq!(run(&plan).log, run(&plan).log);
    }

    /// Events in any order, from a world that keeps no promise.
    #[test]
    fn nonsense_does_no_harm(script in prop::collection::vec((nonsense(), 0_u64..3000), 1..300)) {
        let mut fleet = Fleet::new(false, 0);
        let mut now = Moment::ZERO;
        let mut lanes = BTreeMap::new();
        for (mut event, pause) in script {
            now += Duration::from_millis(pause);
            if let Event::Adopted { instance, .. } = &mut event {
                *instance = fleet.next_number(); // the one promise
            }
            let actions = fleet.step(&event, now, 0.5);
            lanes.retain(|instance, _| fleet.phase(*instance).is_some());
            for action in actions {
                match action {
                    Action::Start { .. } => prop_assert!(!fleet.held()),
                    Action::EnableRoute(instance) => {
                        prop_assert!(lanes.insert(instance, fleet.serving()).is_none());
                    }
                    Action::Leaving { instance, .. } => prop_assert!(fleet.phase(instance).is_some()),
                    Action::DisableRoute(instance) => prop_assert!(lanes.remove(&instance).is_some()),
                    Action::CancelInFlight(instance) | Action::Stop(instance) | Action::Kill(instance) => {
                        prop_assert!(fleet.phase(instance).is_some() && !lanes.contains_key(&instance));
                    }
                    Action::End => prop_assert_eq!(fleet.instances().count(), 0),
                    Action::Forget(generation) => {
                        prop_assert!(fleet.instances().all(|(_, other, _)| other != generation));
                    }
                    Action::Prepare(_)
                    | Action::CancelPreparation(_)
                    | Action::Serve(_)
                    | Action::RecordReady(_)
                    | Action::RefuseWaiting => {}
                }
            }
            prop_assert!(lanes.values().all(|generation| *generation == fleet.serving()));
            if event == Event::Tick {
                prop_assert!(fleet.wake_at().is_none_or(|wake| wake > now), "a wake that changes nothing");
            }
        }
    }
}

fn nonsense() -> impl Strategy<Value = Event> {
    let generation = || (1_u32..5).prop_map(Generation);
    let instance = || (1_u32..12).prop_map(InstanceNumber);
    let settings = || {
        (0_u32..3, 1_u32..4, 0_u32..20).prop_map(|(min, max, idle)| Settings {
            min,
            max,
            idle_timeout: idle * SECOND,
            ..settings()
        })
    };
    prop_oneof![
        4 => (generation(), settings(), any::<bool>())
            .prop_map(|(generation, settings, was_ready)| Event::Content { generation, settings, was_ready }),
        1 => Just(Event::UnservableContent),
        1 => Just(Event::Removed),
        6 => Just(Event::Demand),
        4 => (0_u32..6).prop_map(Event::DesiredInstances),
        4 => instance().prop_map(Event::Busy),
        4 => instance().prop_map(Event::Idle),
        12 => generation().prop_map(Event::Prepared),
        2 => (generation(), any::<bool>())
            .prop_map(|(generation, permanent)| Event::PrepareFailed { generation, permanent }),
        1 => (generation(), 0_u64..100)
            .prop_map(|(generation, after)| Event::PrepareTimedOut { generation, after: Duration::from_secs(after) }),
        2 => instance().prop_map(Event::Placed),
        2 => (instance(), any::<bool>(), any::<bool>()).prop_map(|(instance, permanent, recreate_fits)| {
            Event::NoCapacity { instance, permanent, recreate_fits: recreate_fits && !permanent }
        }),
        1 => Just(Event::CapacityFreed),
        1 => instance().prop_map(Event::Displaced),
        1 => (generation(), prop::option::of(instance()))
            .prop_map(|(generation, instance)| Event::LauncherUnavailable { generation, instance }),
        10 => instance().prop_map(Event::Ready),
        1 => instance().prop_map(Event::ContentRejected),
        2 => (instance(), generation(), settings(), any::<bool>()).prop_map(
            |(instance, generation, settings, ready)| {
                Event::Adopted { instance, generation, settings, ready, was_ready: false }
            }
        ),
        1 => (generation(), settings()).prop_map(|(generation, settings)| Event::LastServed { generation, settings }),
        4 => instance().prop_map(Event::Gone),
        1 => instance().prop_map(Event::Unresponsive),
        2 => (instance(), any::<bool>(), any::<bool>())
            .prop_map(|(instance, other_requests, free_slots)| Event::StuckHandlers { instance, other_requests, free_slots }),
        1 => instance().prop_map(Event::Recovered),
        1 => Just(Event::LauncherLost),
        1 => Just(Event::Start),
        1 => Just(Event::Stop),
        1 => Just(Event::Restart),
        1 => (generation(), settings()).prop_map(|(generation, settings)| Event::RollBack { generation, settings }),
        6 => Just(Event::Tick),
    ]
}
