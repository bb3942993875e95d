//! Messages of launcher and workers, adoption, and the ends of instances.

use super::ModelActor;
use super::environments::mailbox;
use super::instance::{Disconnected, Instance, InstanceState, Worker};
use crate::model::worker_link::{self, WorkerLink};
use crate::model::{Adoption, Message};
use omni_engine_client::DataConnection;
use omni_engine_protocol::control::HandlerMode;
use omni_launcher_client::LauncherError;
use omni_log::Kind;
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::instance::{FromWorker, Stats, ToWorker, Welcome};
use omni_policy::fleet::Event;
use omni_policy::{Generation, InstanceNumber};
use std::os::fd::AsRawFd;
use std::time::Duration;
use tokio::sync::mpsc;

/// Reason why an instance with stuck handlers ends.
pub(super) const IGNORED_CANCELLATION: &str = "a handler ignored its cancellation";

impl ModelActor {
    /// The launcher has started the worker of an instance.
    pub(super) fn on_worker_started(&mut self, id: InstanceId) {
        if self.instances.find(&id).is_some() {
            self.connect_worker(id, 0, worker_link::NEW);
        }
    }

    fn connect_worker(&self, id: InstanceId, log_seen: u64, within: Duration) {
        let Some(inbox) = self.inbox.upgrade() else { return };
        let path = self.services.instance_socket(&id);
        tokio::spawn(async move {
            let message = match WorkerLink::connect(&path, log_seen, within).await {
                Ok((link, welcome)) => Message::WorkerConnected(Box::new(welcome), link),
                Err(error) => {
                    tracing::warn!(instance = %id, error = omni_log::chain(&error), "worker cannot be reached");
                    Message::WorkerDisconnected(id)
                }
            };
            let _ = inbox.send(message).await;
        });
    }

    /// A worker is connected, for the first time or again. After a reconnect its engine keeps the data connection.
    pub(super) fn on_worker_connected(&mut self, welcome: &Welcome, link: WorkerLink) {
        let now = self.now;
        let Some(instance) = self.instances.find_mut(&welcome.instance) else { return };
        let number = instance.number;
        let is_reconnect = instance.worker().is_some();
        self.forward_messages(&welcome.instance, &link);
        let is_attached = if is_reconnect {
            tracing::info!(model = %self.model.name, instance = %welcome.instance, "connected to the worker again");
            if let Some(instance) = self.instances.get_mut(number) {
                instance.on_reconnected(link, welcome, now);
            }
            true
        } else {
            self.attach(number, welcome, link)
        };
        self.warn_of_old_protocol(number);
        if let Some(mode) = welcome.ready {
            self.on_ready(number, mode);
        }
        if !is_attached {
            self.event(Event::Unresponsive(number));
        }
    }

    /// Takes over an instance of an earlier scheduler.
    pub(super) fn adopt(&mut self, adoption: Adoption) {
        let Adoption { welcome, link, content, external_requests, logged } = adoption;
        let id = welcome.instance.clone();
        if self.instances.find(&id).is_some() {
            return; // this scheduler has started it
        }
        tracing::info!(model = %self.model.name, instance = %id, "instance adopted");
        self.fall_back_at_adoption(&content.snapshot);
        let was_ready = self.versions.was_ready(&content.snapshot);
        let (generation, content) = self.generations.register(content, self.now);
        let number = self.lifecycle.fleet.next_number();
        let reservation = self.adopt_reservation(generation, &content);
        let on_card = welcome.gpu.as_ref().zip(reservation.as_ref());
        let lease =
            on_card.and_then(|(gpu, reservation)| self.adopt_lease(&id, gpu, welcome.ready.is_some(), reservation));
        let settings = content.settings();
        let instance = self.instances.insert(Instance::new(number, id.clone(), (generation, content), self.now));
        (instance.lease, instance.reservation, instance.load.external) = (lease, reservation, external_requests);
        instance.state = InstanceState::Launching;
        self.forward_messages(&id, &link);
        let is_attached = self.attach(number, &welcome, link);
        if let Some(worker) = self.instances.get_mut(number).and_then(Instance::worker_mut) {
            worker.set_logged(logged);
        }
        self.warn_of_old_protocol(number);
        if let (Some(mode), Some(instance)) = (welcome.ready, self.instances.get_mut(number)) {
            instance.on_ready(mode);
        }
        if let Some(mailbox) = mailbox(&self.inbox) {
            self.services.launcher.watch(id, mailbox);
        }
        let ready = welcome.ready.is_some();
        self.event(Event::Adopted { instance: number, generation, settings, ready, was_ready });
        if !is_attached {
            self.event(Event::Unresponsive(number));
        }
    }

