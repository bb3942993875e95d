//! What is heard of instances: from the launcher that started them, from their workers, and at their end.

use super::instances::Instance;
use super::{ModelTask, overrun};
use crate::clock::unix_ms;
use crate::launcher::Away;
use crate::model::worker_link::{self, WorkerLink};
use crate::model::{Adoption, Message};
use omni_engine_client::DataConnection;
use omni_engine_protocol::control::HandlerMode;
use omni_log::Kind;
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::instance::{FromWorker, Stats, ToWorker, VERSIONS, Welcome};
use omni_policy::InstanceNumber;
use omni_policy::fleet::{Event, Phase};
use omni_request_error::Failure;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// A worker that closes its connection sooner than this is not connected to again.
const STEADY: Duration = Duration::from_secs(1);

impl ModelTask {
    /// The launcher has started the worker of an instance that we asked for.
    pub(super) fn worker_started(&mut self, id: InstanceId) {
        if self.instances.find(&id).is_some() {
            self.connect_worker(id, 0, worker_link::NEW);
        }
    }

    fn connect_worker(&self, id: InstanceId, log_seen: u64, within: Duration) {
        let Some(inbox) = self.own_inbox.upgrade() else { return };
        let path = self.context.instance_socket(&id);
        tokio::spawn(async move {
            let message = match WorkerLink::connect(&path, log_seen, within).await {
                Ok((link, welcome)) => Message::Connected(Box::new(welcome), link),
                Err(error) => {
                    tracing::warn!(instance = %id, error = omni_log::chain(&error), "worker cannot be reached");
                    Message::WorkerClosed(id)
                }
            };
            let _ = inbox.send(message).await;
        });
    }

    /// The worker of an instance welcomed us, for the first time or again. Its engine keeps the data connection that it
    /// has, or has had.
    pub(super) fn connected(&mut self, welcome: &Welcome, link: WorkerLink) {
        let Some(number) = self.instances.find(&welcome.instance) else { return };
        let Some(instance) = self.instances.get(number) else { return };
        let (was_ready, is_attached) = (instance.mode.is_some(), instance.linked_at.is_some());
        let attached = is_attached || self.attach(number, welcome, link.clone());
        if is_attached {
            tracing::info!(model = %self.model.name, instance = %welcome.instance, "connected to the worker again");
            self.link(number, welcome, link);
        }
        if let Some(mode) = welcome.ready.filter(|_| !was_ready) {
            self.ready(number, mode);
        }
        if !attached {
            self.event(&Event::Unresponsive(number));
        }
    }

    /// An instance of an earlier scheduler serves on.
    pub(super) fn adopt(&mut self, adoption: Adoption) {
        let Adoption { welcome, link, content, elsewhere } = adoption;
        let id = welcome.instance.clone();
        if self.instances.find(&id).is_some() {
            return; // it was asked for in this life
        }
        tracing::info!(model = %self.model.name, instance = %id, "instance adopted");
        let is_ready = welcome.ready.is_some();
        self.is_found(&content.snapshot);
        let (generation, content) = self.generations.of(content);
        let number = self.fleet.next_number();
        let reservation = self.keep_room(generation, &content);
        let on_card = welcome.gpu.as_ref().zip(reservation.as_ref());
        let lease = on_card.and_then(|(gpu, reservation)| self.keep_place(&id, gpu, is_ready, reservation));
        let (settings, was_ready) = (content.settings(), self.lasting.was_ready(&content.snapshot));
        let fresh = Instance::new(id.clone(), generation, content);
        let instance = Instance { lease, reservation, launched: true, elsewhere, ..fresh };
        self.instances.insert(number, instance);
        let attached = self.attach(number, &welcome, link);
        if let Some(inbox) = self.own_inbox.upgrade() {
            self.launcher.watch(id, inbox);
        }
        self.event(&Event::Adopted { instance: number, generation, settings, ready: is_ready, was_ready });
        if !attached {
            self.event(&Event::Unresponsive(number));
        }
    }

    /// Connects the engine for this scheduler's life. Returns whether that could be.
    fn attach(&mut self, number: InstanceNumber, welcome: &Welcome, link: WorkerLink) -> bool {
        let connection = match DataConnection::pair() {
            Ok((connection, ends)) => {
                let sent = link.send(&ToWorker::Attach, &[ends.data.as_raw_fd(), ends.cancel.as_raw_fd()]);
                sent.is_ok().then_some(connection)
            }
            Err(error) => {
                tracing::error!(model = %self.model.name, %error, "no data connection can be made");
                None
            }
        };
        let attached = connection.is_some();
        if let Some(instance) = self.instances.get_mut(number) {
            instance.connection = connection;
            instance.mode = welcome.ready;
        }
        self.link(number, welcome, link);
        attached
    }

