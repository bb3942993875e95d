//! Stories of a zygote and its callers, and generated ones.

use super::*;
use proptest::prelude::*;

const IMPORT_WITHIN: Duration = Duration::from_secs(60);

fn id(number: u64) -> InstanceId {
    InstanceId::parse(&format!("{number:012x}")).unwrap()
}

fn after(events: Vec<Event>) -> (Family, Vec<Action>) {
    let mut family = Family::new(IMPORT_WITHIN);
    let actions = events.into_iter().flat_map(|event| family.on(event, Duration::ZERO)).collect();
    (family, actions)
}

#[test]
fn who_asks_early_waits() {
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
fn an_end_is_told_to_its_caller_alone_and_once() {
    let (mut family, _) = after(holding());
    assert!(family.is_held(7) && !family.is_held(8));
    assert_eq!(family.on(Event::Ended(8, 0), Duration::ZERO), []);
    assert_eq!(family.on(Event::Ended(7, 256), Duration::ZERO), [Action::TellEnd(1, 256)]);
    assert_eq!(family.on(Event::Ended(7, 256), Duration::ZERO), []);
    assert_eq!(family.on(Event::Left(1), Duration::ZERO), []);
}

#[test]
fn a_process_goes_with_its_caller() {
    let (mut family, _) = after(holding());
    assert_eq!(family.on(Event::Left(1), Duration::ZERO), [Action::Kill(1)]);
}

#[test]
fn processes_outlive_a_zygote_that_ended() {
    let (mut family, _) = after(holding());
    assert_eq!(family.on(Event::Spent("killed".into()), Duration::ZERO), [Action::Close]);
    assert!(!family.is_over(LINGER * 10), "somebody holds one");
    assert_eq!(family.on(Event::Ended(7, 9), LINGER), [Action::TellEnd(1, 9)]);
    family.on(Event::Left(1), LINGER);
    assert!(family.is_over(LINGER));
}

#[test]
fn it_lingers_from_the_last_caller_on() {
    let (mut family, _) = after(holding());
    family.on(Event::Left(1), LINGER);
    assert!(!family.is_over(LINGER * 2 - Duration::from_millis(1)));
    assert_eq!(family.deadline(), Some(LINGER * 2));
    assert!(family.is_over(LINGER * 2));
    family.on(Event::Spent("the zygote was told to end".into()), LINGER);
    assert!(family.is_over(LINGER));
}

#[test]
fn a_failed_fork_is_refused_to_the_one_who_asked() {
    let (mut family, _) = after([holding(), vec![Event::Came(2), Event::Asked(2, id(2))]].concat());
    let failed = Event::ForkFailed(id(2), "EAGAIN".into());
    assert_eq!(family.on(failed, Duration::ZERO), [Action::Refuse(2, "EAGAIN".into())]);
    assert!(!family.may_claim(2));
}

#[test]
fn a_zygote_that_hangs_is_found() {
    let (mut family, _) = after(vec![Event::Came(1), Event::Asked(1, id(1))]);
    assert_eq!((family.hangs(IMPORT_WITHIN / 2), family.deadline()), (None, Some(IMPORT_WITHIN)));
    assert!(family.hangs(IMPORT_WITHIN).is_some());
    family.on(Event::Preloaded, Duration::from_secs(9));
    let until = Duration::from_secs(9) + FORK_WITHIN;
    assert_eq!((family.hangs(until / 2), family.deadline()), (None, Some(until)));
    assert!(family.hangs(until).is_some());
    family.on(Event::Spent("it hangs".into()), until);
    assert_eq!(family.hangs(IMPORT_WITHIN * 2), None);
}

#[test]
fn forks_are_made_a_few_at_a_time_in_order() {
    let callers = 0..FORKS as u64 + 3;
    let ask = |caller| [Event::Came(caller), Event::Asked(caller, id(caller))];
    let (mut family, _) = after(callers.flat_map(ask).collect());
    let first: Vec<Action> = (0..FORKS as u64).map(Action::Fork).collect();
    assert_eq!(family.on(Event::Preloaded, Duration::ZERO), first);
    let late = FORK_WITHIN / 2;
    assert_eq!(family.on(Event::Claimed(3, 7), late), [Action::Fork(FORKS as u64)]);
    let failed = family.on(Event::ForkFailed(id(4), "EAGAIN".into()), late);
    assert_eq!(failed, [Action::Refuse(4, "EAGAIN".into()), Action::Fork(FORKS as u64 + 1)]);
    assert_eq!(family.on(Event::Left(5), late), [Action::Fork(FORKS as u64 + 2)]);
    assert_eq!(family.on(Event::Left(6), late), []);
    assert_eq!(family.deadline(), Some(FORK_WITHIN), "the others' time runs from their turn on");
}

#[test]
fn nobody_asks_twice() {
    let (mut family, _) = after(vec![Event::Preloaded, Event::Came(1), Event::Asked(1, id(1))]);
    assert!(matches!(family.on(Event::Asked(1, id(1)), Duration::ZERO)[..], [Action::Refuse(1, _)]));
}

proptest! {
    /// Every caller gets at most one last message, and none about a process that is not its own.
    #[test]
    fn last_words_are_last(steps in proptest::collection::vec((0_u8..9, 0_u64..4, 0_i32..4), 0..80)) {
        let mut family = Family::new(IMPORT_WITHIN);
        let mut last: BTreeMap<Caller, u32> = BTreeMap::new();
        for (step, caller, pid) in steps {
            let event = match step {
                0 => {
                    last.insert(caller, 0);
                    Event::Came(caller)
                }
                1 => Event::Asked(caller, id(caller)),
                2 if family.may_claim(caller) && !family.is_held(pid) => Event::Claimed(caller, pid),
                3 => Event::Left(caller),
                4 => Event::Preloaded,
                5 => Event::ForkFailed(id(caller), String::new()),
                6 if pid == 0 => Event::Spent(String::new()),
                _ => Event::Ended(pid, 0),
            };
            let held = matches!(event, Event::Ended(pid, _) if family.is_held(pid));
            for action in family.on(event.clone(), Duration::ZERO) {
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
