//! Stories of a zygote and its callers, and generated ones.

use super::*;
use proptest::prelude::*;

const IMPORT_WITHIN: Duration = Duration::from_secs(60);

fn id(number: u64) -> InstanceId {
    InstanceId::parse(&format!("{number:012x}")).unwrap()
}

fn after(events: Vec<Event>) -> (ForkQueue, Vec<Action>) {
    let mut fork_queue = ForkQueue::new(IMPORT_WITHIN);
    let actions = events.into_iter().flat_map(|event| fork_queue.on(event, Duration::ZERO)).collect();
    (fork_queue, actions)
}

#[test]
fn an_early_caller_waits() {
    let early = vec![Event::Came(1), Event::Asked(1, id(1))];
    assert_eq!(after(early.clone()).1, []);
    let ready = [early.clone(), vec![Event::Preloaded, Event::Came(2), Event::Asked(2, id(2))]].concat();
    assert_eq!(after(ready).1, [Action::Fork(1), Action::Fork(2)]);
    let never = [early, vec![Event::Spent("no numpy".into()), Event::Came(2), Event::Asked(2, id(2))]].concat();
    let refused = |caller| Action::Refuse(caller, "no numpy".into());
    assert_eq!(after(never).1, [refused(1), Action::Close, refused(2)]);
}

fn holding() -> Vec<Event> {
    vec![Event::Preloaded, Event::Came(1), Event::Asked(1, id(1)), Event::Claimed(1, 7)]
}

#[test]
fn an_end_is_sent_once_and_to_its_caller_only() {
    let (mut fork_queue, _) = after(holding());
    assert!(fork_queue.is_held(7) && !fork_queue.is_held(8));
    assert_eq!(fork_queue.on(Event::Ended(8, 0), Duration::ZERO), []);
    assert_eq!(fork_queue.on(Event::Ended(7, 256), Duration::ZERO), [Action::TellEnd(1, 256)]);
    assert_eq!(fork_queue.on(Event::Ended(7, 256), Duration::ZERO), []);
    assert_eq!(fork_queue.on(Event::Left(1), Duration::ZERO), []);
}

#[test]
fn a_process_ends_with_its_callers_connection() {
    let (mut fork_queue, _) = after(holding());
    assert_eq!(fork_queue.on(Event::Left(1), Duration::ZERO), [Action::Kill(1)]);
}

#[test]
fn processes_outlive_a_zygote_that_ended() {
    let (mut fork_queue, _) = after(holding());
    assert_eq!(fork_queue.on(Event::Spent("killed".into()), Duration::ZERO), [Action::Close]);
    assert!(!fork_queue.is_over(LINGER * 10), "somebody holds one");
    assert_eq!(fork_queue.on(Event::Ended(7, 9), LINGER), [Action::TellEnd(1, 9)]);
    fork_queue.on(Event::Left(1), LINGER);
    assert!(fork_queue.is_over(LINGER));
}

#[test]
fn a_zygote_lingers_from_the_last_caller_on() {
    let (mut fork_queue, _) = after(holding());
    fork_queue.on(Event::Left(1), LINGER);
    assert!(!fork_queue.is_over(LINGER * 2 - Duration::from_millis(1)));
    assert_eq!(fork_queue.deadline(), Some(LINGER * 2));
    assert!(fork_queue.is_over(LINGER * 2));
    fork_queue.on(Event::Spent("the zygote was told to end".into()), LINGER);
    assert!(fork_queue.is_over(LINGER));
}

#[test]
fn a_failed_fork_is_refused_to_its_caller() {
    let (mut fork_queue, _) = after([holding(), vec![Event::Came(2), Event::Asked(2, id(2))]].concat());
    let failed = Event::ForkFailed(id(2), "EAGAIN".into());
    assert_eq!(fork_queue.on(failed, Duration::ZERO), [Action::Refuse(2, "EAGAIN".into())]);
    assert!(!fork_queue.may_claim(2));
}

