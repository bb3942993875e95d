//! The model's instance: connecting to its worker, adopting one that survived, hearing what the worker says.

use super::gpu::Turn;
use super::{BUILD_LOG, Instance, ModelTask};
use crate::failure::Failure;
use crate::model::Message;
use crate::model::worker_link::{self, WorkerLink};
use crate::policy::lifecycle::Event;
use crate::wire::connection::DataConnection;
use omni_api as api;
use omni_ipc::engine::HandlerMode;
use omni_ipc::exit::ExitCause;
use omni_ipc::id::InstanceId;
use omni_ipc::instance::{FromWorker, LogLine, LogStream, Stats, ToWorker, Welcome};
use std::os::fd::AsRawFd;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::oneshot;

impl ModelTask {
    pub(super) fn connect_worker(&mut self, id: InstanceId) {
        let Some(inbox) = self.own_inbox.upgrade() else { return };
        if !self.is_instance(&id) {
            return;
        }
        let path = self.context.instance_socket(&id);
        tokio::spawn(async move {
            let message = match WorkerLink::connect(&path, 0, worker_link::NEW).await {
                Ok((link, welcome)) => Message::Adopt(Box::new(welcome), link),
                Err(error) => {
                    tracing::warn!(instance = %id, error = crate::journal::chain(&error), "worker cannot be reached");
                    Message::WorkerClosed(id)
                }
            };
            let _ = inbox.send(message).await;
        });
    }

    /// A worker that welcomed us: the one we have just asked for, or one of an earlier scheduler.
    pub(super) fn adopt(&mut self, welcome: &Welcome, link: WorkerLink) {
        let ours = self.is_instance(&welcome.instance);
        if !ours {
            if self.instance.is_some() {
                tracing::warn!(model = %self.model.name, instance = %welcome.instance, "a second instance was found and is stopped");
                let _ = link.send(&ToWorker::Kill, &[]);
                return;
            }
            let id = welcome.instance.clone();
            let turn = welcome.gpu.as_ref().and_then(|gpu| self.keep_place(&id, gpu, welcome.ready.is_some()));
            self.instance = Some(Instance { turn, ..Instance::new(id) });
        }
        let Some(inbox) = self.own_inbox.upgrade() else { return };
        tokio::spawn(link.clone().forward(welcome.instance.clone(), inbox));
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
        if let Some(instance) = &mut self.instance {
            instance.pid = welcome.engine_pid;
            instance.link = Some(link);
            instance.connection = connection;
            instance.mode = welcome.ready;
        }
        if !ours {
            tracing::info!(model = %self.model.name, instance = %welcome.instance, "instance adopted");
            if let Some(inbox) = self.own_inbox.upgrade() {
                self.launcher.watch(welcome.instance.clone(), inbox);
            }
            if let Some(mode) = welcome.ready {
                self.dispatch.open(mode);
            }
            let current = self.is_current(&welcome.snapshot);
            self.event(&Event::Adopted { ready: welcome.ready.is_some(), current });
        } else if let Some(mode) = welcome.ready {
            self.ready(mode);
        }
        if !attached {
            self.event(&Event::Unresponsive);
        }
    }

    pub(super) fn ready(&mut self, mode: HandlerMode) {
        if let Some(instance) = &mut self.instance {
            instance.mode = Some(mode);
            if let Some(turn) = &mut instance.turn {
                turn.ready();
            }
            self.model.metrics.start.observe(instance.asked_at.elapsed().as_secs_f64());
        }
        self.message = None;
        self.event(&Event::Ready);
    }

    pub(super) fn worker_says(&mut self, said: FromWorker) {
        match said {
            FromWorker::Welcome(welcome) => {
                // Sent again when the engine's process id became known.
                if let Some(instance) = &mut self.instance {
                    instance.pid = welcome.engine_pid;
                }
                self.publish();
            }
            FromWorker::Ready { mode } => self.ready(mode),
            FromWorker::EngineFailed { phase, message } => {
                self.message = Some(format!("{phase} failed: {message}"));
                if matches!(phase.as_str(), "import" | "entrypoint") {
                    self.event(&Event::EngineRefused);
                }
                self.publish();
            }
            FromWorker::Log(line) => self.log(line),
            FromWorker::Stats(stats) => {
                self.model.metrics.memory.set(i64::try_from(stats.memory_bytes).unwrap_or(i64::MAX));
                let seat = self.instance.as_ref().and_then(|instance| instance.turn.as_ref()).map(Turn::seat);
                if let (Some(seat), Some(usage)) = (seat, stats.gpu) {
                    seat.used(usage);
                }
                for waiter in self.stats_waiters.drain(..) {
                    let _ = waiter.send(stats);
                }
            }
            FromWorker::Gpu(report) => {
                if let Some(turn) = self.instance.as_ref().and_then(|instance| instance.turn.as_ref()) {
                    turn.seat().moved(report);
                }
            }
            FromWorker::Exited(cause) => self.gone(&cause, &Event::Gone),
        }
    }