    /// From now on its worker is heard and told things over this.
    fn link(&mut self, number: InstanceNumber, welcome: &Welcome, link: WorkerLink) {
        if let Some(inbox) = self.own_inbox.upgrade() {
            tokio::spawn(link.clone().forward(welcome.instance.clone(), inbox));
        }
        let now = self.now();
        let stops = matches!(self.fleet.phase(number), Some(Phase::Stopping { .. }));
        if let Some(instance) = self.instances.get_mut(number) {
            instance.pid = welcome.engine_pid;
            instance.link = Some(link);
            instance.old_protocol = Some(welcome.protocol).filter(|spoken| *spoken < VERSIONS.newest);
            if let Some(spoken) = instance.old_protocol {
                let hint = "it goes on; `omnictl restart` replaces it";
                tracing::warn!(model = %self.model.name, instance = %instance.id, spoken, "its worker is of an earlier release: {hint}");
            }
            instance.linked_at = Some(Instant::now());
            if !stops {
                instance.health.connected(now);
            }
        }
    }

    fn ready(&mut self, number: InstanceNumber, mode: HandlerMode) {
        let Some(instance) = self.instances.get_mut(number) else { return };
        instance.mode = Some(mode);
        if let Some(lease) = &mut instance.lease {
            lease.ready();
        }
        self.model.metrics.start.observe(instance.asked_at.elapsed().as_secs_f64());
        self.generations.say(instance.generation, None);
        self.event(&Event::Ready(number));
    }

    pub(super) fn worker_says(&mut self, id: &InstanceId, said: FromWorker) {
        let Some(number) = self.instances.find(id) else { return };
        let now = self.now();
        let Some(instance) = self.instances.get_mut(number) else { return };
        instance.health.worker_speaks(now);
        match said {
            FromWorker::Pong => {}
            FromWorker::Welcome(welcome) => {
                // Sent again when the engine's process id became known.
                instance.pid = welcome.engine_pid;
                self.publish();
            }
            FromWorker::Ready { mode } => self.ready(number, mode),
            FromWorker::EngineFailed { phase, message } => {
                instance.failed = true;
                self.generations.say(instance.generation, Some(format!("{phase} failed: {message}")));
                if matches!(phase.as_str(), "import" | "entrypoint") {
                    self.event(&Event::ContentRejected(number));
                }
                self.publish();
            }
            FromWorker::Log(line) => {
                if instance.log_seen < line.seq {
                    instance.log_seen = line.seq;
                    self.log(number, id, line);
                }
            }
            FromWorker::Stats(stats) => {
                if let (Some(lease), Some(usage)) = (&instance.lease, stats.gpu) {
                    lease.placement().used(usage);
                }
                for waiter in instance.stats_waiters.drain(..) {
                    let _ = waiter.try_send(stats); // it has room for all that were asked
                }
            }
            FromWorker::Gpu(report) => {
                if let Some(lease) = &instance.lease {
                    lease.placement().moved(report);
                }
            }
            FromWorker::Exited(cause) => self.gone(number, &cause),
        }
    }

    /// Asks all instances what they use; who does not hear of one hears that its sender is dropped.
    pub(super) fn ask_stats(&mut self, answer: &mpsc::Sender<Stats>) {
        for instance in self.instances.iter_mut() {
            if instance.link.as_ref().is_some_and(|link| link.send(&ToWorker::Stats, &[]).is_ok()) {
                instance.stats_waiters.retain(|waiter| !waiter.is_closed());
                instance.stats_waiters.push(answer.clone());
            }
        }
    }

    /// The launcher could not start it; nothing of it is left.
    pub(super) fn start_failed(&mut self, id: &InstanceId, message: String) {
        if let Some(number) = self.instances.find(id) {
            self.say_of(number, message.clone());
            self.gone(number, &ExitCause::StartFailed { message });
        }
    }

    /// Who was to start it is away or gone, and nothing of it is left: it is started again when the launcher is back.
    pub(super) fn not_asked(&mut self, id: &InstanceId) {
        let Some(number) = self.instances.find(id) else { return };
        let Some(Instance { generation, .. }) = self.instances.remove(number) else { return };
        self.generations.say(generation, Some(Away::Silent.to_string()));
        self.event(&Event::LauncherUnavailable { generation, instance: Some(number) });
    }

