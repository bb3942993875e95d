//! Follows the only model of a node for [`crate::serve`]: says when the service is ready, and when it has to end and why.
//!
//! What is made of each state is decided by [`crate::policy::single`].

use crate::model::Model;
use crate::node::Node;
use crate::policy::single::{Fault, ServiceAction, decide};
use omni_config::{Foreign, ModelName};
use std::future::pending;
use std::sync::Arc;

/// News of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// It takes requests, for the first time.
    Ready,
    /// The service ends with it; the log has said why.
    Fault(Fault),
}

/// See the module.
#[derive(Debug)]
pub struct Single {
    node: Arc<Node>,
    /// `None`: the node has many models.
    name: Option<ModelName>,
    /// What was said last.
    said: Option<News>,
}

impl Single {
    /// Of this node's only model, if it has only one.
    #[must_use]
    pub fn of(node: &Arc<Node>) -> Self {
        let name = node.context.models.single().map(|single| single.name.clone());
        Self { node: Arc::clone(node), name, said: None }
    }

    /// Waits for news. Each comes once; on a node of many models there are none.
    pub async fn news(&mut self) -> News {
        let Some(name) = &self.name else { return pending().await };
        if self.node.find(name.as_str()).is_none() {
            self.node.whole_scan().await; // it is there once its directory was told of
        }
        let Some(model) = self.node.find(name.as_str()) else { return pending().await };
        let mut view = model.subscribe();
        loop {
            let action = decide(view.borrow_and_update().seen());
            let news = match action {
                ServiceAction::Ready => Some(News::Ready),
                ServiceAction::End(fault) => Some(News::Fault(fault)),
                ServiceAction::Wait => None,
            };
            if let Some(news) = news.filter(|news| self.said != Some(*news)) {
                if let News::Fault(fault) = news {
                    say(&model, fault);
                }
                self.said = Some(news);
                return news;
            }
            if view.changed().await.is_err() {
                return pending().await; // it was ended with the node
            }
        }
    }
}

/// The model's own words, a traceback for example, stand here in full; elsewhere the log has their last line.
fn say(model: &Model, fault: Fault) {
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
    use crate::policy::single::EX_CONFIG;

    #[test]
    fn an_unservable_model_exits_as_a_configuration_error() {
        assert_eq!(EX_CONFIG, omni_config::node::MISCONFIGURED);
    }
}
