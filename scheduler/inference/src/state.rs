//! State of the APIs: the models of a node, the way to the successor, and what is kept for requests.

use crate::forward::Forwarder;
use crate::templates::Templates;
use omni_body::BudgetShare;
use omni_request_error::Failure;
use omni_supervisor::clock::unix_ms;
use omni_supervisor::metrics::Api;
use omni_supervisor::model::Model;
use omni_supervisor::model::content::Content;
use omni_supervisor::node::{Node, NotFound};
use std::sync::Arc;
use std::time::Duration;

/// Advice of a refusal while a model's content is unknown.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The APIs over the models of a node; its own is the run API.
#[derive(Debug)]
pub struct RunApi {
    node: Arc<Node>,
    forwarder: Forwarder,
    pub(crate) templates: Templates,
    /// Share of the memory for bodies whose model is not known yet.
    pub(crate) bodies: Arc<BudgetShare>,
    /// Start of this API, in seconds since 1970.
    pub(crate) since: u64,
}

impl RunApi {
    /// The API over these models; `forwarder` sends requests to the successor once there is one.
    #[must_use]
    pub fn new(node: Arc<Node>, forwarder: Forwarder, bodies: Arc<BudgetShare>) -> Self {
        let templates = Templates::new(node.launcher.clone());
        Self { node, forwarder, templates, bodies, since: unix_ms() / 1000 }
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    pub(crate) fn forwarder(&self) -> &Forwarder {
        &self.forwarder
    }

    /// Model of this name.
    pub(crate) async fn find(&self, name: &str) -> Result<Arc<Model>, Failure> {
        self.node.look_up(name).await.map_err(|why| match why {
            NotFound::NotRead => Failure::CannotStart { retry_after: RETRY_AFTER },
            NotFound::NoSuchModel => Failure::NoSuchModel,
        })
    }

    /// The content that a model serves, unless requests are refused now.
    pub(crate) async fn content(&self, model: &Model) -> Result<Arc<Content>, Failure> {
        if self.node.draining() {
            return Err(Failure::ShuttingDown);
        }
        let admission = model.first_admission().await;
        match admission.refusing {
            // There is none for a model that this request starts again.
            Some(failure) => Err(failure),
            None => admission.content.ok_or(Failure::CannotStart { retry_after: RETRY_AFTER }),
        }
    }

    /// Counts a request that failed. A failure of the model is in its log, where its author sees it.
    pub(crate) fn count_failure(&self, model: &Model, api: Api, failure: &Failure, id: &[u8]) {
        count_failure(model, api, failure);
        if matches!(failure, Failure::Died | Failure::AnswerNotSendable(_)) {
            log_for_author(model, failure, id);
        }
    }
}

/// Adds a failure to the model's log, where its author sees it.
fn log_for_author(model: &Model, failure: &Failure, id: &[u8]) {
    let (unix_ms, stream, text) = (unix_ms(), "node".to_owned(), failure.to_string());
    let request_id = Some(String::from_utf8_lossy(id).into_owned());
    let entry = omni_control_api::LogEntry { unix_ms, instance: String::new(), stream, request_id, text };
    model.logs.push(entry);
}

/// Counts the outcome of a request that failed.
fn count_failure(model: &Model, api: Api, failure: &Failure) {
    let outcomes = model.metrics.outcomes(api);
    match failure {
        Failure::Died
        | Failure::SuccessorDied
        | Failure::Raised
        | Failure::AnswerNotSendable(_)
        | Failure::Handler { .. }
        | Failure::Cancelled => outcomes.error.inc(),
        Failure::Deadline | Failure::DeadlineBuilding { .. } => 0, // counted as cancelled when the request is dropped
        Failure::NoHost
        | Failure::UnknownHost { .. }
        | Failure::OtherSite
        | Failure::HeadTooLarge
        | Failure::NoSuchRoute
        | Failure::MethodNotAllowed { .. }
        | Failure::NoSuchModel
        | Failure::Unauthorized
        | Failure::ModelNotAllowed
        | Failure::TooManyRequests { .. }
        | Failure::BadRequest(_)
        | Failure::InvalidRequest(_)
        | Failure::BodyTimeout
        | Failure::BodyEncoded { .. }
        | Failure::BodyTooLarge { .. }
        | Failure::QueueFull { .. }
        | Failure::NodeBusy
        | Failure::AnswerNotKept
        | Failure::CannotStart { .. }
        | Failure::NoRoom { .. }
        | Failure::NeverRoom
        | Failure::NoGpuMemory { .. }
        | Failure::NoFittingGpu
        | Failure::ShuttingDown => outcomes.refused.inc(),
    };
}
