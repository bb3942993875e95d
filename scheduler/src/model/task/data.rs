//! The data connection: requests out, answers in, and what follows when it breaks.

use super::gpu::Turn;
use super::{Instance, ModelTask};
use crate::failure::Failure;
use crate::model::requests::Taken;
use crate::policy::lifecycle::{Event, Phase};
use crate::wire::connection::{Broken, DataConnection};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// After the data connection broke, the worker has this long to report the end of its engine.
const BROKEN_GRACE: Duration = Duration::from_millis(500);

impl ModelTask {
    pub(super) fn send_waiting(&mut self) {
        let now = self.context.started.elapsed();
        if let Some(Instance { connection: Some(connection), turn, .. }) = self.instance.as_mut()
            && turn.as_ref().is_none_or(Turn::is_open)
        {
            let swap = turn.as_ref().and_then(Turn::swap);
            while let Some(id) = self.dispatch.next(now) {
                if !self.requests.send(id, connection, swap) {
                    self.dispatch.finished(id, now);
                    self.requests.fail(id, &Failure::Died);
                }
            }
        }
        self.flush();
        // A request that waits for its instance's GPU memory is work: it must not end an idle time, nor wait beyond one.
        let is_ready = matches!(self.life.phase(), Phase::Ready { .. });
        let busy = self.dispatch.in_flight() > 0 || (is_ready && self.dispatch.waiting() > 0);
        if busy != self.was_busy {
            self.was_busy = busy;
            if let Some(time) = self.dispatch.usual_time() {
                self.model.metrics.set_usual_time(time);
            }
            self.context.busy_models.fetch_add(if busy { 1 } else { -1 }, Ordering::Relaxed);
            self.context.touch();
            self.event(if busy { &Event::Busy } else { &Event::Idle });
        }
        self.settle_turn(matches!(self.life.phase(), Phase::Ready { .. }));
        self.model.metrics.in_flight.set(i64::try_from(self.dispatch.in_flight()).unwrap_or(0));
        self.model.metrics.queued.set(i64::try_from(self.dispatch.waiting()).unwrap_or(0));
    }

    pub(super) fn flush(&mut self) {
        let connection = self.instance.as_mut().and_then(|instance| instance.connection.as_mut());
        if let Some(Err(error)) = connection.map(DataConnection::flush) {
            self.broken(&error);
        }
    }

    pub(super) fn read(&mut self) {
        let Some(mut connection) = self.instance.as_mut().and_then(|instance| instance.connection.take()) else {
            return;
        };
        match self.drain_input(&mut connection) {
            Ok(_) => {
                if let Some(instance) = &mut self.instance {
                    instance.connection = Some(connection);
                }
            }
            Err(error) => self.broken(&error),
        }
    }

    /// Takes what one read brings. `Ok(true)` when there may be more.
    pub(super) fn drain_input(&mut self, connection: &mut DataConnection) -> Result<bool, Broken> {
        let more = connection.fill()?;
        while let Some((header, payload)) = connection.frame()? {
            match self.requests.take(&header, payload) {
                Ok(Taken::More) => {}
                Ok(Taken::Usage(used)) => {
                    for (unit, amount) in used {
                        self.model.metrics.used(unit, amount);
                    }
                }
                Ok(Taken::Last(id)) => {
                    self.dispatch.finished(id, self.context.started.elapsed());
                    if self.grace_ends.is_some() {
                        self.grace_ends = None;
                        self.watch_grace();
                    }
                }
                Err(error) => return Err(Broken::Wire(error)),
            }
        }
        Ok(more)
    }

    /// The data connection is of no use any more. When the engine has ended, its worker is about to say why.
    pub(super) fn broken(&mut self, error: &Broken) {
        if let Some(instance) = &mut self.instance {
            instance.connection = None;
        }
        self.dispatch.close();
        if matches!(self.life.phase(), Phase::Stopping { .. }) {
            return;
        }
        match error {
            Broken::Closed => {
                self.broken_ends.get_or_insert(Instant::now() + BROKEN_GRACE);
            }
            Broken::Io(_) | Broken::Frame(_) | Broken::Wire(_) => {
                let message = crate::journal::chain(error);
                tracing::warn!(model = %self.model.name, error = message, "data connection");
                self.message = Some(message);
                self.event(&Event::Unresponsive);
            }
        }
    }
}
