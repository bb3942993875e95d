//! Whole lives as tables, and generated sequences that must keep the invariants of the header.

use super::*;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

fn settings() -> Settings {
    Settings { always_on: false, idle_timeout: 600 * SECOND, startup: 120 * SECOND, drain: 30 * SECOND }
}

fn run(life: &mut Lifecycle, script: &[(u64, Event)]) -> Vec<Action> {
    script.iter().flat_map(|(at, event)| life.step(event, Duration::from_secs(*at), 1.0)).collect()
}

fn seen() -> Lifecycle {
    let mut life = Lifecycle::new(settings());
    assert_eq!(life.step(&Event::Content(settings()), Duration::ZERO, 0.5), []);
    life
}

fn ready() -> Lifecycle {
    let mut life = seen();
    run(&mut life, &[(0, Event::Demand), (0, Event::Prepared), (1, Event::Ready)]);
    assert!(matches!(life.phase(), Phase::Ready { .. }));
    life
}

#[test]
fn a_model_starts_with_its_first_request_and_stops_when_idle() {
    let mut life = seen();
    assert_eq!(run(&mut life, &[(0, Event::Demand)]), [Action::Prepare]);
    assert_eq!(run(&mut life, &[(1, Event::Prepared)]), [Action::StartInstance]);
    assert_eq!(run(&mut life, &[(2, Event::Ready)]), [Action::Open]);
    assert_eq!(run(&mut life, &[(2, Event::Busy)]), []);
    assert_eq!(life.wake_at(), None, "a busy model has no idle end");
    assert_eq!(run(&mut life, &[(5, Event::Idle)]), []);
    assert_eq!(life.wake_at(), Some(605 * SECOND));
    assert_eq!(run(&mut life, &[(604, Event::Tick)]), [], "too early");
    assert_eq!(run(&mut life, &[(605, Event::Tick)]), [Action::Close, Action::StopInstance]);
    assert_eq!(run(&mut life, &[(606, Event::Gone)]), [Action::Close]);
    assert_eq!(life.phase(), &Phase::Stopped);
    assert_eq!(life.deaths(), 0, "a wanted end is no death");
}

#[test]
fn the_first_death_restarts_at_once_the_next_ones_wait_and_refuse() {
    let mut life = ready();
    assert_eq!(run(&mut life, &[(10, Event::Gone)]), [Action::Close, Action::Prepare]);
    run(&mut life, &[(10, Event::Prepared), (11, Event::Ready)]);
    assert_eq!(run(&mut life, &[(12, Event::Gone)]), [Action::Close, Action::RefuseWaiting]);
    assert!(life.refuses());
    assert_eq!(run(&mut life, &[(12, Event::Demand)]), [Action::RefuseWaiting]);
    assert_eq!(life.wake_at(), Some(Duration::from_millis(12_500)));
    assert_eq!(run(&mut life, &[(13, Event::Tick)]), [Action::Prepare]);
    assert_eq!(life.deaths(), 2);
}

#[test]
fn content_that_cannot_work_is_not_tried_again_until_it_changes() {
    let mut life = seen();
    run(&mut life, &[(0, Event::Demand), (0, Event::Prepared), (1, Event::EngineRefused)]);
    assert_eq!(run(&mut life, &[(1, Event::Gone)]), [Action::RefuseWaiting]);
    assert_eq!(life.phase(), &Phase::Refused);
    assert_eq!(life.wake_at(), None);
    assert_eq!(run(&mut life, &[(2, Event::Demand)]), [Action::RefuseWaiting]);
    run(&mut life, &[(3, Event::Content(settings()))]);
    run(&mut life, &[(4, Event::Demand), (4, Event::Prepared)]);
    assert!(matches!(life.phase(), Phase::Starting { .. }));
}

