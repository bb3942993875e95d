//! Tables of the supervision: every cause, every deadline.

use super::*;
use proptest::prelude::*;

const EXIT_3: i32 = 3 << 8;
const KILLED: i32 = 9;
const READY: FromEngine = FromEngine::Ready { mode: HandlerMode::Serial };

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn after(events: &[Event]) -> Instance {
    let mut instance = Instance::new();
    for event in events {
        instance.on(event.clone(), Duration::ZERO);
    }
    instance
}

#[test]
fn every_end_has_its_cause() {
    let failed = || Event::Failed("mount /usr: EPERM".into());
    let table = [
        (vec![Event::Ended(EXIT_3), Event::Gone(0)], ExitCause::Exited { code: 3 }),
        (vec![Event::Ended(KILLED), Event::Gone(0)], ExitCause::Signaled { signal: 9 }),
        (vec![Event::Ended(6), Event::Gone(0)], ExitCause::Signaled { signal: 6 }),
        (vec![Event::Ended(6 | 0x80), Event::Gone(0)], ExitCause::Signaled { signal: 6 }),
        (vec![Event::Ended(40), Event::Gone(0)], ExitCause::Signaled { signal: 40 }),
        (vec![Event::Gone(KILLED)], ExitCause::Signaled { signal: 9 }),
        (vec![Event::Unseen], ExitCause::WorkerLost),
        (vec![Event::OutOfMemory, Event::Unseen], ExitCause::OomKilled),
        (vec![Event::OutOfMemory, Event::Gone(KILLED)], ExitCause::OomKilled),
        (vec![Event::Ended(KILLED), Event::OutOfMemory, Event::Gone(0)], ExitCause::OomKilled),
        (vec![Event::Ended(EXIT_3), Event::OutOfMemory, Event::Gone(0)], ExitCause::OomKilled),
        (vec![failed(), Event::Gone(0)], ExitCause::StartFailed { message: "mount /usr: EPERM".into() }),
        (
            vec![failed(), Event::Ended(127 << 8), Event::Gone(0)],
            ExitCause::StartFailed { message: "mount /usr: EPERM".into() },
        ),
    ];
    for (events, cause) in table {
        assert_eq!(after(&events).cause(), Some(cause), "{events:?}");
    }
    let silent = after(&[Event::Gone(0)]).cause();
    assert!(matches!(silent, Some(ExitCause::StartFailed { .. })), "{silent:?}");
    assert_eq!(after(&[Event::Ended(EXIT_3)]).cause(), None, "not before everything is gone");
}

#[test]
fn a_stop_is_sent_once_and_enforced_after_the_grace() {
    let mut instance = Instance::new();
    assert_eq!(instance.on(Event::Stop { grace: ms(1000) }, ms(100)), [Action::StopEngine]);
    assert_eq!(instance.deadline(), Some(ms(1100)));
    assert_eq!(instance.on(Event::Stop { grace: ms(200) }, ms(200)), []);
    assert_eq!(instance.deadline(), Some(ms(400)), "a shorter grace counts, a longer one does not");
    instance.on(Event::Stop { grace: ms(9000) }, ms(200));
    assert_eq!(instance.on(Event::Tick, ms(399)), []);
    assert_eq!(instance.on(Event::Tick, ms(400)).first(), Some(&Action::Kill));
    assert_eq!(instance.on(Event::Tick, ms(401)), []);
}

#[test]
fn a_kill_without_effect_closes_the_meminfo_file() {
    let mut instance = Instance::new();
    assert_eq!(instance.on(Event::Kill, ms(0)), [Action::Kill]);
    assert_eq!(instance.on(Event::Kill, ms(1)), []);
    assert_eq!(instance.on(Event::Tick, KILL_PATIENCE), [Action::AbortMeminfo, Action::Kill]);
    assert_eq!(instance.on(Event::Tick, KILL_PATIENCE + ms(1)), []);
    assert_eq!(instance.on(Event::Tick, KILL_PATIENCE * 2), [Action::AbortMeminfo, Action::Kill]);
    instance.on(Event::Gone(KILLED), ms(2000));
    assert_eq!(instance.deadline(), None);
}

#[test]
fn an_engine_writes_its_stacks_before_it_is_killed() {
    for event in [Event::Kill, Event::Tick] {
        let mut instance = Instance::new();
        instance.on(Event::Executing { pid: 7 }, ms(0));
        instance.on(Event::Stop { grace: ms(50) }, ms(0));
        let ask = Action::AskForStacks { pid: 7 };
        assert_eq!(instance.on(event, ms(50)).first(), Some(&ask));
        assert_eq!(instance.deadline(), Some(ms(50) + LAST_PATIENCE));
        assert_eq!(instance.on(Event::Tick, ms(50) + LAST_PATIENCE), [Action::InsistOnStacks { pid: 7 }]);
        assert_eq!(instance.deadline(), Some(ms(50) + STACKS));
        assert_eq!(instance.on(Event::Tick, ms(49) + STACKS), []);
        assert_eq!(instance.on(Event::Tick, ms(50) + STACKS), [Action::Kill]);
    }
    // The engine does not take the question, is out of memory, or is killed a second time.
    for event in [Event::NoStacks, Event::OutOfMemory, Event::Kill] {
        let mut instance = Instance::new();
        instance.on(Event::Executing { pid: 7 }, ms(0));
        instance.on(Event::Kill, ms(0));
        assert_eq!(instance.on(event.clone(), ms(1)).first(), Some(&Action::Kill), "{event:?}");
        assert_eq!(instance.on(Event::NoStacks, ms(2)), []);
    }
    // An engine that has ended is not asked.
    let mut instance = Instance::new();
    instance.on(Event::Executing { pid: 7 }, ms(0));
    instance.on(Event::Ended(EXIT_3), ms(0));
    assert_eq!(instance.on(Event::Kill, ms(0)), [Action::Kill]);
}

