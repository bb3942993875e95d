//! Data connections: requests out, answers in, and what follows when one breaks.

use super::ModelActor;
use super::instance::{CheckAnswer, GpuLease, Instance};
use omni_engine_client::{
    ConnectionError, DataConnection, FrameOutcome, Period, ProtocolViolation, Recipient, StartTimes, Swap,
};
use omni_engine_protocol::frame::{HEADER, Header, Kind};
use omni_engine_protocol::metrics;
use omni_node_protocol::instance::VERSIONS;
use omni_policy::InstanceNumber;
use omni_policy::dispatch::{Members, RequestId};
use omni_policy::fleet::{Event, Phase};
use omni_request_error::Failure;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Reads of the rest of an instance's output when its connection ends: far more than a socket holds, and a bound for an
/// engine that writes on without end.
const LAST_READS: usize = 64;

impl ModelActor {
    /// Sends requests that can be sent, and reports which instances became busy or idle.
    pub(super) fn send_requests(&mut self) {
        self.queue_requests();
        let mut unplaced = self.requests.dispatch.waiting();
        let mut any_busy = false;
        self.for_each_instance(|actor, number| {
            actor.flush(number);
            any_busy |= actor.report_load(number, &mut unplaced);
        });
        // A connection that broke just now has returned the requests that it had not sent.
        if self.queue_requests() {
            self.for_each_instance(Self::flush);
        }
        let dispatch = &self.requests.dispatch;
        let (in_flight, waiting) = (dispatch.in_flight(), dispatch.waiting());
        self.set_busy(any_busy || waiting > 0);
        self.model.metrics.in_flight.set(i64::try_from(in_flight).unwrap_or(0));
        self.model.metrics.queued.set(i64::try_from(waiting).unwrap_or(0));
        self.watch_load();
    }

    /// Queues requests at the connections, which leave in one write. Returns whether there were any.
    fn queue_requests(&mut self) -> bool {
        let mut any = false;
        loop {
            let instances = &self.instances;
            let may_send = |number| instances.get(number).is_some_and(Instance::may_send);
            let Some(dispatched) = self.requests.dispatch.next(self.now, may_send) else { return any };
            any = true;
            match dispatched.requests {
                Members::One(id) => self.queue_request(id, dispatched.instance),
                Members::Batch(members) => self.queue_batch(members, dispatched.instance),
            }
        }
    }

    /// Queues a request at an instance's connection.
    fn queue_request(&mut self, id: RequestId, number: InstanceNumber) {
        if self.requests.return_turn(id) || self.refuse_newer(id, number) {
            return;
        }
        let now = self.services.clock.instant(self.now);
        let recipient = self.recipient(number);
        let connection = self.instances.get_mut(number).and_then(Instance::connection_mut);
        let sent = recipient.zip(connection).is_some_and(|(to, at)| self.requests.table.send(id, at, to, now));
        if !sent {
            self.drop_request(id);
        }
    }

    /// Queues requests that are handled together at an instance's connection.
    fn queue_batch(&mut self, mut members: Vec<RequestId>, number: InstanceNumber) {
        members.retain(|id| !self.refuse_newer(*id, number));
        // A member that was announced has to come.
        for id in members.extract_if(.., |id| !self.requests.table.can_be_sent(*id)).collect::<Vec<_>>() {
            self.drop_request(id);
        }
        let isolate = self.instances.get(number).is_some_and(|at| at.content.manifest.batching.isolate);
        let numbers: Vec<u64> = members.iter().map(|id| id.0).collect();
        let connection = self.instances.get_mut(number).and_then(Instance::connection_mut);
        let batch = self.requests.next_batch();
        if connection.is_some_and(|connection| connection.send_batch(batch, &numbers, isolate).is_ok()) {
            self.model.metrics.on_batch(members.len());
        }
        for id in members {
            self.queue_request(id, number);
        }
    }

    /// Refuses a request that an instance of an earlier release does not know all of: nothing of it is to be left out.
    fn refuse_newer(&mut self, id: RequestId, number: InstanceNumber) -> bool {
        let worker = self.instances.get(number).and_then(Instance::worker);
        let version = worker.and_then(|worker| worker.old_protocol).unwrap_or(VERSIONS.newest);
        self.requests.refuse_newer(id, version)
    }

    fn recipient(&self, number: InstanceNumber) -> Option<Recipient> {
        let clock = &self.services.clock;
        let period = |(from, until)| Period { from: clock.instant(from), until: clock.instant(until) };
        let instance = self.instances.get(number)?;
        let swap = instance.lease.as_ref().and_then(GpuLease::swap);
        let swap = swap.map(|wait| Swap { from: clock.instant(wait.from), until: clock.instant(wait.until) });
        let prepared = self.generations.get(instance.generation).and_then(|info| info.prepared);
        let start = StartTimes { environment: prepared.map(period), instance: instance.started.map(period) };
        Some(Recipient { instance: number, name: Arc::clone(&instance.name), swap, start })
    }

