//! A single generation with one instance at a time: start, work, idle stop, death, back-off, commands.

use super::*;

#[test]
fn a_regular_stop_has_a_reason() {
    let ready = || Table::ready(settings());
    assert_eq!(ready().reasons(Event::Stop), [(A, StopReason::Held)]);
    assert_eq!(ready().reasons(Event::Restart), [(A, StopReason::Restarted)]);
    assert_eq!(ready().reasons(Event::Removed), [(A, StopReason::Removed)]);
    assert_eq!(ready().reasons(Event::Displaced(A)), [(A, StopReason::Displaced)]);
    assert_eq!(ready().reasons(Event::Unresponsive(A)), [], "it did not do well");
    let mut table = ready();
    table.now = settings().idle_timeout;
    assert_eq!(table.reasons(Event::Tick), [(A, StopReason::Idle)]);
    assert_eq!(table.reasons(Event::Stop), [], "once");
    let mut table = ready();
    table.feed(content(NEW, settings()));
    table.feed(Event::Prepared(NEW));
    assert_eq!(table.reasons(Event::Ready(B)), [(A, StopReason::Replaced)]);
}

#[test]
fn a_model_starts_with_its_first_request_and_stops_when_idle() {
    let mut table = Table::new(settings());
    assert_eq!(table.fleet.state(), ModelState::Stopped);
    assert_eq!(table.at(0, Event::Demand), [Action::Prepare(OLD)]);
    assert_eq!(table.fleet.state(), ModelState::Preparing);
    assert_eq!(table.at(1, Event::Prepared(OLD)), [start(A, OLD)]);
    assert_eq!(table.fleet.state(), ModelState::Starting);
    assert_eq!(table.at(2, Event::Ready(A)), [Action::RecordReady(OLD), Action::EnableRoute(A)]);
    assert_eq!(table.fleet.state(), ModelState::Ready);
    assert_eq!(table.at(2, Event::Busy(A)), []);
    assert_eq!(table.fleet.wake_at(), None, "a busy model has no idle end");
    assert_eq!(table.at(5, Event::Idle(A)), []);
    assert_eq!(table.fleet.wake_at(), Some(605 * SECOND));
    assert_eq!(table.at(604, Event::Tick), [], "too early");
    assert_eq!(table.at(605, Event::Tick), [Action::DisableRoute(A), Action::Stop(A)]);
    assert_eq!(table.fleet.state(), ModelState::Draining);
    assert!(table.fleet.stop_was_requested(A));
    assert_eq!(table.at(606, Event::Gone(A)), []);
    assert_eq!((table.fleet.state(), table.fleet.wake_at()), (ModelState::Stopped, None));
    assert_eq!(table.fleet.deaths(), 0, "a wanted end is no death");
    assert_eq!(table.at(700, Event::Demand), [Action::Prepare(OLD)], "its environment may have been swept away");
}

#[test]
fn without_idle_time_it_stops_as_soon_as_nothing_is_in_flight_but_not_before_its_first_request() {
    let mut table = Table::ready(Settings { idle_timeout: Duration::ZERO, ..settings() });
    assert_eq!(table.feed(Event::Tick), [], "what it was started for is about to reach it");
    assert_eq!(table.fleet.wake_at(), Some(FIRST_USE_GRACE));
    table.feed(Event::Busy(A));
    assert_eq!(table.at(5, Event::Idle(A)), []);
    assert_eq!(table.fleet.wake_at(), Some(5 * SECOND));
    assert_eq!(table.feed(Event::Tick), [Action::DisableRoute(A), Action::Stop(A)]);
}

#[test]
fn the_first_death_restarts_at_once_the_next_ones_wait_and_refuse() {
    let mut table = Table::ready(settings());
    assert_eq!(table.at(10, Event::Gone(A)), [Action::Prepare(OLD)]);
    table.feed(Event::Prepared(OLD));
    table.at(11, Event::Ready(B));
    assert_eq!(table.at(12, Event::Gone(B)), [Action::RefuseWaiting]);
    assert!(table.fleet.refuses_requests());
    assert_eq!(table.fleet.state(), ModelState::Failed);
    assert_eq!(table.feed(Event::Demand), [Action::RefuseWaiting]);
    assert_eq!(table.fleet.wake_at(), Some(Duration::from_millis(12_500)));
    assert_eq!(table.at(13, Event::Tick), [Action::Prepare(OLD)], "though nobody waits: it served");
    assert_eq!(table.fleet.deaths(), 2);
}

