//! The data connections: requests out, answers in, and what follows when one breaks.

use super::ModelTask;
use super::instances::Instance;
use omni_engine_client::{ConnectionError, DataConnection, FrameOutcome, ProtocolViolation, Recipient};
use omni_engine_protocol::control::HandlerMode;
use omni_engine_protocol::frame::{HEADER, Kind};
use omni_policy::dispatch::{self, RequestId};
use omni_policy::fleet::{Event, Phase};
use omni_policy::{InstanceNumber, Moment};
use omni_request_error::Failure;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// After the data connection broke, the worker has this long to report the end of its engine. Usually it takes a
/// millisecond; on a machine that is overloaded, an end that is all in order is not to be told as a broken engine.
const BROKEN_GRACE: Duration = Duration::from_secs(2);
/// Reads of what an instance has written when its connection ends: far more than a socket holds, so that who writes on
/// without end is not read without end.
const LAST_READS: usize = 64;

impl ModelTask {
    /// Sends what can be sent, and says what has begun or ended since the last call.
    pub(super) fn send_waiting(&mut self) {
        let now = self.now();
        self.send_all();
        let mut waiting = self.dispatch.waiting();
        let mut any_busy = false;
        let mut last = None;
        while let Some(number) = self.instances.next(last) {
            last = Some(number);
            self.flush(number);
            any_busy |= self.settle(number, &mut waiting, now);
        }
        // A connection that broke just now gave back what it had not taken.
        if self.send_all() {
            let mut last = None;
            while let Some(number) = self.instances.next(last) {
                last = Some(number);
                self.flush(number);
            }
        }
        self.count_busy(any_busy || self.dispatch.waiting() > 0);
        self.model.metrics.in_flight.set(i64::try_from(self.dispatch.in_flight()).unwrap_or(0));
        self.model.metrics.queued.set(i64::try_from(self.dispatch.waiting()).unwrap_or(0));
        self.watch_load(now);
    }

    /// Queues what can be sent at the connections. Returns whether that was anything.
    fn send_all(&mut self) -> bool {
        let (now, at) = (self.now(), Instant::now()); // they leave in one write
        let mut any = false;
        while let Some((id, number)) =
            self.dispatch.next(now, |number| self.instances.get(number).is_some_and(Instance::may_send))
        {
            any = true;
            if !self.send(id, number, at) {
                self.dispatch.finish(id, now);
                self.requests.fail(id, &Failure::Died);
            }
        }
        any
    }

    fn send(&mut self, id: RequestId, number: InstanceNumber, at: Instant) -> bool {
        let Some(instance) = self.instances.get_mut(number) else { return false };
        let Some(connection) = &mut instance.connection else { return false };
        let swap = instance.lease.as_ref().and_then(super::gpu::GpuLease::swap);
        let to = Recipient { instance: number, version: Arc::clone(&instance.version), swap };
        self.requests.send(id, connection, to, at)
    }

    /// Says whether an instance has something to do now, and returns it. `waiting`: requests for which no instance
    /// before this one was asked to come back to its card.
    fn settle(&mut self, number: InstanceNumber, waiting: &mut usize, now: Moment) -> bool {
        self.tell_stuck(number);
        let count = self.dispatch.in_flight_of(number);
        let Some(instance) = self.instances.get_mut(number) else { return false };
        instance.in_flight.store(count as u64, Ordering::Relaxed);
        let has_some = count > 0 || instance.elsewhere > 0;
        instance.is_at_work(has_some, now);
        // A request that waits for its instance's GPU memory is work: it must not end an idle time, nor wait beyond one.
        // The model's own health check is none, or an instance that is asked more often than its idle time would never
        // stop. It only holds the memory on the card.
        let is_waited_for = instance.open && *waiting > 0;
        let is_busy = has_some || is_waited_for;
        if let Some(lease) = &mut instance.lease {
            // What runs for the scheduler before was granted by that one: this one's ledger has to hear of it, or its
            // memory would leave under it.
            let in_flight = has_some || instance.health.runs_own();
            lease.settle(in_flight, is_waited_for || instance.elsewhere > 0, Instant::now());
            if is_waited_for && !lease.is_open() {
                *waiting = waiting.saturating_sub(instance.content.manifest.scaling.concurrency as usize);
            }
        }
        if is_busy != instance.busy {
            instance.busy = is_busy;
            if let Some(reservation) = &instance.reservation {
                if is_busy { reservation.on_busy() } else { reservation.on_idle(now) }
            }
            self.event(&if is_busy { Event::Busy(number) } else { Event::Idle(number) });
        }
        is_busy
    }