    /// Fails a request that cannot be sent.
    fn drop_request(&mut self, id: RequestId) {
        self.requests.dispatch.finish(id, self.now);
        self.requests.table.fail(id, &Failure::Died);
    }

    /// Reports whether an instance has work to its lease, the capacity and the fleet; returns whether it has. `unplaced`:
    /// waiting requests for which no instance before this one was asked to bring its memory back to its card.
    fn report_load(&mut self, number: InstanceNumber, unplaced: &mut usize) -> bool {
        self.report_stuck_handlers(number);
        let (now, in_flight) = (self.now, self.requests.in_flight_of(number));
        let Some(instance) = self.instances.get_mut(number) else { return false };
        instance.load.in_flight.store(in_flight.into(), Ordering::Relaxed);
        let has_requests = in_flight > 0 || instance.load.external > 0;
        instance.note_work(has_requests, now);
        // A request that waits for its instance's GPU memory counts as work: it must not end with an idle time, nor wait
        // beyond one. The model's own health check does not, or an instance that is checked more often than its idle time
        // would never stop. It only keeps the memory on the card.
        let is_awaited = instance.accepts_requests() && *unplaced > 0;
        let runs_check = instance.engine().is_some_and(|engine| engine.runs_own_check());
        let external = instance.load.external > 0;
        if let Some(lease) = &mut instance.lease {
            // Requests of the previous scheduler run on a grant of its own: this residency queue has to know of them, or
            // the memory would leave under them.
            lease.sync(has_requests || runs_check, is_awaited || external, now);
            if is_awaited && !lease.is_granted() {
                *unplaced = unplaced.saturating_sub(instance.content.manifest.requests_at_once() as usize);
            }
        }
        let is_busy = has_requests || is_awaited;
        if std::mem::replace(&mut instance.load.is_busy, is_busy) != is_busy {
            if let Some(reservation) = &instance.reservation {
                if is_busy { reservation.on_busy() } else { reservation.on_idle(now) }
            }
            self.event(if is_busy { Event::Busy(number) } else { Event::Idle(number) });
        }
        is_busy
    }

    /// Writes pending output of an instance's connection.
    pub(super) fn flush(&mut self, number: InstanceNumber) {
        let connection = self.instances.get_mut(number).and_then(Instance::connection_mut);
        if let Some(Err(error)) = connection.map(DataConnection::flush) {
            self.on_connection_error(number, &error);
        }
    }

    /// Reads what the instances have sent.
    pub(super) fn read_connections(&mut self) {
        self.for_each_instance(Self::read);
    }

    fn read(&mut self, number: InstanceNumber) {
        let Some(engine) = self.instances.get_mut(number).and_then(Instance::engine_mut) else { return };
        if engine.intake.resumes_at(self.now).is_some() {
            return;
        }
        let Some(mut connection) = engine.connection.take() else { return };
        let read = self.read_frames(number, &mut connection);
        if let Some(engine) = self.instances.get_mut(number).and_then(Instance::engine_mut) {
            engine.connection = Some(connection);
        }
        if let Err(error) = read {
            self.on_connection_error(number, &error);
        }
    }

    /// Reads once and handles the frames. `Ok(true)` when there may be more.
    fn read_frames(
        &mut self,
        number: InstanceNumber,
        connection: &mut DataConnection,
    ) -> Result<bool, ConnectionError> {
        let more = connection.fill()?;
        let (mut frames, mut bytes) = (0, 0);
        loop {
            if let Some(id) = connection.dropped() {
                self.on_finished(number, RequestId(id));
            }
            if let Some(header) = connection.large_answer()? {
                self.admit_answer(number, &header, connection)?;
                continue;
            }
            let Some((header, payload)) = connection.next_frame()? else { break };
            frames += 1;
            bytes += HEADER + payload.len();
            if header.kind == Kind::Health {
                self.on_check_answer(number, header.id, &payload)?;
                continue;
            }
            if header.kind == Kind::Metrics {
                self.on_metrics(number, &payload)?;
                continue;
            }
            match self.requests.table.on_frame(number, &header, payload)? {
                FrameOutcome::Continues => {}
                FrameOutcome::Usage(used) => {
                    for (unit, amount) in used {
                        self.model.metrics.on_usage(unit, amount);
                    }
                }
                FrameOutcome::Finished(id) => self.on_finished(number, id),
            }
        }
        if let Some(engine) = self.instances.get_mut(number).and_then(Instance::engine_mut)
            && engine.intake.charge(frames, bytes, self.now)
        {
            self.model.metrics.input_pauses.inc();
        }
        Ok(more)
    }