#[test]
fn content_that_cannot_work_is_not_tried_again_until_somebody_changes_something() {
    for permanent in [Event::ContentRejected(A), Event::PrepareFailed { generation: OLD, permanent: true }] {
        for change in [content(NEW, settings()), content(OLD, settings()), Event::Start, Event::Restart] {
            let mut table = Table::new(settings());
            table.feed(Event::Demand);
            if permanent == Event::ContentRejected(A) {
                table.feed(Event::Prepared(OLD));
                table.feed(permanent);
                assert_eq!(table.at(1, Event::Gone(A)), [Action::RefuseWaiting]);
            } else {
                assert_eq!(table.at(1, permanent), [Action::RefuseWaiting]);
            }
            assert_eq!(table.fleet.start_state(OLD), Some(StartState::Refused));
            assert_eq!((table.fleet.state(), table.fleet.wake_at()), (ModelState::Failed, None));
            assert_eq!(table.at(2, Event::Demand), [Action::RefuseWaiting]);
            let actions = table.at(3, change);
            let serving = table.fleet.serving().expect("something");
            assert!(actions.contains(&Action::Prepare(serving)), "{change:?}: {actions:?}");
        }
    }
}

#[test]
fn requests_beyond_the_drain_are_cancelled_then_the_instance_is_killed() {
    let mut table = Table::ready(settings());
    table.at(5, Event::Busy(A));
    assert_eq!(table.at(6, Event::Stop), [Action::DisableRoute(A), Action::RefuseWaiting]);
    assert_eq!(table.at(36, Event::Tick), [Action::CancelInFlight(A), Action::Stop(A)]);
    assert_eq!(table.at(46, Event::Tick), [Action::Kill(A)]);
    assert_eq!(table.at(56, Event::Tick), [Action::Kill(A)]);
    assert_eq!(table.at(57, Event::Gone(A)), []);
    assert!(table.fleet.held());
    assert_eq!(table.fleet.state(), ModelState::Stopped);
    assert_eq!(table.at(58, Event::Demand), [Action::RefuseWaiting]);
    assert_eq!(table.at(59, Event::Start), [Action::Prepare(OLD)]);
}

#[test]
fn an_instance_that_finishes_within_the_drain_is_stopped() {
    let mut table = Table::ready(settings());
    table.at(5, Event::Busy(A));
    table.at(6, Event::Stop);
    assert_eq!(table.phase(A), Phase::Draining { until: 36 * SECOND });
    assert_eq!(table.at(7, Event::Idle(A)), [Action::Stop(A)]);
}

#[test]
fn a_start_that_hangs_is_killed_and_counts_as_a_death_and_is_not_replaced_before_it_is_gone() {
    let mut table = Table::new(up_to(2));
    table.feed(Event::Demand);
    table.feed(Event::Prepared(OLD));
    assert_eq!(table.at(120, Event::Tick), [Action::Kill(A)]);
    assert!(!table.fleet.stop_was_requested(A));
    assert_eq!(table.at(121, Event::Gone(A)), [Action::Prepare(OLD)]);
    assert_eq!(table.fleet.deaths(), 1);
}

#[test]
fn an_unresponsive_instance_is_replaced() {
    let mut table = Table::ready(settings());
    table.feed(Event::Busy(A));
    assert_eq!(table.at(1, Event::Unresponsive(A)), [Action::DisableRoute(A), Action::Kill(A)]);
    assert_eq!(table.feed(Event::Demand), [], "it waits for the next one");
    assert_eq!(table.at(2, Event::Gone(A)), [Action::Prepare(OLD)]);
    assert_eq!(table.fleet.deaths(), 1);
}

#[test]
fn a_removed_model_ends_its_task_once_its_instances_are_gone() {
    let mut table = Table::ready(settings());
    let actions = table.at(5, Event::Removed);
    assert_eq!(actions, [Action::DisableRoute(A), Action::Stop(A), Action::RefuseWaiting]);
    assert_eq!(table.at(6, Event::Gone(A)), [Action::Forget(OLD), Action::End]);
    let actions = Table::new(settings()).feed(Event::Removed);
    assert_eq!(actions, [Action::Forget(OLD), Action::RefuseWaiting, Action::End]);
}

#[test]
fn a_removed_model_that_comes_back_begins_with_what_it_is_then() {
    let mut table = Table::ready(settings());
    table.feed(Event::Removed);
    assert_eq!(table.at(1, content(NEW, settings())), [Action::Serve(NEW)], "the old one is not to serve again");
    assert_eq!(table.at(2, Event::Gone(A)), [Action::Forget(OLD)]);
}

#[test]
fn a_request_for_a_model_on_its_way_down_starts_it_again() {
    let mut table = Table::ready(settings());
    table.at(700, Event::Tick);
    assert_eq!(table.feed(Event::Demand), [], "one at a time");
    assert_eq!(table.at(701, Event::Gone(A)), [start(B, OLD)]);
}

#[test]
fn a_start_in_the_middle_of_a_stop_starts_again() {
    let mut table = Table::ready(settings());
    table.at(5, Event::Stop);
    assert_eq!(table.feed(Event::Start), []);
    assert_eq!(table.at(6, Event::Gone(A)), [start(B, OLD)]);
}