    /// For who asks since when the node has nothing to do.
    fn count_busy(&mut self, is_busy: bool) {
        if is_busy == self.was_busy {
            return;
        }
        self.was_busy = is_busy;
        if let Some(time) = self.dispatch.average_time() {
            self.model.metrics.set_usual_time(time);
        }
        self.context.busy_models.fetch_add(if is_busy { 1 } else { -1 }, Ordering::Relaxed);
        self.context.touch();
    }

    pub(super) fn flush(&mut self, number: InstanceNumber) {
        let connection = self.instances.get_mut(number).and_then(|instance| instance.connection.as_mut());
        if let Some(Err(error)) = connection.map(DataConnection::flush) {
            self.broken(number, &error);
        }
    }

    /// Takes what the instances have said.
    pub(super) fn read_all(&mut self) {
        let mut last = None;
        while let Some(number) = self.instances.next(last) {
            last = Some(number);
            self.read(number);
        }
    }

    fn read(&mut self, number: InstanceNumber) {
        let now = self.now();
        if self.instances.get(number).is_some_and(|instance| instance.intake.resumes_at(now).is_some()) {
            return;
        }
        let Some(mut connection) = self.take_connection(number) else { return };
        let taken = self.drain_input(number, &mut connection);
        if let Some(instance) = self.instances.get_mut(number) {
            instance.connection = Some(connection);
        }
        if let Err(error) = taken {
            self.broken(number, &error);
        }
    }

    /// Takes what one read brings. `Ok(true)` when there may be more.
    pub(super) fn drain_input(
        &mut self,
        number: InstanceNumber,
        connection: &mut DataConnection,
    ) -> Result<bool, ConnectionError> {
        let more = connection.fill()?;
        let (mut frames, mut bytes) = (0, 0);
        loop {
            if let Some(id) = connection.dropped() {
                self.is_over(number, RequestId(id));
            }
            if let Some(header) = connection.large_answer()? {
                let awaits = self.requests.awaits_answer(number, &header)?;
                let permit =
                    awaits.then(|| self.model.room.incoming_response(header.length.into(), Instant::now())).flatten();
                let Some(permit) = permit else {
                    connection.drop_frame();
                    self.refuse_answer(number, RequestId(header.id));
                    continue;
                };
                self.requests.attach_permit(RequestId(header.id), permit);
            }
            let Some((header, payload)) = connection.next_frame()? else { break };
            frames += 1;
            bytes += HEADER + payload.len();
            if header.kind == Kind::Health {
                if !self.checked(number, header.id, &payload) {
                    return Err(ProtocolViolation::UnknownRequest.into());
                }
                continue;
            }
            match self.requests.on_frame(number, &header, payload)? {
                FrameOutcome::Continues => {}
                FrameOutcome::Usage(used) => {
                    for (unit, amount) in used {
                        self.model.metrics.used(unit, amount);
                    }
                }
                FrameOutcome::Finished(id) => self.is_over(number, id),
            }
        }
        let now = self.now();
        if let Some(instance) = self.instances.get_mut(number)
            && instance.intake.charge(frames, bytes, now)
        {
            self.model.metrics.input_pauses.inc();
        }
        Ok(more)
    }

