//! Tables of the commands: which shim is sent what, when a command is answered, and which shim is disconnected.

use super::*;
use proptest::prelude::*;

const GIB: u64 = 1 << 30;
const ALL: ResidencyCommand = ResidencyCommand::Evict { bytes: u64::MAX };

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn hello(shim: Shim, resident: u64) -> Event {
    let report = Report { kind: ReportKind::Hello, managed: resident, resident, ..Report::default() };
    Event::Reported { shim, report: Some(report) }
}

fn done(shim: Shim, number: u64, moved: u64, resident: u64) -> Event {
    let report = Report { kind: ReportKind::Done, number, moved, managed: 100 * GIB, resident, ..Report::default() };
    Event::Reported { shim, report: Some(report) }
}

fn failed(shim: Shim, number: u64, error: u32) -> Event {
    Event::Reported { shim, report: Some(Report { kind: ReportKind::Done, number, error, ..Report::default() }) }
}

/// Shims 1, 2, … with this much resident each.
fn with(residents: &[u64]) -> CommandQueue {
    let mut commands = CommandQueue::default();
    for (shim, resident) in (1..).zip(residents) {
        assert_eq!(commands.on(Event::Connected { shim }, ms(0)), []);
        assert_eq!(commands.on(hello(shim, *resident), ms(0)), []);
    }
    commands
}

fn asked(number: u64, command: ResidencyCommand) -> Event {
    Event::Commanded { number, command }
}

fn sent(actions: &[Action]) -> Vec<(Shim, u64, Command)> {
    let send = |action: &Action| match action {
        Action::Send { shim, packet } => Some((*shim, packet.number, packet.command)),
        Action::Answer(_) | Action::Close { .. } => None,
    };
    actions.iter().filter_map(send).collect()
}

fn answer(number: u64, moved_bytes: u64, micros: u64) -> Action {
    Action::Answer(Answer { number, moved_bytes, micros, ..Answer::default() })
}

#[test]
fn an_instance_without_shims_answers_at_once() {
    for command in [ALL, ResidencyCommand::Evict { bytes: 1 }, ResidencyCommand::Restore, ResidencyCommand::Report] {
        assert_eq!(CommandQueue::default().on(asked(7, command), ms(5)), [answer(7, 0, 0)]);
    }
}

#[test]
fn a_single_shim_is_sent_the_command_itself() {
    for (residency, command) in [
        (ResidencyCommand::Evict { bytes: 9 }, Command::Evict { bytes: 9 }),
        (ALL, Command::Evict { bytes: u64::MAX }),
        (ResidencyCommand::Restore, Command::Restore),
        (ResidencyCommand::Report, Command::Report),
    ] {
        let mut commands = with(&[GIB]);
        assert_eq!(sent(&commands.on(asked(70, residency), ms(1))), [(1, 1, command)]);
        assert_eq!(commands.on(Event::Tick, ms(2)), []);
        assert_eq!(commands.on(done(1, 1, 9, 0), ms(3)), [answer(70, 9, 2000)]);
        assert_eq!(commands.deadline(), None);
    }
}

#[test]
fn a_connection_without_hello_is_sent_nothing_and_owes_nothing() {
    for command in [ALL, ResidencyCommand::Evict { bytes: 9 }, ResidencyCommand::Restore, ResidencyCommand::Report] {
        let mut commands = CommandQueue::default();
        commands.on(Event::Connected { shim: 1 }, ms(0));
        commands.on(Event::Connected { shim: 2 }, ms(0));
        assert_eq!(commands.on(asked(1, command), ms(1)), [answer(1, 0, 0)]);
        commands.on(hello(2, GIB), ms(2));
        let told = sent(&commands.on(asked(2, command), ms(3)));
        assert_eq!(told.len(), 1, "the only one there is, without being asked first: {told:?}");
        assert!(told[0].0 == 2 && (told[0].2 == Command::Report) == (command == ResidencyCommand::Report), "{told:?}");
        assert_eq!(commands.on(done(2, told[0].1, 9, 0), ms(4)), [answer(2, 9, 1000)]);
    }
}