#[test]
fn a_zygote_that_hangs_is_found() {
    let (mut fork_queue, _) = after(vec![Event::Came(1), Event::Asked(1, id(1))]);
    assert_eq!((fork_queue.hangs(IMPORT_WITHIN / 2), fork_queue.deadline()), (None, Some(IMPORT_WITHIN)));
    assert!(fork_queue.hangs(IMPORT_WITHIN).is_some());
    fork_queue.on(Event::Preloaded, Duration::from_secs(9));
    let until = Duration::from_secs(9) + FORK_WITHIN;
    assert_eq!((fork_queue.hangs(until / 2), fork_queue.deadline()), (None, Some(until)));
    assert!(fork_queue.hangs(until).is_some());
    fork_queue.on(Event::Spent("it hangs".into()), until);
    assert_eq!(fork_queue.hangs(IMPORT_WITHIN * 2), None);
}

#[test]
fn forks_are_made_a_few_at_a_time_in_order() {
    let callers = 0..FORKS as u64 + 3;
    let ask = |caller| [Event::Came(caller), Event::Asked(caller, id(caller))];
    let (mut fork_queue, _) = after(callers.flat_map(ask).collect());
    let first: Vec<Action> = (0..FORKS as u64).map(Action::Fork).collect();
    assert_eq!(fork_queue.on(Event::Preloaded, Duration::ZERO), first);
    let late = FORK_WITHIN / 2;
    assert_eq!(fork_queue.on(Event::Claimed(3, 7), late), [Action::Fork(FORKS as u64)]);
    let failed = fork_queue.on(Event::ForkFailed(id(4), "EAGAIN".into()), late);
    assert_eq!(failed, [Action::Refuse(4, "EAGAIN".into()), Action::Fork(FORKS as u64 + 1)]);
    assert_eq!(fork_queue.on(Event::Left(5), late), [Action::Fork(FORKS as u64 + 2)]);
    assert_eq!(fork_queue.on(Event::Left(6), late), []);
    assert_eq!(fork_queue.deadline(), Some(FORK_WITHIN), "the others' time runs from their turn on");
}

#[test]
fn a_job_is_not_queued_twice() {
    let (mut fork_queue, _) = after(vec![Event::Preloaded, Event::Came(1), Event::Asked(1, id(1))]);
    assert!(matches!(fork_queue.on(Event::Asked(1, id(1)), Duration::ZERO)[..], [Action::Refuse(1, _)]));
}

proptest! {
    /// Every caller gets at most one last message, and none about a process that is not its own.
    #[test]
    fn last_messages_are_last(steps in proptest::collection::vec((0_u8..9, 0_u64..4, 0_i32..4), 0..80)) {
        let mut fork_queue = ForkQueue::new(IMPORT_WITHIN);
        let mut last: BTreeMap<Caller, u32> = BTreeMap::new();
        for (step, caller, pid) in steps {
            let event = match step {
                0 => {
                    last.insert(caller, 0);
                    Event::Came(caller)
                }
                1 => Event::Asked(caller, id(caller)),
                2 if fork_queue.may_claim(caller) && !fork_queue.is_held(pid) => Event::Claimed(caller, pid),
                3 => Event::Left(caller),
                4 => Event::Preloaded,
                5 => Event::ForkFailed(id(caller), String::new()),
                6 if pid == 0 => Event::Spent(String::new()),
                _ => Event::Ended(pid, 0),
            };
            let held = matches!(event, Event::Ended(pid, _) if fork_queue.is_held(pid));
            for action in fork_queue.on(event.clone(), Duration::ZERO) {
                match action {
                    Action::Refuse(caller, _) if !matches!(event, Event::Asked(..)) => {
                        *last.entry(caller).or_default() += 1;
                    }
                    Action::TellEnd(caller, _) => {
                        prop_assert!(held);
                        *last.entry(caller).or_default() += 1;
                    }
                    Action::Refuse(..) | Action::Fork(_) | Action::Kill(_) | Action::Close => {}
                }
            }
            prop_assert!(last.values().all(|count| *count <= 1), "{last:?}");
        }
    }
}
