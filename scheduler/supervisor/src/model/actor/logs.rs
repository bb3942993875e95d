//! Output of instances: into the node's log, and into the lines that `omnictl logs` shows. A stack that an engine writes is
//! logged with the requests that it works on.

use super::ModelActor;
use super::instance::Instance;
use crate::clock::unix_ms;
use crate::model::output::{Level, Output, is_stack, output};
use omni_config::Foreign;
use omni_control_api as api;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::instance::{LogLine, LogStream, ToWorker};
use omni_policy::InstanceNumber;

impl ModelActor {
    /// Takes a line of an instance. `is_logged`: the node's log has it, by an earlier scheduler.
    pub(super) fn log(&self, number: InstanceNumber, id: &InstanceId, line: LogLine, is_logged: bool) {
        let stream = match line.stream {
            LogStream::Stdout => "stdout",
            LogStream::Stderr => "stderr",
            LogStream::Worker => "worker",
        };
        let is_stack = line.stream == LogStream::Stderr && is_stack(&line.text);
        let text = if is_stack { self.with_requests(number, &line.text) } else { line.text };
        let (unix_ms, instance) = (line.unix_ms, id.to_string());
        let Output { level, request_id, text: message } = output(&text);
        let request = request_id.map(str::to_owned);
        let (model, message) = (&self.model.name, Foreign(message));
        match level {
            _ if is_logged => {}
            Level::Error => {
                tracing::error!(target: omni_log::MODEL, %model, %instance, request_id, stream, "{message}");
            }
            Level::Warning => {
                tracing::warn!(target: omni_log::MODEL, %model, %instance, request_id, stream, "{message}");
            }
            Level::Info => tracing::info!(target: omni_log::MODEL, %model, %instance, request_id, stream, "{message}"),
        }
        let stream = stream.to_owned();
        self.model.logs.push(api::LogEntry { unix_ms, instance, stream, request_id: request, text });
    }

    /// Adds what became of an instance to the lines that `omnictl logs` shows.
    pub(super) fn log_for_author(&self, id: &InstanceId, text: &str) {
        let unix_ms = unix_ms();
        for line in text.lines() {
            let (instance, stream, text) = (id.to_string(), "node".to_owned(), line.to_owned());
            self.model.logs.push(api::LogEntry { unix_ms, instance, stream, request_id: None, text });
        }
    }

    /// A line of a stack with the ids of the requests that keep the instance busy.
    fn with_requests(&self, number: InstanceNumber, text: &str) -> String {
        let ids = self.requests.suspects(number);
        let ids = if ids.is_empty() { "-".to_owned() } else { ids.join(",") };
        format!("WARNING [{ids}] {text}")
    }

    /// Asks all instances to write the stacks of their threads to their logs. Returns the number of instances asked.
    pub(super) fn request_stacks(&mut self) -> usize {
        self.instances.iter().filter_map(Instance::worker).filter(|worker| worker.send(&ToWorker::Stacks)).count()
    }
}
