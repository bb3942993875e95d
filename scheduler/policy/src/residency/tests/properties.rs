//! Generated worlds in which everything goes wrong, and generated nonsense.

use super::world::{Faults, KILL, World};
use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// The longest request, and no shorter than a start.
const LONGEST: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
struct Plan {
    budgets: Vec<u64>,
    /// Limit in tenths of the first card's budget, what of it is allocated in eighths, whether it can be moved.
    models: Vec<(u64, u64, bool)>,
    /// After how many milliseconds, whose, how many milliseconds it takes.
    requests: Vec<(u64, usize, u64)>,
    host_budget: u64,
    overcommit: f64,
    faults: Faults,
    /// Idle instances leave for those that start.
    makes_room: bool,
    seed: u64,
}

fn plans(faults: impl Strategy<Value = Faults>) -> impl Strategy<Value = Plan> {
    let models = prop::collection::vec((1_u64..=10, 0_u64..=8, prop::bool::weighted(0.85)), 2..9);
    let requests = prop::collection::vec((0_u64..800, 0_usize..8, 1_u64..2000), 1..150);
    let host = prop_oneof![2 => Just(1024_u64), 1 => 5_u64..60];
    let room = (prop_oneof![2 => Just(4.0), 1 => 1.0..2.0], any::<bool>());
    (prop::collection::vec(8_u64..24, 1..3), models, requests, host, room, faults, any::<u64>()).prop_map(
        |(budgets, models, requests, host_budget, (overcommit, makes_room), faults, seed)| Plan {
            budgets,
            models,
            requests,
            host_budget,
            overcommit,
            faults,
            makes_room,
            seed,
        },
    )
}

fn faults() -> impl Strategy<Value = Faults> {
    let rare = || prop_oneof![Just(0.0), 0.0..0.2];
    (rare(), rare(), rare(), rare(), rare(), rare()).prop_map(|(unanswered, disobey, grow, crash, cancel, others)| {
        Faults { unanswered, disobey, grow, crash, cancel, others }
    })
}

fn run(plan: &Plan) -> World {
    let settings = Settings {
        host_budget: plan.host_budget * GIB,
        overcommit: plan.overcommit,
        evict_timeout: 12 * SECOND,
        ..settings(&plan.budgets)
    };
    let mut world = World::new(settings, 4.0 * GIB as f64, plan.faults, plan.seed);
    world.makes_room = plan.makes_room;
    for (tenths, eighths, movable) in &plan.models {
        let limit = plan.budgets[0] * GIB * tenths / 10;
        let mode = if *movable { GpuMode::Unified } else { GpuMode::Device };
        world.model(limit, limit / 8 * eighths, mode);
    }
    let mut now = Moment::ZERO;
    for (pause, model, takes) in &plan.requests {
        now += Duration::from_millis(*pause);
        world.request(now, model % plan.models.len(), Duration::from_millis(*takes));
    }
    world.run();
    world
}

/// The bound of `turns`, for this many instances in all.
fn bound(settings: &Settings, instances: usize) -> Duration {
    let state = settings.quantum + LONGEST + 4 * settings.evict_timeout + KILL;
    settings.quantum + state * u32::try_from(instances).unwrap_or(u32::MAX)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// The world checks every action and every byte while it runs. It ends only when nobody waits for anything.
    #[test]
    fn every_want_is_granted_within_its_bound_and_the_budget_holds(plan in plans(Just(Faults::default()))) {
        let world = run(&plan);
        prop_assert_eq!(world.waits.len() + world.lost, plan.requests.len());
        prop_assert!(world.longest_want <= bound(world.policy.settings(), plan.models.len()));
        prop_assert!(!world.log.iter().any(|(_, action)| matches!(action, Action::End { .. })), "nobody did wrong");
    }

    #[test]
    fn with_instances_that_lie_hang_grow_and_die_nobody_else_waits_for_ever(plan in plans(faults())) {
        let world = run(&plan);
        prop_assert_eq!(world.left(), 0, "somebody still waits");
        prop_assert!(world.longest_want <= bound(world.policy.settings(), plan.models.len()));
    }

    #[test]
    fn the_same_events_lead_to_the_same_actions(plan in plans(faults())) {
        prop_assert_eq!(run(&plan).log, run(&plan).log);
    }

    /// Events in any order, from a world that keeps no promise: at worst an instance loses its place.
    #[test]
    fn nonsense_does_no_harm(script in prop::collection::vec((nonsense(), 0_u64..3000), 1..300)) {
        let mut policy = Residency::new(settings(&[10, 12]));
        let (mut usage_known, mut ordered, mut ended) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut now = Moment::ZERO;
        for (event, pause) in script {
            now += Duration::from_millis(pause);
            match &event {
                Event::Place { instance, .. } | Event::Adopted { instance, .. } => { usage_known.insert(*instance); }
                _ => {}
            }
            let before = ordered.clone();
            if let Event::Reported { instance, .. } = event { ordered.remove(&instance); }
            let actions = policy.step(&event, now);
            if let Event::Gone { instance } = event {
                for set in [&mut usage_known, &mut ordered, &mut ended] { set.remove(&instance); }
            }
            for action in actions {
                let (Action::Placed { instance, .. } | Action::Refused { instance, .. } | Action::Grant { instance, .. }
                    | Action::Yield { instance } | Action::Command { instance, .. } | Action::End { instance, .. }
                    | Action::Displace { instance, .. }) = action;
                prop_assert!(usage_known.contains(&instance), "{action:?} for nobody");
                prop_assert!(!ended.contains(&instance), "{action:?} after its end");
                match action {
                    Action::Command { .. } => prop_assert!(ordered.insert(instance), "two commands at a time"),
                    Action::End { .. } | Action::Displace { .. } => { ended.insert(instance); ordered.remove(&instance); }
                    Action::Refused { .. } => { usage_known.remove(&instance); }
                    Action::Placed { .. } | Action::Grant { .. } | Action::Yield { .. } => {}
                }
            }
            // An answer with a number that was not asked for changes nothing.
            if let Event::Reported { instance, report: Report { number: u64::MAX, .. } } = event && before.contains(&instance) {
                ordered.insert(instance);
            }
            for card in policy.cards() {
                let limits = card.instances.iter().map(|one| one.limit).sum::<u64>();
                prop_assert_eq!(card.committed, limits);
                prop_assert!(card.instances.iter().all(|one| one.resident <= one.limit && one.allocated <= one.limit));
            }
        }
    }
}