#[test]
fn changed_content_drains_and_starts_again() {
    let mut life = ready();
    run(&mut life, &[(5, Event::Busy)]);
    assert_eq!(run(&mut life, &[(6, Event::Content(settings()))]), [Action::Close]);
    assert_eq!(run(&mut life, &[(7, Event::Idle)]), [Action::StopInstance]);
    assert_eq!(run(&mut life, &[(8, Event::Gone)]), [Action::Close, Action::Prepare]);
}

#[test]
fn what_does_not_finish_within_the_drain_is_cancelled_then_killed() {
    let mut life = ready();
    run(&mut life, &[(5, Event::Busy), (6, Event::Stop)]);
    assert_eq!(run(&mut life, &[(36, Event::Tick)]), [Action::CancelInFlight, Action::StopInstance]);
    assert_eq!(run(&mut life, &[(46, Event::Tick)]), [Action::Close, Action::KillInstance]);
    assert_eq!(run(&mut life, &[(47, Event::Gone)]), [Action::Close]);
    assert!(life.held());
    assert_eq!(run(&mut life, &[(48, Event::Demand)]), [Action::RefuseWaiting, Action::RefuseWaiting]);
    assert_eq!(run(&mut life, &[(49, Event::Start)]), [Action::Prepare]);
}

#[test]
fn a_start_that_hangs_is_killed_and_counts_as_a_death() {
    let mut life = seen();
    run(&mut life, &[(0, Event::Demand), (0, Event::Prepared)]);
    assert_eq!(run(&mut life, &[(120, Event::Tick)]), [Action::Close, Action::KillInstance]);
    assert_eq!(run(&mut life, &[(121, Event::Gone)]), [Action::Close, Action::Prepare]);
    assert_eq!(life.deaths(), 1);
}

#[test]
fn a_removed_model_ends_its_task_once_its_instance_is_gone() {
    let mut life = ready();
    assert_eq!(run(&mut life, &[(5, Event::Removed)]), [Action::RefuseWaiting, Action::Close, Action::StopInstance]);
    assert_eq!(run(&mut life, &[(6, Event::Gone)]), [Action::Close, Action::End]);
    assert_eq!(run(&mut seen(), &[(0, Event::Removed)]), [Action::RefuseWaiting, Action::End]);
}

#[test]
fn an_adopted_instance_serves_on_unless_its_content_is_old() {
    let mut life = seen();
    assert_eq!(run(&mut life, &[(0, Event::Adopted { ready: true, current: true })]), [Action::Open]);
    let mut life = seen();
    let actions = run(&mut life, &[(0, Event::Adopted { ready: true, current: false })]);
    assert_eq!(actions, [Action::Open, Action::Close, Action::StopInstance]);
    assert_eq!(run(&mut life, &[(1, Event::Gone)]), [Action::Close, Action::Prepare]);
}

#[test]
fn a_request_for_a_model_on_its_way_down_starts_it_again() {
    let mut life = ready();
    run(&mut life, &[(700, Event::Tick), (700, Event::Demand)]);
    assert_eq!(run(&mut life, &[(701, Event::Gone)]), [Action::Close, Action::Prepare]);
}

#[test]
fn a_start_in_the_middle_of_a_stop_starts_again() {
    let mut life = ready();
    run(&mut life, &[(5, Event::Stop), (5, Event::Start)]);
    assert_eq!(run(&mut life, &[(6, Event::Gone)]), [Action::Close, Action::Prepare]);
}

#[test]
fn the_wait_for_a_place_is_not_the_models_own_time() {
    let mut life = seen();
    run(&mut life, &[(0, Event::Demand), (0, Event::Prepared)]);
    assert_eq!(life.wake_at(), Some(120 * SECOND));
    run(&mut life, &[(100, Event::Placed)]);
    assert_eq!(life.wake_at(), Some(220 * SECOND));
    assert_eq!(run(&mut life, &[(101, Event::Ready)]), [Action::Open]);
}