    /// The launcher saw the worker's end. What the worker itself said is on another socket and may be read later: how
    /// an engine failed, the last lines of its log. Its connection ends with [`Message::WorkerClosed`].
    pub(super) fn worker_gone(&mut self, id: &InstanceId, cause: ExitCause) {
        let Some(number) = self.instances.find(id) else { return };
        match self.instances.get_mut(number) {
            Some(instance) if instance.link.is_some() => instance.ended = Some(cause),
            Some(_) | None => self.gone(number, &cause),
        }
    }

    /// There is no connection to the worker (any more), and it has not said how the instance ended. Perhaps it did not:
    /// a worker that lives takes us again. One that does not counts, and holds its memory, until the launcher has seen to
    /// it that nothing of it is left.
    pub(super) fn worker_closed(&mut self, id: &InstanceId) {
        let Some(number) = self.instances.find(id) else { return };
        let Some(instance) = self.instances.get_mut(number) else { return };
        let was_linked = instance.link.take().is_some();
        let held = instance.linked_at.is_some_and(|at| at.elapsed() >= STEADY);
        let log_seen = instance.log_seen;
        match instance.ended.take() {
            Some(cause) => self.gone(number, &cause),
            None if was_linked && held => self.connect_worker(id.clone(), log_seen, worker_link::ALIVE),
            None => self.launcher.kill(id.clone()),
        }
    }

    /// An instance is gone: whatever it had is answered, then life goes on.
    pub(super) fn gone(&mut self, number: InstanceNumber, cause: &ExitCause) {
        let wanted = self.fleet.stop_was_requested(number);
        let stuck = self.fleet.stops_for_stuck_handlers(number).then(|| ("cancellation", overrun::WHY.to_owned()));
        let Some(Instance { id, generation, lease, reservation, connection, given_up, .. }) =
            self.instances.remove(number)
        else {
            return;
        };
        let by_gpu = lease.as_ref().is_some_and(|lease| lease.ended);
        drop((lease, reservation)); // what it had is free before another instance asks for some
        let (reason, told) = match given_up.or(stuck) {
            Some((reason, why)) => (reason, format!("{cause}: {why}")),
            None if by_gpu => ("gpu", cause.to_string()),
            None => (reason(cause), cause.to_string()),
        };
        if !wanted {
            self.model.logs.push(omni_control_api::LogEntry {
                unix_ms: unix_ms(),
                instance: id.to_string(),
                stream: "node".to_owned(),
                request_id: None,
                text: format!("the instance has ended: {told}"),
            });
            self.last_exit = Some(told);
            self.model.metrics.died(reason);
            tracing::warn!(
                message_id = Kind::InstanceDied.id(),
                model = %self.model.name,
                instance = %id,
                reason,
                "instance {cause}"
            );
        }
        if *cause == ExitCause::OomKilled {
            self.model.metrics.oom_kills.inc();
        }
        if !wanted && let Some(known) = self.generations.get_mut(generation) {
            let was = match cause {
                ExitCause::Exited { .. } | ExitCause::StartFailed { .. } => "",
                ExitCause::Signaled { .. } | ExitCause::OomKilled | ExitCause::WorkerLost => "was ",
            };
            if matches!(cause, ExitCause::StartFailed { .. }) {
                known.message = None; // what an earlier one said: no code of the model has run since
            }
            known.message.get_or_insert_with(|| format!("the last instance {was}{cause}"));
        }
        if let Some(connection) = connection {
            self.read_out(number, connection);
        }
        self.lose(number);
        self.event(&Event::Gone(number));
        if self.dispatch.waiting() > 0 && !self.takes_requests() {
            self.event(&Event::Demand);
        }
    }

    /// Nothing more comes from an instance: what it had of requests has failed.
    pub(super) fn lose(&mut self, number: InstanceNumber) {
        let lost = self.dispatch.remove_instance(number);
        for id in lost.failed {
            self.requests.fail(id, &Failure::Died);
        }
        for id in lost.dropped {
            self.requests.forget(id);
        }
    }
}

fn reason(cause: &ExitCause) -> &'static str {
    match cause {
        ExitCause::Exited { .. } => "exit",
        ExitCause::Signaled { .. } => "signal",
        ExitCause::OomKilled => "oom",
        ExitCause::StartFailed { .. } => "start",
        ExitCause::WorkerLost => "worker",
    }
}

#[cfg(test)]
#[path = "instance_tests.rs"]
mod tests;