#[test]
fn the_last_report_of_a_shim_that_connects_during_a_query_counts() {
    let mut commands = with(&[GIB, GIB]);
    commands.on(asked(1, ResidencyCommand::Evict { bytes: GIB }), ms(0));
    commands.on(Event::Connected { shim: 3 }, ms(1));
    commands.on(Event::Connected { shim: 4 }, ms(1));
    commands.on(hello(4, 5 * GIB), ms(1));
    commands.on(done(1, 1, 0, GIB), ms(2));
    assert_eq!(sent(&commands.on(done(2, 1, 0, GIB), ms(2))), [(4, 2, Command::Evict { bytes: GIB })]);
}

#[test]
fn an_eviction_takes_from_the_largest_first() {
    let table: [(u64, &[(Shim, u64)]); 6] = [
        (0, &[]),
        (1, &[(2, 1)]),
        (5 * GIB, &[(2, 5 * GIB)]),
        (5 * GIB + 1, &[(2, 5 * GIB), (3, 1)]),
        (9 * GIB, &[(2, 5 * GIB), (3, 3 * GIB), (1, GIB)]),
        (99 * GIB, &[(2, 5 * GIB), (3, 3 * GIB), (1, GIB)]),
    ];
    for (bytes, shares) in table {
        // The usage reported at connect is long outdated.
        let mut commands = with(&[50 * GIB, 1, 0, 0]);
        let asking = sent(&commands.on(asked(3, ResidencyCommand::Evict { bytes }), ms(0)));
        assert_eq!(asking, [1, 2, 3, 4].map(|shim| (shim, 1, Command::Report)));
        for (shim, resident) in [(1, GIB), (2, 5 * GIB), (3, 3 * GIB)] {
            assert_eq!(commands.on(done(shim, 1, 0, resident), ms(1)), []);
        }
        let actions = commands.on(done(4, 1, 0, 0), ms(2));
        let expected: Vec<_> =
            shares.iter().map(|(shim, bytes)| (*shim, 2, Command::Evict { bytes: *bytes })).collect();
        assert_eq!(sent(&actions), expected, "{bytes}");
        if shares.is_empty() {
            assert_eq!(actions, [answer(3, 0, 2000)]);
            continue;
        }
        let mut last = vec![];
        for (shim, bytes) in shares {
            last = commands.on(done(*shim, 2, *bytes, 0), ms(4));
        }
        assert_eq!(last, [answer(3, shares.iter().map(|(_, bytes)| bytes).sum(), 4000)]);
    }
}

#[test]
fn a_full_eviction_needs_no_usage_reports() {
    let mut commands = with(&[0, GIB]);
    let all = Command::Evict { bytes: u64::MAX };
    assert_eq!(sent(&commands.on(asked(1, ALL), ms(0))), [(1, 1, all), (2, 1, all)]);
}

#[test]
fn the_last_report_of_a_silent_shim_counts() {
    let mut commands = with(&[4 * GIB, GIB]);
    commands.on(asked(1, ResidencyCommand::Evict { bytes: 5 * GIB }), ms(0));
    commands.on(done(2, 1, 0, 2 * GIB), ms(1));
    assert_eq!(commands.deadline(), Some(ASKING));
    let actions = commands.on(Event::Tick, ASKING);
    assert_eq!(sent(&actions), [(1, 2, Command::Evict { bytes: 4 * GIB }), (2, 2, Command::Evict { bytes: GIB })]);
    assert_eq!(commands.on(done(1, 1, 0, 4 * GIB), ms(1500)), [], "late, known by its number");
    commands.on(done(1, 2, 4 * GIB, 0), ms(1600));
    assert_eq!(commands.on(done(2, 2, GIB, GIB), ms(1700)), [answer(1, 5 * GIB, 1_700_000)]);
}

