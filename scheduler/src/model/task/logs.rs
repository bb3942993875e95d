//! What instances write: into the node's log, and into what `omnictl logs` shows. The stacks that an engine writes are told
//! with the requests that it works on.

use super::ModelTask;
use crate::model::output::{Level, Output, is_stack, output};
use omni_config::Foreign;
use omni_control_api as api;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::instance::{LogLine, LogStream, ToWorker};
use omni_policy::InstanceNumber;

/// Requests that are named with a stack.
const NAMED: usize = 4;

impl ModelTask {
    pub(super) fn log(&self, number: InstanceNumber, id: &InstanceId, line: LogLine) {
        let stream = match line.stream {
            LogStream::Stdout => "stdout",
            LogStream::Stderr => "stderr",
            LogStream::Worker => "worker",
        };
        let is_stack = line.stream == LogStream::Stderr && is_stack(&line.text);
        let text = if is_stack { self.with_requests(number, &line.text) } else { line.text };
        let (unix_ms, instance) = (line.unix_ms, id.to_string());
        let Output { level, request_id, text: said } = output(&text);
        let request = request_id.map(str::to_owned);
        let (model, said) = (&self.model.name, Foreign(said));
        match level {
            Level::Error => tracing::error!(target: omni_log::MODEL, %model, %instance, request_id, stream, "{said}"),
            Level::Warning => tracing::warn!(target: omni_log::MODEL, %model, %instance, request_id, stream, "{said}"),
            Level::Info => tracing::info!(target: omni_log::MODEL, %model, %instance, request_id, stream, "{said}"),
        }
        let stream = stream.to_owned();
        self.model.logs.push(api::LogEntry { unix_ms, instance, stream, request_id: request, text });
    }

    /// A line of a stack, with the requests that keep the instance.
    fn with_requests(&self, number: InstanceNumber, text: &str) -> String {
        let requests = self.dispatch.suspects(number);
        let names: Vec<_> = requests.into_iter().filter_map(|id| self.requests.client_id(id)).take(NAMED).collect();
        let names = if names.is_empty() { "-".to_owned() } else { names.join(",") };
        format!("WARNING [{names}] {text}")
    }

    /// Asks all instances for the stacks of their threads, which they write to their logs. Returns how many were asked.
    pub(super) fn ask_stacks(&mut self) -> usize {
        let asked = self
            .instances
            .iter_mut()
            .filter(|instance| instance.link.as_ref().is_some_and(|link| link.send(&ToWorker::Stacks, &[]).is_ok()));
        asked.count()
    }
}
