//! Tables and properties of the state machine.

use super::*;
use proptest::prelude::*;

const EVENTS: [Event; 7] = [
    Event::Accepted,
    Event::Rejected,
    Event::Cancel,
    Event::WindowOver,
    Event::AllDone,
    Event::Drained,
    Event::Written,
];

#[test]
fn names_lead_back_to_their_phase() {
    for (phase, name) in Phase::ALL {
        assert_eq!((phase.name(), Phase::from_name(name)), (name, Some(phase)));
    }
    assert_eq!(Phase::from_name("done"), None);
}

#[test]
fn stories_end_as_they_should() {
    use Event::{Accepted, AllDone, Cancel, Drained, Rejected, WindowOver, Written};
    let table: [(&[Event], &[&str]); 9] = [
        (&[Accepted, AllDone, Written], &["in_progress", "finalizing", "completed"]),
        (&[Rejected], &["failed"]),
        (&[Cancel], &["cancelled"]),
        (&[WindowOver], &["expired"]),
        (&[Accepted, Cancel, Drained, Written], &["in_progress", "cancelling", "cancelling", "cancelled"]),
        (&[Accepted, WindowOver, Drained, Written], &["in_progress", "finalizing", "finalizing", "expired"]),
        (&[Accepted, Cancel, AllDone, Written], &["in_progress", "cancelling", "finalizing", "completed"]),
        (&[Accepted, Cancel, WindowOver, Cancel], &["in_progress", "cancelling", "cancelling", "cancelling"]),
        (
            &[Accepted, AllDone, Cancel, WindowOver, Written],
            &["in_progress", "finalizing", "finalizing", "finalizing", "completed"],
        ),
    ];
    for (events, expected) in table {
        let mut phase = Phase::Validating;
        let statuses: Vec<_> = events
            .iter()
            .map(|event| {
                phase = phase.after(*event).unwrap_or(phase);
                phase.status().name()
            })
            .collect();
        assert_eq!(statuses, expected, "{events:?}");
    }
}

#[test]
fn steps_are_due_in_time() {
    let facts = |phase, in_flight, stopped: Option<u64>| Facts {
        phase,
        expires: UnixMillis(1000),
        stopped: stopped.map(UnixMillis),
        in_flight,
    };
    let grace_over = GRACE.as_millis() as u64 + 500;
    let table = [
        (facts(Phase::Validating, 0, None), 0, Due::Validate),
        (facts(Phase::Validating, 0, None), 1000, Due::Apply(Event::WindowOver)),
        (facts(Phase::Running, 3, None), 999, Due::Wait(UnixMillis(1000))),
        (facts(Phase::Running, 3, None), 1000, Due::Apply(Event::WindowOver)),
        (facts(Phase::Stopping(Cut::Cancelled), 1, Some(500)), 600, Due::Wait(UnixMillis(grace_over))),
        (facts(Phase::Stopping(Cut::Cancelled), 1, Some(500)), grace_over, Due::Apply(Event::Drained)),
        (facts(Phase::Stopping(Cut::Expired), 0, Some(1000)), 1000, Due::Apply(Event::Drained)),
        (facts(Phase::Writing(Ending::Completed), 0, None), 2000, Due::Write),
        (facts(Phase::Failed, 0, None), 2000, Due::Nothing),
        (facts(Phase::Ended(Ending::Cut(Cut::Expired)), 0, None), 2000, Due::Nothing),
    ];
    for (facts, now, expected) in table {
        assert_eq!(due(&facts, UnixMillis(now)), expected, "{facts:?} at {now}");
    }
}

#[test]
fn an_item_ends_after_three_deaths_or_twenty_losses() {
    let count = |interruption| {
        let mut tally = Tally::default();
        (1..).find_map(|times| tally.count(interruption).map(|error| (times, error.code))).unwrap()
    };
    assert_eq!(count(Interruption::InstanceDied), (3, "instance_died"));
    assert_eq!(count(Interruption::Lost), (20, "interrupted"));
    let mut tally = Tally::default();
    assert!((0..1000).all(|_| tally.count(Interruption::Preempted).is_none()));
    assert_eq!(tally, Tally::default());
}

proptest! {
    /// An end is final, results stop before files are written, and from everywhere three events lead to an end.
    #[test]
    fn every_batch_ends_once(events in proptest::collection::vec(proptest::sample::select(&EVENTS), 0..20)) {
        let mut phase = Phase::Validating;
        let mut closed = false;
        for event in events {
            let next = phase.after(event);
            prop_assert!(!(phase.is_over() && next.is_some()), "{:?} after {:?}", event, phase);
            phase = next.unwrap_or(phase);
            closed |= matches!(phase, Phase::Writing(_));
            prop_assert!(!(closed && phase.takes_results()));
            prop_assert!(!phase.hands_out() || phase.takes_results());
        }
        for event in [Event::WindowOver, Event::Drained, Event::Written] {
            phase = phase.after(event).unwrap_or(phase);
        }
        prop_assert!(phase.is_over(), "{:?}", phase);
    }
}