    /// There is no room for an answer that has begun. Its instance has the request until all of the answer has come: it is to
    /// end it as it has to end what was cancelled, and gets no other one in its place.
    fn refuse_answer(&mut self, number: InstanceNumber, id: RequestId) {
        self.requests.fail(id, &Failure::AnswerNotKept);
        self.dispatch.cancel(id, self.now()); // its handler has returned: there is nothing to tell it
        self.watch_grace(number);
    }

    /// The instance has done with a request.
    fn is_over(&mut self, number: InstanceNumber, id: RequestId) {
        self.dispatch.finish(id, self.now());
        // The next one may have been cancelled while it waited for its turn.
        self.watch_grace(number);
    }

    /// Ends the data connection.
    pub(super) fn hang_up(&mut self, number: InstanceNumber) {
        if let Some(connection) = self.take_connection(number) {
            self.read_out(number, connection);
        }
    }

    fn take_connection(&mut self, number: InstanceNumber) -> Option<DataConnection> {
        self.instances.get_mut(number)?.connection.take()
    }

    /// The end of a data connection. Answers that were written before are in the socket still: they count, and they say
    /// which request has begun.
    pub(super) fn read_out(&mut self, number: InstanceNumber, mut connection: DataConnection) {
        for _ in 0..LAST_READS {
            if !matches!(self.drain_input(number, &mut connection), Ok(true)) {
                break;
            }
        }
        self.give_back_unsent(&connection);
    }

    /// Requests of which the instance has not one byte wait again, for any instance.
    pub(super) fn give_back_unsent(&mut self, connection: &DataConnection) {
        for id in connection.unsent().map(RequestId) {
            if self.requests.can_be_resent(id) {
                self.dispatch.requeue(id);
            }
        }
    }

    /// The data connection is of no use any more. When the engine has ended, its worker is about to say why. Of one that
    /// broke the rules nothing counts that comes after that.
    fn broken(&mut self, number: InstanceNumber, error: &ConnectionError) {
        match (self.take_connection(number), error) {
            (Some(connection), ConnectionError::Closed | ConnectionError::Io(_)) => self.read_out(number, connection),
            (Some(connection), ConnectionError::Violation(_)) => self.give_back_unsent(&connection),
            (None, _) => {}
        }
        self.close(number);
        if matches!(self.fleet.phase(number), Some(Phase::Stopping { .. }) | None) {
            return;
        }
        match error {
            ConnectionError::Closed => self.expect_end(number),
            ConnectionError::Io(error)
                if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) =>
            {
                self.expect_end(number);
            }
            ConnectionError::Io(_) | ConnectionError::Violation(_) => {
                let message = omni_log::chain(error);
                tracing::warn!(model = %self.model.name, error = message, "data connection");
                self.say_of(number, message);
                self.event(&Event::Unresponsive(number));
            }
        }
    }

    /// Its worker is about to say how it ended.
    fn expect_end(&mut self, number: InstanceNumber) {
        if let Some(instance) = self.instances.get_mut(number) {
            instance.broken_ends.get_or_insert(Instant::now() + BROKEN_GRACE);
        }
    }

    /// The instance takes requests from now on.
    pub(super) fn open(&mut self, number: InstanceNumber) {
        let Some(instance) = self.instances.get_mut(number) else { return };
        let Some(mode) = instance.mode else { return };
        if !instance.open
            && let Some(reservation) = &instance.reservation
        {
            reservation.on_serving(self.now);
        }
        instance.open = true;
        let mode = match mode {
            HandlerMode::Serial => dispatch::HandlerMode::Serial,
            HandlerMode::Concurrent => dispatch::HandlerMode::Concurrent,
        };
        let name = dispatch::hash_name(instance.id.as_str().as_bytes());
        self.dispatch.enable(number, name, mode, instance.content.manifest.scaling.concurrency);
        self.dispatch.set_external_requests(number, instance.elsewhere);
    }

    /// It takes no further ones.
    pub(super) fn close(&mut self, number: InstanceNumber) {
        if let Some(instance) = self.instances.get_mut(number) {
            instance.open = false;
        }
        self.dispatch.disable(number);
    }
}
