//! Readiness and failure of the only model of a node, as events for the daemon. [`omni_policy::single`] decides on each state.

use omni_config::{Foreign, ModelName};
use omni_policy::single::{Fault, ServiceAction, decide};
use omni_supervisor::model::Model;
use omni_supervisor::node::Node;
use std::future::pending;
use std::sync::Arc;

/// Event of the single model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SingleEvent {
    /// The model is ready for the first time.
    Ready,
    /// The service has to end with the model. The cause was logged.
    Fault(Fault),
}

/// Watch on the single model, if the node has only one.
#[derive(Debug)]
pub(crate) struct SingleModelWatch {
    node: Arc<Node>,
    /// `None`: the node has many models.
    name: Option<ModelName>,
    /// Last event, which is not repeated.
    last: Option<SingleEvent>,
}

impl SingleModelWatch {
    /// Watches the node's only model. There are no events on a node of many models.
    #[must_use]
    pub(crate) fn new(node: &Arc<Node>) -> Self {
        let name = node.single().map(|single| single.name.clone());
        Self { node: Arc::clone(node), name, last: None }
    }

    /// Waits for the next event. Each occurs once.
    pub(crate) async fn next(&mut self) -> SingleEvent {
        let Some(name) = &self.name else { return pending().await };
        if self.node.find(name.as_str()).is_none() {
            self.node.whole_scan().await; // the model exists once its directory was reported
        }
        let Some(model) = self.node.find(name.as_str()) else { return pending().await };
        let mut view = model.subscribe();
        loop {
            let action = decide(view.borrow_and_update().service_status());
            let event = match action {
                ServiceAction::Ready => Some(SingleEvent::Ready),
                ServiceAction::End(fault) => Some(SingleEvent::Fault(fault)),
                ServiceAction::Wait => None,
            };
            if let Some(event) = event.filter(|event| self.last != Some(*event)) {
                if let SingleEvent::Fault(fault) = event {
                    log_fault(&model, fault);
                }
                self.last = Some(event);
                return event;
            }
            if view.changed().await.is_err() {
                return pending().await; // the model has ended with the node
            }
        }
    }
}

/// Logs the model's own message in full, a traceback for example. Other lines of the log have only its last line.
fn log_fault(model: &Model, fault: Fault) {
    let view = model.view();
    let why = view.message.or(view.directory.refused).or(view.last_exit).unwrap_or_default();
    let (name, why) = (&model.name, Foreign(&why));
    match fault {
        Fault::Failed => tracing::error!(model = %name, "the model has failed, and the service ends with it: {why}"),
        Fault::Unservable => tracing::error!(model = %name, "the model cannot be served, and the service ends: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use omni_policy::single::EX_CONFIG;

    #[test]
    fn an_unservable_model_exits_as_a_configuration_error() {
        assert_eq!(EX_CONFIG, omni_config::node::MISCONFIGURED);
    }
}
