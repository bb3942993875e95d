//! The worker of an instance, as the scheduler is connected to it.

use crate::model::worker_link::WorkerLink;
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::instance::{Stats, ToWorker, VERSIONS, Welcome};
use omni_policy::Moment;
use omni_policy::liveness::{Check, Liveness};
use std::time::Duration;
use tokio::sync::mpsc;

/// Interval of checks. A worker has little to do: it reads a few descriptors. This is for a machine in trouble.
pub(in crate::model::actor) const CHECK_WORKER: Duration = Duration::from_secs(15);
/// A worker that closes its connection sooner than this is not connected to again.
const STEADY: Duration = Duration::from_secs(1);

/// A connected worker, or one whose connection is lost.
#[derive(Debug)]
pub(in crate::model::actor) struct Worker {
    /// Connection; `None` while it is lost.
    link: Option<WorkerLink>,
    connected_at: Moment,
    /// Version of its protocol, if that is older than this scheduler's.
    pub(in crate::model::actor) old_protocol: Option<u32>,
    pub(in crate::model::actor) engine_pid: Option<i32>,
    /// Number of the last log line received.
    log_seen: u64,
    /// Number of the last line that an earlier scheduler wrote to the node's log.
    logged: u64,
    /// Checks, unless the instance stops.
    liveness: Option<Liveness>,
    /// Exit reported by the launcher while the rest of the worker's output is still being read.
    exit: Option<ExitCause>,
    stats_waiters: Vec<mpsc::Sender<Stats>>,
}

/// Reaction to the end of a worker's connection.
#[derive(Debug)]
pub(in crate::model::actor) enum Disconnected {
    /// The launcher has reported its exit, and its output is read.
    Exited(ExitCause),
    /// Connect again, to get log lines after this number.
    Reconnect { log_seen: u64 },
    /// Have the launcher kill it.
    Lost,
}

impl Worker {
    pub(in crate::model::actor) fn new(link: WorkerLink, welcome: &Welcome, now: Moment) -> Self {
        let mut worker = Self::disconnected(now);
        worker.on_connected(link, welcome, now);
        worker
    }

    /// A worker whose connection is lost.
    pub(super) fn disconnected(now: Moment) -> Self {
        Self {
            link: None,
            connected_at: now,
            old_protocol: None,
            engine_pid: None,
            log_seen: 0,
            logged: 0,
            liveness: None,
            exit: None,
            stats_waiters: Vec::new(),
        }
    }

    /// Takes a new connection.
    pub(in crate::model::actor) fn on_connected(&mut self, link: WorkerLink, welcome: &Welcome, now: Moment) {
        self.link = Some(link);
        self.connected_at = now;
        self.engine_pid = welcome.engine_pid;
        self.old_protocol = Some(welcome.protocol).filter(|protocol| *protocol < VERSIONS.newest);
        self.liveness = Some(Liveness::new(CHECK_WORKER, now));
    }

    /// The connection has ended.
    pub(in crate::model::actor) fn on_disconnected(&mut self, now: Moment) -> Disconnected {
        let was_linked = self.link.take().is_some();
        let was_steady = now.saturating_sub(self.connected_at) >= STEADY;
        match self.exit.take() {
            Some(cause) => Disconnected::Exited(cause),
            None if was_linked && was_steady => Disconnected::Reconnect { log_seen: self.log_seen },
            None => Disconnected::Lost,
        }
    }

    /// Keeps the exit that the launcher reported until the connection ends. Returns it if there is no connection.
    pub(in crate::model::actor) fn on_exit(&mut self, cause: ExitCause) -> Option<ExitCause> {
        if self.link.is_none() {
            return Some(cause);
        }
        self.exit = Some(cause);
        None
    }

    /// A message has arrived.
    pub(in crate::model::actor) fn on_message(&mut self, now: Moment) {
        if let Some(liveness) = &mut self.liveness {
            liveness.heard(now);
        }
    }

    /// Sets the number of the last line that an earlier scheduler wrote to the node's log.
    pub(in crate::model::actor) fn set_logged(&mut self, seq: u64) {
        self.logged = seq;
    }

    /// Number of the last line that is in the node's log.
    pub(in crate::model::actor) fn log_seen(&self) -> u64 {
        self.log_seen.max(self.logged)
    }

    /// Returns whether the node's log has a line already; `None`: it came before, as some do after a reconnect.
    pub(in crate::model::actor) fn on_line(&mut self, seq: u64) -> Option<bool> {
        let is_new = self.log_seen < seq;
        self.log_seen = self.log_seen.max(seq);
        is_new.then_some(seq <= self.logged)
    }

    /// Sends a message. Returns `false` if the worker cannot be reached.
    pub(in crate::model::actor) fn send(&self, message: &ToWorker) -> bool {
        self.link.as_ref().is_some_and(|link| link.send(message, &[]).is_ok())
    }

    pub(in crate::model::actor) fn link(&self) -> Option<&WorkerLink> {
        self.link.as_ref()
    }

    /// Drops the connection.
    pub(in crate::model::actor) fn disconnect(&mut self) {
        self.link = None;
    }

    /// Asks for statistics, which are sent to `waiter`.
    pub(in crate::model::actor) fn request_stats(&mut self, waiter: &mpsc::Sender<Stats>) {
        if self.send(&ToWorker::Stats) {
            self.stats_waiters.retain(|waiter| !waiter.is_closed());
            self.stats_waiters.push(waiter.clone());
        }
    }

    pub(in crate::model::actor) fn on_stats(&mut self, stats: Stats) {
        for waiter in self.stats_waiters.drain(..) {
            let _ = waiter.try_send(stats); // its channel has room for all instances
        }
    }

    /// Moment of the next check or verdict.
    pub(in crate::model::actor) fn check_due(&self) -> Option<Moment> {
        self.liveness.map(|liveness| liveness.due())
    }

    /// Judges whether it lives. The caller sends the check.
    pub(in crate::model::actor) fn check(&mut self, now: Moment) -> Check {
        self.liveness.as_mut().map_or(Check::Alive, |liveness| liveness.check(now))
    }

    /// Ends checks: the stop has deadlines of its own.
    pub(in crate::model::actor) fn stop_checks(&mut self) {
        self.liveness = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_waits_for_the_end_of_the_connection() {
        let mut worker = Worker::disconnected(Moment::ZERO);
        assert_eq!(worker.on_exit(ExitCause::OomKilled), Some(ExitCause::OomKilled), "there is no connection");
        worker.exit = Some(ExitCause::OomKilled);
        assert!(matches!(worker.on_disconnected(Moment::ZERO), Disconnected::Exited(ExitCause::OomKilled)));
        assert!(matches!(worker.on_disconnected(Moment::ZERO), Disconnected::Lost));
    }

    #[test]
    fn log_lines_are_new_once() {
        let mut worker = Worker::disconnected(Moment::ZERO);
        assert_eq!([1, 2].map(|seq| worker.on_line(seq)), [Some(false); 2]);
        assert_eq!([1, 2].map(|seq| worker.on_line(seq)), [None; 2], "sent again after a reconnect");
        assert_eq!((worker.on_line(3), worker.log_seen()), (Some(false), 3));
    }

    #[test]
    fn lines_that_a_predecessor_logged_are_logged_already() {
        let mut worker = Worker::disconnected(Moment::ZERO);
        worker.set_logged(2);
        assert_eq!(worker.log_seen(), 2, "handed on, whether or not the lines came again");
        assert_eq!([1, 2, 3].map(|seq| worker.on_line(seq)), [Some(true), Some(true), Some(false)]);
    }
}
