//! The engine of an instance: its data connection, and whether it answers.
//!
//! An engine is checked when its instance has had no request for a while. While requests are in flight it is not: it would
//! answer behind them, and each of them ends by its deadline and `cancel-grace`. While a check is under way requests wait,
//! so that they are not lost with an engine that hangs.
//!
//! The model's own `healthcheck` may use the GPU. It runs only while the instance's memory is on the card, which stays there
//! until the answer; and once after each use, so that checks do not make an instance look used. Otherwise the engine alone
//! answers, which touches no GPU memory.

use crate::engine_metrics::EngineSeries;
use omni_engine_client::DataConnection;
use omni_policy::Moment;
use omni_policy::deadlines::Deadlines;
use omni_policy::intake::Intake;
use omni_policy::liveness::{Check, Liveness};
use std::time::Duration;

/// A connected engine.
#[derive(Debug)]
pub(in crate::model::actor) struct Engine {
    /// `None` once it broke or was closed.
    pub(in crate::model::actor) connection: Option<DataConnection>,
    /// Rate of its input, which is paused when it sends too much.
    pub(in crate::model::actor) intake: Intake,
    pub(in crate::model::actor) deadlines: Deadlines,
    /// Requests are routed to it.
    pub(in crate::model::actor) accepts: bool,
    /// The engine has reported why it cannot work, and is about to end.
    pub(in crate::model::actor) has_failed: bool,
    /// Metrics of its own, once it has reported some.
    pub(in crate::model::actor) series: Option<EngineSeries>,
    /// Checks, while it accepts requests and has none in flight.
    liveness: Option<Liveness>,
    /// Number of the last check.
    check: u64,
    /// The model's own check is running.
    runs_own_check: bool,
    /// Requests were in flight since the model's own check ran last.
    was_used: bool,
}

/// Meaning of an answer to a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::model::actor) enum CheckAnswer {
    /// Answer to the check that is under way.
    Timely,
    /// Answer to the last check, which was given up when the route was disabled or a request came.
    Late,
    /// Answer to no check that was sent.
    Unknown,
}

impl Engine {
    pub(in crate::model::actor) fn new(connection: Option<DataConnection>) -> Self {
        Self {
            connection,
            intake: Intake::default(),
            deadlines: Deadlines::default(),
            accepts: false,
            has_failed: false,
            series: None,
            liveness: None,
            check: 0,
            runs_own_check: false,
            was_used: false,
        }
    }

    /// Returns whether a check is under way.
    pub(in crate::model::actor) fn is_checked(&self) -> bool {
        self.liveness.is_some_and(|liveness| liveness.is_asked())
    }

    /// Returns whether the model's own check is running.
    pub(in crate::model::actor) fn runs_own_check(&self) -> bool {
        self.runs_own_check
    }

    pub(super) fn check_due(&self) -> Option<Moment> {
        self.liveness.map(|liveness| liveness.due())
    }

    /// Judges whether it lives. The caller sends the check.
    pub(in crate::model::actor) fn check(&mut self, now: Moment) -> Check {
        self.liveness.as_mut().map_or(Check::Alive, |liveness| liveness.check(now))
    }

    pub(super) fn note_work(&mut self, works: bool, every: Duration, now: Moment) {
        if works {
            (self.liveness, self.was_used) = (None, true);
        } else if !self.accepts {
            (self.liveness, self.runs_own_check) = (None, false);
        } else {
            self.liveness.get_or_insert_with(|| Liveness::new(every, now));
        }
    }

    pub(super) fn send_check(&mut self, has_gpu: bool, is_on_card: bool) {
        let Some(connection) = &mut self.connection else { return };
        let own = is_on_card && (!has_gpu || self.was_used);
        self.check += 1;
        self.runs_own_check = own;
        self.was_used &= !own;
        connection.send_check(self.check, own);
    }

    /// Takes the answer to a check.
    pub(in crate::model::actor) fn on_check_answer(&mut self, check: u64, now: Moment) -> CheckAnswer {
        if check != self.check {
            return CheckAnswer::Unknown;
        }
        let Some(liveness) = self.liveness.as_mut().filter(|liveness| liveness.is_asked()) else {
            return CheckAnswer::Late;
        };
        liveness.heard(now);
        self.runs_own_check = false;
        CheckAnswer::Timely
    }

    /// Ends checks: the stop has deadlines of its own.
    pub(super) fn stop_checks(&mut self) {
        (self.liveness, self.runs_own_check, self.was_used) = (None, false, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_engine_client::EngineEnds;

    const EVERY: Duration = Duration::from_secs(10);

    fn engine() -> (Engine, EngineEnds) {
        let (connection, ends) = DataConnection::pair().unwrap();
        let mut engine = Engine::new(Some(connection));
        engine.accepts = true;
        (engine, ends)
    }

    #[tokio::test]
    async fn an_engine_is_checked_only_while_it_accepts_requests_and_has_none() {
        let (mut engine, _ends) = engine();
        engine.note_work(false, EVERY, Moment::ZERO);
        assert_eq!(engine.check_due(), Some(EVERY));
        engine.note_work(true, EVERY, EVERY);
        assert_eq!(engine.check_due(), None, "it has a request");
        engine.note_work(false, EVERY, EVERY);
        assert_eq!(engine.check_due(), Some(EVERY * 2), "from the end of the request");
        engine.accepts = false;
        engine.note_work(false, EVERY, EVERY);
        assert_eq!(engine.check_due(), None, "its route is disabled");
    }

    #[tokio::test]
    async fn an_engine_that_does_not_answer_is_unresponsive() {
        let (mut engine, _ends) = engine();
        engine.note_work(false, EVERY, Moment::ZERO);
        assert_eq!(engine.check(EVERY), Check::Probe);
        engine.send_check(false, true);
        assert!(engine.is_checked() && engine.runs_own_check());
        assert_eq!(engine.check(EVERY * 2), Check::Unresponsive);
        engine.stop_checks();
        assert!(!engine.runs_own_check() && engine.check(EVERY * 3) == Check::Alive, "it stops");
    }
}