#[test]
fn without_a_place_it_pauses_and_asks_again_at_its_next_request() {
    let mut life = seen();
    run(&mut life, &[(0, Event::Demand), (0, Event::Prepared)]);
    assert_eq!(run(&mut life, &[(1, Event::NoPlace { hopeless: false })]), [Action::RefuseWaiting]);
    assert!(life.refuses() && life.lacks_place());
    assert_eq!(run(&mut life, &[(2, Event::Demand)]), [Action::RefuseWaiting]);
    assert_eq!(run(&mut life, &[(3, Event::Tick)]), [], "nobody asks");
    assert!(*life.phase() == Phase::Stopped && !life.lacks_place());
    assert_eq!(run(&mut life, &[(9, Event::Demand)]), [Action::Prepare]);
    assert_eq!(life.deaths(), 0);

    assert_eq!(life.wake_at(), None);
}

/// Kept without requests, it asks of itself, at growing pauses; a request in one of them asks at once.
#[test]
fn one_that_is_always_on_asks_for_a_place_until_it_has_one() {
    const NO_PLACE: Event = Event::NoPlace { hopeless: false };
    let mut life = Lifecycle::new(settings());
    let always_on = Settings { always_on: true, ..settings() };
    run(&mut life, &[(0, Event::Content(always_on)), (0, Event::Prepared)]);
    assert!(!life.asks_again());
    let mut now = 0;
    for pause in [2, 4, 8, 16, 30, 30] {
        assert_eq!(run(&mut life, &[(now, NO_PLACE)]), [Action::RefuseWaiting]);
        assert!(life.refuses() && life.asks_again());
        if pause > 2 {
            assert_eq!(run(&mut life, &[(now + 2, Event::Tick)]), []);
            assert!(*life.phase() == Phase::Stopped && !life.refuses(), "a request would ask");
            assert_eq!(run(&mut life, &[(now + pause - 1, Event::Tick)]), [], "too early");
        }
        now += pause;
        assert_eq!(life.wake_at(), Some(Duration::from_secs(now)));
        assert_eq!(run(&mut life, &[(now, Event::Tick)]), [Action::Prepare]);
        assert_eq!(run(&mut life, &[(now, Event::Prepared)]), [Action::StartInstance]);
    }
    run(&mut life, &[(now, NO_PLACE), (now + 2, Event::Tick)]);
    assert_eq!(run(&mut life, &[(now + 3, Event::Demand)]), [Action::Prepare]);
    assert_eq!(run(&mut life, &[(now + 3, Event::Prepared)]), [Action::StartInstance]);
    assert_eq!(run(&mut life, &[(now + 3, Event::Placed), (now + 4, Event::Ready)]), [Action::Open]);
    assert!(!life.asks_again(), "the next refusal is the first one again");
    assert_eq!(life.deaths(), 0);
}

#[test]
fn one_that_is_not_wanted_any_more_asks_for_no_place() {
    let always_on = Settings { always_on: true, ..settings() };
    for end in [Event::Stop, Event::Removed, Event::BadContent] {
        let mut life = Lifecycle::new(settings());
        run(
            &mut life,
            &[(0, Event::Content(always_on)), (0, Event::Prepared), (0, Event::NoPlace { hopeless: false })],
        );
        assert!(life.asks_again());
        run(&mut life, &[(1, end)]);
        assert_eq!((life.phase(), life.wake_at(), life.asks_again()), (&Phase::Stopped, None, false));
    }
}

#[test]
fn a_model_that_no_card_fits_waits_for_somebody_to_change_it() {
    let mut life = seen();
    run(&mut life, &[(0, Event::Demand), (0, Event::Prepared)]);
    assert_eq!(run(&mut life, &[(1, Event::NoPlace { hopeless: true })]), [Action::RefuseWaiting]);
    assert!(*life.phase() == Phase::Refused && life.lacks_place() && life.wake_at().is_none());
    assert_eq!(run(&mut life, &[(2, Event::Demand)]), [Action::RefuseWaiting]);
    assert_eq!(run(&mut life, &[(3, Event::Stop)]), [Action::RefuseWaiting]);
    assert!(!life.lacks_place(), "a person's word is the reason now");
    assert_eq!(run(&mut life, &[(4, Event::Start)]), [Action::Prepare]);
}