    pub(super) fn log(&mut self, line: LogLine) {
        let Some(instance) = &mut self.instance else { return };
        if line.seq <= instance.log_seen {
            return;
        }
        instance.log_seen = line.seq;
        let stream = match line.stream {
            LogStream::Stdout => "stdout",
            LogStream::Stderr => "stderr",
            LogStream::Worker => "worker",
        };
        let (unix_ms, text, id) = (line.unix_ms, line.text, instance.id.to_string());
        tracing::info!(target: "model", model = %self.model.name, instance = %id, stream, "{text}");
        self.model.logs.push(api::LogEntry { unix_ms, instance: id, stream: stream.to_owned(), text });
    }

    /// A line of the environment's build: the newest are shown with the model's state, and its log has them all.
    pub(super) fn log_build(&mut self, text: String) {
        if self.build_log.len() == BUILD_LOG {
            self.build_log.pop_front();
        }
        self.build_log.push_back(text.clone());
        self.publish();
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_ms = u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX);
        tracing::info!(target: "model", model = %self.model.name, stream = "build", "{text}");
        self.model.logs.push(api::LogEntry { unix_ms, instance: String::new(), stream: "build".to_owned(), text });
    }

    pub(super) fn ask_stats(&mut self, answer: oneshot::Sender<Stats>) {
        let link = self.instance.as_ref().and_then(|instance| instance.link.as_ref());
        if link.is_some_and(|link| link.send(&ToWorker::Stats, &[]).is_ok()) {
            self.stats_waiters.retain(|waiter| !waiter.is_closed());
            self.stats_waiters.push(answer);
        }
    }

    /// The launcher saw the worker's end. What the worker itself said is on another socket and may be read later: how
    /// an engine failed, the last lines of its log. Its connection ends with [`Message::WorkerClosed`].
    pub(super) fn worker_gone(&mut self, id: &InstanceId, cause: ExitCause) {
        let Some(instance) = self.instance.as_mut().filter(|instance| instance.id == *id) else { return };
        if instance.link.is_some() {
            instance.ended = Some(cause);
        } else {
            self.gone(&cause, &Event::Gone);
        }
    }

    /// There is no connection to the worker (any more), and it has not said how the instance ended. Perhaps it did not:
    /// it counts, and holds its GPU memory, until the launcher has seen to it that nothing of it is left.
    pub(super) fn worker_closed(&mut self, id: &InstanceId) {
        let Some(instance) = self.instance.as_mut().filter(|instance| instance.id == *id) else { return };
        instance.link = None;
        match instance.ended.take() {
            Some(cause) => self.gone(&cause, &Event::Gone),
            None => self.launcher.kill(id.clone()),
        }
    }

    /// The instance is gone: whatever it had is answered, then life goes on.
    pub(super) fn gone(&mut self, cause: &ExitCause, event: &Event) {
        let Some(instance) = self.instance.take() else { return };
        let wanted = self.life.end_is_wanted();
        let by_gpu = instance.turn.as_ref().is_some_and(|turn| turn.ended);
        let reason = if by_gpu { "gpu" } else { reason(cause) };
        drop(instance.turn); // its memory is free before another instance asks for some
        if !wanted {
            self.last_exit = Some(cause.to_string());
            self.model.metrics.died(reason);
            tracing::warn!(model = %self.model.name, instance = %instance.id, reason, "instance {cause}");
        }
        if *cause == ExitCause::OomKilled {
            self.model.metrics.oom_kills.inc();
        }
        if self.message.is_none() && !wanted {
            let was = match cause {
                ExitCause::Exited { .. } | ExitCause::StartFailed { .. } => "",
                ExitCause::Signaled { .. } | ExitCause::OomKilled | ExitCause::WorkerLost => "was ",
            };
            self.message = Some(format!("the last instance {was}{cause}"));
        }
        // Answers that were written before the end are in the socket still: they count.
        let connection = instance.connection;
        if let Some(mut connection) = connection {
            while let Ok(true) = self.drain_input(&mut connection) {}
        }
        let lost = self.dispatch.lost();
        for id in lost.failed {
            self.requests.fail(id, &Failure::Died);
        }
        for id in lost.dropped {
            self.requests.forget(id);
        }
        self.grace_ends = None;
        self.broken_ends = None;
        self.event(event);
        if self.dispatch.waiting() > 0 {
            self.event(&Event::Demand);
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