#[test]
fn silent_shims_are_counted_and_their_late_answers_dropped() {
    let mut commands = with(&[1, 1, 1]);
    commands.on(asked(1, ResidencyCommand::Restore), ms(10));
    commands.on(failed(2, 1, 999), ms(11));
    assert_eq!(commands.deadline(), Some(ms(10) + PATIENCE));
    let micros = u64::try_from(PATIENCE.as_micros()).unwrap();
    let late = Answer { number: 1, moved_bytes: 0, micros, error: 999, unanswered: 2 };
    assert_eq!(commands.on(Event::Tick, ms(10) + PATIENCE), [Action::Answer(late)]);
    assert_eq!(commands.on(done(1, 1, 5, 5), ms(90_000)), []);
    let actions = commands.on(asked(2, ResidencyCommand::Report), ms(90_001));
    assert_eq!(sent(&actions).len(), 3, "they are asked again");
    assert_eq!(commands.on(done(3, 1, 5, 5), ms(90_002)), [], "two are owed: the first is late");
}

#[test]
fn a_command_ends_when_the_last_shim_is_gone() {
    let mut commands = with(&[1, 1]);
    commands.on(asked(1, ALL), ms(0));
    commands.on(done(1, 1, 5, 0), ms(1));
    assert_eq!(commands.on(Event::Left { shim: 2 }, ms(2)), [answer(1, 5, 2000)], "its memory went with it");
    assert_eq!(commands.on(Event::Left { shim: 2 }, ms(2)), []);
}

#[test]
fn commands_run_one_after_the_other_and_the_queue_has_a_bound() {
    let mut commands = with(&[1]);
    for number in 1..=9 {
        assert_eq!(sent(&commands.on(asked(number, ResidencyCommand::Report), ms(0))).len(), usize::from(number == 1));
    }
    let refused = Answer { number: 10, unanswered: 1, ..Answer::default() };
    assert_eq!(commands.on(asked(10, ALL), ms(0)), [Action::Answer(refused)]);
    for number in 1..=9 {
        let actions = commands.on(done(1, number, 0, 0), ms(0));
        assert_eq!(actions.first(), Some(&answer(number, 0, 0)));
        assert_eq!(sent(&actions).len(), usize::from(number < 9));
    }
}

#[test]
fn a_new_scheduler_gets_no_answers_to_earlier_commands() {
    let mut commands = with(&[1]);
    commands.on(asked(1, ALL), ms(0));
    commands.on(asked(2, ResidencyCommand::Restore), ms(0));
    assert_eq!(commands.on(Event::NewScheduler, ms(1)), []);
    assert_eq!(commands.on(asked(1, ResidencyCommand::Report), ms(2)), [], "the old one's move is still on its way");
    assert_eq!(sent(&commands.on(done(1, 1, 5, 0), ms(3))), [(1, 2, Command::Report)]);
    assert_eq!(commands.on(done(1, 2, 0, 0), ms(4)), [answer(1, 0, 1000)]);
}

#[test]
fn a_shim_that_violates_the_protocol_is_disconnected_and_counts_as_silent() {
    let garbage = Event::Reported { shim: 1, report: None };
    let table = [
        (garbage, "it sent what is no report"),
        (hello(1, 5), "it said hello twice"),
        (done(1, 2, 0, 0), "it answered a command that it was not given"),
        (done(1, 0, 0, 0), "it answered a command that it was not given"),
        (Event::NotReading { shim: 1 }, "it does not read its commands"),
    ];
    for (event, why) in table {
        let mut commands = with(&[1]);
        commands.on(asked(1, ALL), ms(0));
        let actions = commands.on(event, ms(1));
        let unanswered = Answer { number: 1, micros: 1000, unanswered: 1, ..Answer::default() };
        assert_eq!(actions, [Action::Close { shim: 1, why }, Action::Answer(unanswered)], "{event:?}");
        assert_eq!(commands.on(event, ms(2)), [], "it is gone already");
    }
    let mut commands = CommandQueue::default();
    commands.on(Event::Connected { shim: 1 }, ms(0));
    let why = "it did not say hello first";
    assert_eq!(commands.on(done(1, 0, 0, 0), ms(0)), [Action::Close { shim: 1, why }]);
}