    /// Reserves memory for a large answer. Without memory, or a client that waits, the answer is dropped as it arrives: its
    /// instance has the request until all of the answer has come, has to end it as a cancelled one, and gets no other
    /// request in its place.
    fn admit_answer(
        &mut self,
        number: InstanceNumber,
        header: &Header,
        connection: &mut DataConnection,
    ) -> Result<(), ConnectionError> {
        let id = RequestId(header.id);
        let is_awaited = self.requests.table.awaits_answer(number, header)?;
        let now = self.services.clock.instant(self.now);
        let permit = is_awaited.then(|| self.model.body_budget.incoming_response(header.length.into(), now)).flatten();
        if let Some(permit) = permit {
            self.requests.table.attach_permit(id, permit);
            return Ok(());
        }
        connection.drop_frame();
        self.requests.table.fail(id, &Failure::AnswerNotKept);
        self.requests.dispatch.cancel(id, self.now); // its handler has returned: no cancellation is sent
        self.watch_cancellations(number);
        Ok(())
    }

    /// An instance has finished a request.
    fn on_finished(&mut self, number: InstanceNumber, id: RequestId) {
        self.requests.dispatch.finish(id, self.now);
        // The next request of a serial handler may have been cancelled while it waited in the socket.
        self.watch_cancellations(number);
    }

    /// An engine has reported its own metrics.
    fn on_metrics(&mut self, number: InstanceNumber, payload: &[u8]) -> Result<(), ConnectionError> {
        let reported = metrics::parse(payload).map_err(|_| ProtocolViolation::Content)?;
        let Some(instance) = self.instances.get_mut(number) else { return Ok(()) };
        let id = instance.id.clone();
        if let Some(engine) = instance.engine_mut() {
            engine.series.get_or_insert_with(|| self.model.metrics.of_engine(id.as_str())).set(reported);
        }
        Ok(())
    }

    fn on_check_answer(&mut self, number: InstanceNumber, check: u64, problem: &[u8]) -> Result<(), ConnectionError> {
        let now = self.now;
        let Some(engine) = self.instances.get_mut(number).and_then(Instance::engine_mut) else { return Ok(()) };
        match engine.on_check_answer(check, now) {
            CheckAnswer::Unknown => return Err(ProtocolViolation::UnknownRequest.into()),
            CheckAnswer::Late => {}
            CheckAnswer::Timely if problem.is_empty() => {}
            CheckAnswer::Timely => {
                let problem = String::from_utf8_lossy(problem).into_owned();
                let last = problem.lines().next_back().unwrap_or_default();
                let why = format!("its healthcheck failed: {last}");
                self.replace(number, "healthcheck", &why, Event::Unresponsive(number));
                self.set_message_of(number, problem);
            }
        }
        Ok(())
    }

    /// Closes the data connection of an instance.
    pub(super) fn hang_up(&mut self, number: InstanceNumber) {
        if let Some(connection) = self.instances.get_mut(number).and_then(Instance::take_connection) {
            self.read_rest(number, connection);
        }
    }

    /// Reads the rest of a connection that ends. Answers that were written before are still in the socket: they count, and
    /// they show which request has begun.
    pub(super) fn read_rest(&mut self, number: InstanceNumber, mut connection: DataConnection) {
        for _ in 0..LAST_READS {
            if !matches!(self.read_frames(number, &mut connection), Ok(true)) {
                break;
            }
        }
        self.requests.requeue_unsent(&connection);
    }

    /// Drops a broken connection. When the engine has ended, its worker is about to report that. After a violation no further
    /// frame counts.
    fn on_connection_error(&mut self, number: InstanceNumber, error: &ConnectionError) {
        match (self.instances.get_mut(number).and_then(Instance::take_connection), error) {
            (Some(connection), ConnectionError::Closed | ConnectionError::Io(_)) => self.read_rest(number, connection),
            (Some(connection), ConnectionError::Violation(_)) => self.requests.requeue_unsent(&connection),
            (None, _) => {}
        }
        self.disable_route(number);
        if matches!(self.lifecycle.fleet.phase(number), Some(Phase::Stopping { .. }) | None) {
            return;
        }
        match error {
            ConnectionError::Closed => self.expect_exit(number),
            ConnectionError::Io(error)
                if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) =>
            {
                self.expect_exit(number);
            }
            ConnectionError::Io(_) | ConnectionError::Violation(_) => {
                let message = omni_log::chain(error);
                tracing::warn!(model = %self.model.name, error = message, "data connection");
                self.set_message_of(number, message);
                self.event(Event::Unresponsive(number));
            }
        }
    }

    fn expect_exit(&mut self, number: InstanceNumber) {
        if let Some(engine) = self.instances.get_mut(number).and_then(Instance::engine_mut) {
            engine.deadlines.on_disconnect(self.now);
        }
    }
}