#[test]
fn restart_replaces_every_instance_and_brings_up_a_model_that_rests() {
    let mut table = Table::ready(up_to(2));
    table.feed(Event::DesiredInstances(2));
    table.feed(Event::Ready(B));
    table.feed(Event::Busy(A));
    let actions = table.at(1, Event::Restart);
    assert_eq!(actions, [Action::DisableRoute(A), Action::DisableRoute(B), Action::Stop(B)]);
    assert_eq!(table.at(2, Event::Gone(B)), [start(C, OLD)]);
    assert_eq!(table.at(3, Event::Ready(C)), [Action::EnableRoute(C)]);
    assert_eq!(table.at(4, Event::Idle(A)), [Action::Stop(A)]);
    assert_eq!(table.at(5, Event::Gone(A)), [start(D, OLD)]);
    assert_eq!(table.fleet.deaths(), 0);

    let mut table = Table::new(settings());
    table.feed(Event::Stop);
    assert_eq!(table.feed(Event::Restart), [Action::Prepare(OLD)]);
}

#[test]
fn a_lost_launcher_is_asked_again_and_what_waits_waits_on() {
    let mut table = Table::new(settings());
    table.feed(Event::Demand);
    assert_eq!(table.feed(Event::LauncherLost), []);
    assert_eq!(table.fleet.wake_at(), Some(LAUNCHER_RETRY));
    assert_eq!(table.at(1, Event::Tick), [Action::Prepare(OLD)]);
    table.feed(Event::Prepared(OLD));
    assert_eq!(table.feed(Event::LauncherLost), [], "a start may have happened");
    assert_eq!(table.feed(Event::Ready(A)), [Action::RecordReady(OLD), Action::EnableRoute(A)]);
}

#[test]
fn held_state_and_deaths_of_an_earlier_scheduler_hold() {
    let mut table = Table { fleet: Fleet::new(true, 7), now: Moment::ZERO };
    assert_eq!(table.feed(content(OLD, Settings { min: 1, ..settings() })), [Action::Serve(OLD)], "it is held");
    assert_eq!((table.fleet.held(), table.fleet.deaths()), (true, 7));
    assert_eq!(table.feed(Event::Start), [Action::Prepare(OLD)]);
}

#[test]
fn a_launcher_that_is_away_costs_nobody_a_life() {
    let mut table = Table::new(settings());
    assert_eq!(table.feed(Event::Demand), [Action::Prepare(OLD)]);
    for second in 1..20 {
        assert_eq!(
            table.feed(Event::LauncherUnavailable { generation: OLD, instance: None }),
            [],
            "what waits waits on"
        );
        assert_eq!(table.at(second, Event::Tick), [Action::Prepare(OLD)]);
    }
    assert_eq!(table.feed(Event::Prepared(OLD)), [start(A, OLD)]);
    assert_eq!(table.feed(Event::LauncherUnavailable { generation: OLD, instance: Some(A) }), []);
    assert_eq!((table.fleet.phase(A), table.fleet.deaths()), (None, 0));
    assert_eq!(table.at(20, Event::Tick), [Action::Prepare(OLD)]);
    assert_eq!(table.feed(Event::Prepared(OLD)), [start(B, OLD)]);
    assert_eq!(table.feed(Event::Gone(B)), [Action::Prepare(OLD)], "a first death: at once again");
}

#[test]
fn an_environment_is_not_waited_for_in_vain() {
    let preparing = || {
        let mut table = Table::new(settings());
        assert_eq!(table.at(0, Event::Demand), [Action::Prepare(OLD)]);
        table
    };
    let mut stopped = preparing();
    assert_eq!(stopped.feed(Event::Stop), [Action::CancelPreparation(OLD), Action::RefuseWaiting]);
    assert_eq!(stopped.feed(Event::PrepareFailed { generation: OLD, permanent: true }), [], "too late to matter");
    assert_eq!(stopped.feed(Event::Start), [Action::Prepare(OLD)], "it is asked for anew");
    assert_eq!(stopped.feed(Event::Prepared(OLD)), [start(A, OLD)]);

    let mut removed = preparing();
    let actions = removed.feed(Event::Removed);
    assert_eq!(actions, [Action::CancelPreparation(OLD), Action::Forget(OLD), Action::RefuseWaiting, Action::End]);

    let mut changed = preparing();
    let actions = changed.feed(content(NEW, settings()));
    assert!(
        actions.starts_with(&[Action::Serve(NEW), Action::Prepare(NEW), Action::CancelPreparation(OLD)]),
        "{actions:?}"
    );
}

#[test]
fn a_timed_out_preparation_is_repeated_only_after_its_pause() {
    let mut table = Table::new(settings());
    table.at(0, Event::Demand);
    let late = Event::PrepareTimedOut { generation: OLD, after: Duration::from_secs(900) };
    assert_eq!(table.at(10, late), [Action::RefuseWaiting]);
    assert_eq!(table.fleet.state(), ModelState::Failed);
    assert_eq!(table.at(500, Event::Demand), [Action::RefuseWaiting], "a request does not hasten it");
    assert_eq!(table.at(909, Event::Tick), []);
    assert_eq!(table.at(910, Event::Tick), [Action::Prepare(OLD)]);
}