#[test]
fn a_shim_that_never_answers_is_disconnected() {
    let mut commands = with(&[1]);
    let mut now = ms(0);
    for number in 1..=4 {
        assert_eq!(sent(&commands.on(asked(number, ALL), now)).len(), 1);
        now += PATIENCE;
        assert_eq!(commands.on(Event::Tick, now).len(), 1, "answered without it");
    }
    let actions = commands.on(asked(5, ALL), now);
    let why = "it has not answered its commands";
    let unanswered = Answer { number: 5, unanswered: 1, ..Answer::default() };
    assert_eq!(actions, [Action::Close { shim: 1, why }, Action::Answer(unanswered)]);
}

#[test]
fn false_numbers_do_not_overflow() {
    let mut commands = with(&[u64::MAX, u64::MAX]);
    commands.on(asked(1, ALL), ms(0));
    commands.on(done(1, 1, u64::MAX, u64::MAX), ms(0));
    assert_eq!(commands.on(done(2, 1, u64::MAX, u64::MAX), ms(0)), [answer(1, u64::MAX, 0)]);
}

fn any_event() -> impl Strategy<Value = Event> {
    let shim = 1..5_u64;
    let command = prop_oneof![
        Just(ALL),
        (0..9_u64).prop_map(|bytes| ResidencyCommand::Evict { bytes }),
        Just(ResidencyCommand::Restore),
        Just(ResidencyCommand::Report)
    ];
    prop_oneof![
        4 => (any::<u64>(), command).prop_map(|(number, command)| Event::Commanded { number, command }),
        1 => Just(Event::NewScheduler),
        3 => shim.clone().prop_map(|shim| Event::Connected { shim }),
        3 => shim.clone().prop_map(|shim| hello(shim, 5)),
        9 => (shim.clone(), 0..20_u64, 0..9_u64, 0..9_u64).prop_map(|(s, n, moved, left)| done(s, n, moved, left)),
        1 => shim.clone().prop_map(|shim| Event::Reported { shim, report: None }),
        1 => shim.clone().prop_map(|shim| Event::Left { shim }),
        1 => shim.prop_map(|shim| Event::NotReading { shim }),
        2 => Just(Event::Tick),
    ]
}

proptest! {
    /// For any behaviour of the shims, every command of a scheduler that stays is answered once, and in time.
    #[test]
    fn every_command_is_answered_once(events in prop::collection::vec((any_event(), 0..2000_u64), 0..200)) {
        let (mut commands, mut now) = (CommandQueue::default(), ms(0));
        let (mut open, mut unasked) = (Vec::new(), 0_usize);
        let mut hear = |actions: Vec<Action>, open: &mut Vec<u64>| {
            for action in actions {
                match action {
                    Action::Answer(answer) => match open.iter().position(|number| *number == answer.number) {
                        Some(place) => _ = open.remove(place),
                        None => unasked += 1,
                    },
                    Action::Send { .. } | Action::Close { .. } => {}
                }
            }
        };
        for (event, wait) in events {
            now += ms(wait);
            match &event {
                Event::Commanded { number, .. } => open.push(*number),
                Event::NewScheduler => open.clear(),
                Event::Connected { .. } | Event::Reported { .. } | Event::Left { .. } | Event::NotReading { .. } | Event::Tick => {}
            }
            hear(commands.on(event, now), &mut open);
        }
        for _ in 0..2 * (WAITING + 1) {
            now += PATIENCE;
            hear(commands.on(Event::Tick, now), &mut open);
        }
        prop_assert_eq!((open, unasked), (vec![], 0));
        prop_assert_eq!(commands.deadline(), None);
    }
}