fn wild_others() -> impl Strategy<Value = Reclaimable<InstanceKey>> {
    let keys = || prop::collection::vec((1_u64..7).prop_map(InstanceKey), 0..4);
    (keys(), keys(), keys(), keys()).prop_map(|(leaving, idle, if_idle, own)| Reclaimable {
        leaving,
        idle,
        if_idle,
        own,
        ..Reclaimable::default()
    })
}

fn nonsense() -> impl Strategy<Value = Event> {
    let instance = 1_u64..7;
    let mode = prop_oneof![4 => Just(GpuMode::Unified), 1 => Just(GpuMode::Device)];
    let wild =
        (0_u64..16, 0_u64..16, 0_u64..16).prop_map(|(managed, resident, device)| usage(managed, resident, device));
    let number = prop_oneof![8 => 1_u64..60, 1 => Just(u64::MAX)];
    prop_oneof![
        3 => (instance.clone(), 1_u64..14, mode.clone())
            .prop_map(|(instance, limit, mode)| Event::Place {
                instance: InstanceKey(instance),
                limit: limit * GIB,
                mode,
                others: Reclaimable::default(),
            }),
        2 => (1_u64..7, 1_u64..14, wild_others()).prop_map(|(instance, limit, others)| Event::Place {
            instance: InstanceKey(instance),
            limit: limit * GIB,
            mode: GpuMode::Unified,
            others,
        }),
        1 => (1_u64..7, wild_others()).prop_map(|(instance, others)| Event::RetryPlacement { instance: InstanceKey(instance), others }),
        1 => (instance.clone(), prop::option::of((0_usize..3).prop_map(CardIndex)), 1_u64..14, mode, any::<bool>()).prop_map(
            |(instance, card, limit, mode, ready)| Event::Adopted { instance: InstanceKey(instance), card, limit: limit * GIB, mode, ready }
        ),
        4 => instance.clone().prop_map(|instance| Event::Ready { instance: InstanceKey(instance) }),
        4 => instance.clone().prop_map(|instance| Event::Wanted { instance: InstanceKey(instance) }),
        1 => instance.clone().prop_map(|instance| Event::Unwanted { instance: InstanceKey(instance) }),
        3 => instance.clone().prop_map(|instance| Event::Busy { instance: InstanceKey(instance) }),
        3 => instance.clone().prop_map(|instance| Event::Idle { instance: InstanceKey(instance) }),
        4 => instance.clone().prop_map(|instance| Event::Yielded { instance: InstanceKey(instance) }),
        2 => (instance.clone(), wild.clone()).prop_map(|(instance, usage)| Event::UsageSampled { instance: InstanceKey(instance), usage }),
        4 => (instance.clone(), number, wild, 0_u32..2, 0_u32..2).prop_map(
            |(instance, number, usage, error, unanswered)| Event::Reported { instance: InstanceKey(instance), report: Report { number, usage, error, unanswered } }
        ),
        1 => instance.clone().prop_map(|instance| Event::Gone { instance: InstanceKey(instance) }),
        1 => (instance, 0_u64..20, 0_u32..3)
            .prop_map(|(instance, gib, processes)| Event::Measured { instance: InstanceKey(instance), bytes: gib * GIB, processes }),
        1 => (0_usize..3, 0_u64..20).prop_map(|(card, gib)| Event::CardMeasured { card: CardIndex(card), bytes: gib * GIB }),
        3 => Just(Event::Tick),
    ]
}