    /// Gives an instance its worker, and its engine a data connection for this scheduler's life. Returns whether the engine
    /// got it.
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
        let is_attached = connection.is_some();
        let worker = Worker::new(link, welcome, self.now);
        if let Some(instance) = self.instances.get_mut(number) {
            instance.on_connected(worker, connection);
        }
        is_attached
    }

    fn forward_messages(&self, id: &InstanceId, link: &WorkerLink) {
        if let Some(inbox) = self.inbox.upgrade() {
            tokio::spawn(link.clone().forward(id.clone(), inbox));
        }
    }

    fn warn_of_old_protocol(&self, number: InstanceNumber) {
        let Some(instance) = self.instances.get(number) else { return };
        if let Some(spoken) = instance.worker().and_then(|worker| worker.old_protocol) {
            let hint = "it goes on; `omnictl restart` replaces it";
            let (model, instance) = (&self.model.name, &instance.id);
            tracing::warn!(%model, %instance, spoken, "its worker is of an earlier release: {hint}");
        }
    }

    /// The engine takes requests.
    fn on_ready(&mut self, number: InstanceNumber, mode: HandlerMode) {
        let Some(instance) = self.instances.get_mut(number) else { return };
        if !instance.on_ready(mode) {
            return;
        }
        instance.started = Some((instance.requested_at, self.now));
        let time = self.now.saturating_sub(instance.requested_at);
        self.model.metrics.start.observe(time.as_secs_f64());
        self.generations.set_message(instance.generation, None);
        self.event(Event::Ready(number));
    }

    pub(super) fn on_worker_message(&mut self, id: &InstanceId, message: FromWorker) {
        let now = self.now;
        let Some(instance) = self.instances.find_mut(id) else { return };
        let (number, generation) = (instance.number, instance.generation);
        let Some(worker) = instance.worker_mut() else { return };
        worker.on_message(now);
        match message {
            FromWorker::Pong => {}
            FromWorker::Welcome(welcome) => {
                // Sent again when the engine's process id became known.
                worker.engine_pid = welcome.engine_pid;
                self.publish();
            }
            FromWorker::Ready { mode } => self.on_ready(number, mode),
            FromWorker::EngineFailed { phase, message } => {
                if let Some(engine) = instance.engine_mut() {
                    engine.has_failed = true;
                }
                let message = format!("{phase} failed: {message}");
                self.log_for_author(id, &message);
                self.generations.set_message(generation, Some(message));
                if matches!(phase.as_str(), "import" | "entrypoint") {
                    self.event(Event::ContentRejected(number));
                }
                self.publish();
            }
            FromWorker::Log(line) => {
                if let Some(is_logged) = worker.on_line(line.seq) {
                    self.log(number, id, line, is_logged);
                }
            }
            FromWorker::Stats(stats) => {
                if let (Some(lease), Some(usage)) = (&instance.lease, stats.gpu) {
                    lease.placement().on_usage(usage);
                }
                instance.on_stats(stats);
            }
            FromWorker::Gpu(report) => {
                if let Some(lease) = &instance.lease {
                    lease.placement().on_report(report);
                }
            }
            FromWorker::Exited(cause) => self.on_gone(number, &cause),
        }
    }

    /// Asks all workers for statistics. The waiter of one that cannot be asked finds its sender dropped.
    pub(super) fn request_stats(&mut self, waiter: &mpsc::Sender<Stats>) {
        self.instances.iter_mut().filter_map(Instance::worker_mut).for_each(|worker| worker.request_stats(waiter));
    }

    /// The launcher could not start an instance; nothing of it is left.
    pub(super) fn on_start_failed(&mut self, id: &InstanceId, message: String) {
        let Some(number) = self.instances.find(id).map(|instance| instance.number) else { return };
        self.set_message_of(number, message.clone());
        self.on_gone(number, &ExitCause::StartFailed { message });
    }

    /// The launcher was away or lost, and nothing of the instance is left: its generation is started again later.
    pub(super) fn on_start_not_requested(&mut self, id: &InstanceId) {
        let Some(number) = self.instances.find(id).map(|instance| instance.number) else { return };
        let Some(Instance { generation, .. }) = self.instances.remove(number) else { return };
        self.generations.set_message(generation, Some(LauncherError::Silent.to_string()));
        self.event(Event::LauncherUnavailable { generation, instance: Some(number) });
    }

    /// The launcher saw the worker exit. The worker's own output is on another socket and may be read later: the reason why
    /// an engine failed, the last lines of its log. That connection ends with [`Message::WorkerDisconnected`].
    pub(super) fn on_worker_exited(&mut self, id: &InstanceId, cause: ExitCause) {
        let Some(instance) = self.instances.find_mut(id) else { return };
        let number = instance.number;
        let cause = match instance.worker_mut() {
            Some(worker) => worker.on_exit(cause),
            None => Some(cause),
        };
        if let Some(cause) = cause {
            self.on_gone(number, &cause);
        }
    }

    /// A worker cannot be reached, or its connection ended without a report of the exit. A worker that lives is connected to
    /// again. Any other holds its capacity and memory until the launcher has made sure that nothing of it is left.
    pub(super) fn on_worker_disconnected(&mut self, id: &InstanceId) {
        let now = self.now;
        let Some(instance) = self.instances.find_mut(id) else { return };
        let number = instance.number;
        match instance.worker_mut().map_or(Disconnected::Lost, |worker| worker.on_disconnected(now)) {
            Disconnected::Exited(cause) => self.on_gone(number, &cause),
            Disconnected::Reconnect { log_seen } => self.connect_worker(id.clone(), log_seen, worker_link::ALIVE),
            Disconnected::Lost => self.services.launcher.kill(id.clone()),
        }
    }

    /// An instance is gone: its requests are answered, then the fleet decides what follows.
    pub(super) fn on_gone(&mut self, number: InstanceNumber, cause: &ExitCause) {
        let fleet = &self.lifecycle.fleet;
        let was_requested = fleet.stop_was_requested(number);
        let has_stuck_handlers = fleet.stops_for_stuck_handlers(number);
        let Some(mut instance) = self.instances.remove(number) else { return };
        let connection = instance.take_connection();
        let Instance { id, generation, lease, reservation, replaced_for, .. } = instance;
        let was_ended_for_gpu = lease.as_ref().is_some_and(|lease| lease.is_ended);
        drop(lease);
        drop(reservation); // free before another instance asks for capacity
        let stuck = has_stuck_handlers.then(|| ("cancellation", IGNORED_CANCELLATION.to_owned()));
        if !was_requested {
            let (reason, message) = match replaced_for.or(stuck) {
                Some((reason, why)) => (reason, format!("{cause}: {why}")),
                None if was_ended_for_gpu => ("gpu", cause.to_string()),
                None => (reason(cause), cause.to_string()),
            };
            self.report_death(&id, cause, reason, message);
            self.explain_death(generation, cause);
        }
        if *cause == ExitCause::OomKilled {
            self.model.metrics.oom_kills.inc();
        }
        if let Some(connection) = connection {
            self.read_rest(number, connection);
        }
        self.requests.remove_instance(number);
        self.event(Event::Gone(number));
        if self.requests.dispatch.waiting() > 0 && !self.accepts_requests() {
            self.event(Event::Demand);
        }
    }

    fn report_death(&mut self, id: &InstanceId, cause: &ExitCause, reason: &'static str, message: String) {
        self.log_for_author(id, &format!("the instance has ended: {message}"));
        self.status.last_exit = Some(message);
        self.model.metrics.died(reason);
        tracing::warn!(
            message_id = Kind::InstanceDied.id(),
            model = %self.model.name,
            instance = %id,
            reason,
            "instance {cause}"
        );
    }

    /// Gives the generation of a dead instance a message, unless it has a better one.
    fn explain_death(&mut self, generation: Generation, cause: &ExitCause) {
        let Some(info) = self.generations.get_mut(generation) else { return };
        let was = match cause {
            ExitCause::Exited { .. } | ExitCause::StartFailed { .. } => "",
            ExitCause::Signaled { .. } | ExitCause::OomKilled | ExitCause::WorkerLost => "was ",
        };
        if matches!(cause, ExitCause::StartFailed { .. }) {
            info.message = None; // that of an earlier instance: no code of the model has run since
        }
        info.message.get_or_insert_with(|| format!("the last instance {was}{cause}"));
    }
}

/// Label of a cause in the metrics.
fn reason(cause: &ExitCause) -> &'static str {
    match cause {
        ExitCause::Exited { .. } => "exit",
        ExitCause::Signaled { .. } => "signal",
        ExitCause::OomKilled => "oom",
        ExitCause::StartFailed { .. } => "start",
        ExitCause::WorkerLost => "worker",
    }
}