#[test]
fn one_that_was_displaced_rests_until_its_next_request() {
    let mut life = ready();
    assert_eq!(run(&mut life, &[(5, Event::Displaced)]), [Action::Close, Action::StopInstance]);
    assert_eq!(run(&mut life, &[(6, Event::Gone)]), [Action::Close]);
    assert_eq!((life.phase(), life.deaths()), (&Phase::Stopped, 0));
    let mut life = ready();
    run(&mut life, &[(5, Event::Displaced), (5, Event::Demand)]);
    assert_eq!(run(&mut life, &[(6, Event::Gone)]), [Action::Close, Action::Prepare]);
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        Just(Event::Content(settings())),
        Just(Event::BadContent),
        Just(Event::Removed),
        Just(Event::Demand),
        Just(Event::Busy),
        Just(Event::Idle),
        Just(Event::Prepared),
        any::<bool>().prop_map(|permanent| Event::PrepareFailed { permanent }),
        Just(Event::StartFailed),
        Just(Event::Placed),
        any::<bool>().prop_map(|hopeless| Event::NoPlace { hopeless }),
        Just(Event::Displaced),
        Just(Event::Ready),
        Just(Event::EngineRefused),
        Just(Event::Gone),
        Just(Event::Unresponsive),
        Just(Event::LauncherLost),
        Just(Event::Start),
        Just(Event::Stop),
        Just(Event::Restart),
        Just(Event::Tick),
    ]
}

proptest! {
    #[test]
    fn one_instance_at_most_and_never_one_that_nobody_ends(script in prop::collection::vec((events(), 0_u64..200), 1..300)) {
        let mut life = Lifecycle::new(settings());
        let (mut alive, mut open, mut now) = (false, false, 0);
        for (event, pause) in script {
            now += pause;
            // The outside keeps its word: it reports an end only of an instance that exists.
            match event {
                Event::Gone | Event::StartFailed | Event::NoPlace { .. } if !alive => continue,
                Event::Placed | Event::Displaced if !alive => continue,
                Event::Ready | Event::EngineRefused | Event::Unresponsive if !alive => continue,
                _ => {}
            }
            if matches!(event, Event::Gone | Event::StartFailed | Event::NoPlace { .. }) {
                alive = false;
                open = false;
            }
            for action in life.step(&event, Duration::from_secs(now), 0.5) {
                match action {
                    Action::StartInstance => {
                        prop_assert!(!alive, "two instances");
                        prop_assert!(!life.held() && !life.removed && life.servable);
                        alive = true;
                    }
                    Action::Open => { prop_assert!(alive && !open); open = true; }
                    Action::Close => open = false,
                    Action::StopInstance | Action::KillInstance => prop_assert!(alive, "an end for nobody"),
                    Action::CancelInFlight => prop_assert!(alive),
                    Action::End => prop_assert!(!alive, "a task that leaves its instance behind"),
                    Action::Prepare | Action::RefuseWaiting => {}
                }
            }
            let has = matches!(
                life.phase(),
                Phase::Starting { .. } | Phase::Ready { .. } | Phase::Draining { .. } | Phase::Stopping { .. }
            );
            prop_assert_eq!(has, alive, "phase {:?}", life.phase());
            let takes = matches!(life.phase(), Phase::Ready { .. });
            prop_assert!(takes || !open);
            let waits = has && !takes || matches!(life.phase(), Phase::Waiting { .. });
            prop_assert!(!waits || life.wake_at().is_some(), "nobody ends this phase");
        }
    }
}