#[test]
fn a_running_engine_has_long_to_write_its_stacks() {
    let mut instance = Instance::new();
    assert!(matches!(instance.on(Event::Stacks, ms(0))[..], [Action::Note(_)]), "it has not begun");
    instance.on(Event::Executing { pid: 7 }, ms(0));
    let (ask, insist) = ([Action::AskForStacks { pid: 7 }], [Action::InsistOnStacks { pid: 7 }]);
    assert_eq!(instance.on(Event::Stacks, ms(0)), ask);
    assert_eq!(instance.on(Event::Stacks, ms(1000)), ask, "and puts off the insisting");
    assert_eq!(instance.deadline(), Some(ms(1000) + PATIENCE));
    assert_eq!(instance.on(Event::Tick, PATIENCE), []);
    assert_eq!(instance.on(Event::Tick, ms(1000) + PATIENCE), insist);
    assert_eq!(instance.deadline(), None);
    assert_eq!(instance.on(Event::Stacks, ms(9000)), ask);
    assert!(matches!(instance.on(Event::NoStacks, ms(9000))[..], [Action::Note(_)]));
    assert_eq!(instance.deadline(), None, "it does not take the question");
    // The engine ends before it has answered, or is killed for another reason.
    for event in [Event::Ended(EXIT_3), Event::OutOfMemory] {
        let mut instance = Instance::new();
        instance.on(Event::Executing { pid: 7 }, ms(0));
        instance.on(Event::Stacks, ms(0));
        instance.on(event, ms(1));
        assert!(!instance.on(Event::Tick, PATIENCE).contains(&Action::InsistOnStacks { pid: 7 }));
    }
}

#[test]
fn the_engine_answers_once() {
    let mut instance = Instance::new();
    let told = Action::Tell(FromWorker::Ready { mode: HandlerMode::Serial });
    assert_eq!(instance.on(Event::Engine(READY), ms(0)), [told]);
    assert_eq!(instance.ready(), Some(HandlerMode::Serial));
    assert_eq!(instance.on(Event::Engine(READY), ms(0)).first(), Some(&Action::Kill));
}

#[test]
fn a_closed_socket_gives_the_engine_time_to_exit_by_itself() {
    let mut instance = Instance::new();
    assert_eq!(instance.on(Event::EngineClosed, ms(0)), []);
    assert_eq!(instance.deadline(), Some(CLOSED_GRACE));
    instance.on(Event::Ended(EXIT_3), ms(5));
    instance.on(Event::Gone(0), ms(6));
    assert_eq!(instance.cause(), Some(ExitCause::Exited { code: 3 }));
}

#[test]
fn out_of_memory_and_a_protocol_violation_end_everything_at_once() {
    for event in [Event::OutOfMemory, Event::EngineBroken("not JSON".into())] {
        let actions = Instance::new().on(event, ms(0));
        assert_eq!(actions.first(), Some(&Action::Kill));
        assert!(matches!(actions.get(1), Some(Action::Note(_))));
    }
}

#[test]
fn a_shortage_is_followed_until_its_victim_is_found_or_for_a_while() {
    let mut instance = Instance::new();
    assert_eq!(instance.on(Event::MemoryShort, ms(0)), [Action::LookForOom]);
    let mut looks = 0;
    while let Some(deadline) = instance.deadline() {
        assert!(deadline <= LOOK_FOR);
        assert_eq!(instance.on(Event::Tick, deadline), [Action::LookForOom]);
        looks += 1;
    }
    assert_eq!(looks, LOOK_FOR.as_millis() / LOOK_EVERY.as_millis());
    instance.on(Event::MemoryShort, ms(5000));
    assert_eq!(instance.on(Event::OutOfMemory, ms(5001)).first(), Some(&Action::Kill));
    assert_eq!(instance.deadline(), Some(ms(5001) + KILL_PATIENCE));
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        Just(Event::Executing { pid: 7 }),
        Just(Event::Failed("step".into())),
        any::<u16>().prop_map(|status| Event::Ended(status.into())),
        Just(Event::Engine(READY)),
        Just(Event::EngineBroken("x".into())),
        Just(Event::EngineClosed),
        Just(Event::OutOfMemory),
        Just(Event::MemoryShort),
        (0_u64..5000).prop_map(|grace| Event::Stop { grace: ms(grace) }),
        Just(Event::Kill),
        Just(Event::Stacks),
        Just(Event::NoStacks),
        Just(Event::Terminate),
        Just(Event::Tick),
    ]
}

proptest! {
    #[test]
    fn the_end_is_final_and_every_deadline_has_an_action(
        events in proptest::collection::vec((any_event(), 0_u64..1000), 0..40),
    ) {
        let mut instance = Instance::new();
        let mut now = Duration::ZERO;
        for (event, pause) in events {
            now += ms(pause);
            instance.on(event, now);
            if let Some(deadline) = instance.deadline() {
                now = now.max(deadline);
                prop_assert_ne!(instance.on(Event::Tick, now), vec![]);
            }
        }
        instance.on(Event::Gone(KILLED), now);
        let cause = instance.cause();
        prop_assert!(cause.is_some());
        prop_assert_eq!(instance.on(Event::Tick, now + ms(10_000)), vec![]);
        prop_assert_eq!(instance.on(Event::Kill, now + ms(10_000)), vec![]);
    }
}
