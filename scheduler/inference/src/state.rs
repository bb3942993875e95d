//! State of the APIs: the models of a node, the way to the successor, and what is kept for requests.

use crate::answer::AnswerBody;
use crate::arrivals::Arrivals;
use crate::forward::Forwarder;
use crate::jobs_handle::JobsHandle;
use crate::submission::Caller;
use crate::templates::Templates;
use bytes::Bytes;
use hyper::Response;
use omni_body::{BodyBudget, BodyKind, RequestBody};
use omni_request_error::Failure;
use omni_supervisor::clock::unix_ms;
use omni_supervisor::model::Model;
use omni_supervisor::model::content::Content;
use omni_supervisor::node::{Node, NotFound};
use omni_traces::Tracer;
use omni_usage::UsageRecorder;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Advice of a refusal while a model's content is unknown.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The APIs over the models of a node; its own is the run API.
#[derive(Debug)]
pub struct RunApi {
    node: Arc<Node>,
    forwarder: Forwarder,
    pub(crate) templates: Templates,
    /// Memory of bodies whose model is not known yet.
    pub(crate) arrivals: Arrivals,
    /// Takes a record of each attempt at a request.
    pub(crate) usage: Arc<UsageRecorder>,
    /// Decides which requests are traced.
    tracer: Arc<Tracer>,
    /// Batch jobs; `None`: the node takes none.
    jobs: Option<JobsHandle>,
    /// Start of this API, in seconds since 1970.
    pub(crate) since: u64,
}

impl RunApi {
    /// The API over these models; `forwarder` sends requests to the successor once there is one. `budget`: memory for
    /// bodies; the recorder takes a record of each attempt, and the tracer its spans.
    #[must_use]
    pub fn new(
        node: Arc<Node>,
        forwarder: Forwarder,
        budget: Arc<BodyBudget>,
        (usage, tracer): (Arc<UsageRecorder>, Arc<Tracer>),
    ) -> Self {
        let (templates, arrivals) = (Templates::new(node.launcher.clone()), Arrivals::new(budget));
        Self { node, forwarder, templates, arrivals, usage, tracer, jobs: None, since: unix_ms() / 1000 }
    }

    /// The same API with batch jobs.
    #[must_use]
    pub fn with_jobs(self, jobs: Option<JobsHandle>) -> Self {
        Self { jobs, ..self }
    }

    /// Batch jobs; `None`: the node takes none.
    #[must_use]
    pub fn jobs(&self) -> Option<&JobsHandle> {
        self.jobs.as_ref()
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Records of usage.
    #[must_use]
    pub fn usage(&self) -> &Arc<UsageRecorder> {
        &self.usage
    }

    pub(crate) fn tracer(&self) -> &Tracer {
        &self.tracer
    }

    pub(crate) fn forwarder(&self) -> &Forwarder {
        &self.forwarder
    }

    /// Sends a request to the successor, with its whole body as it came.
    pub(crate) async fn forward(
        &self,
        caller: Caller<'_>,
        original: Bytes,
        deadline: Instant,
    ) -> Result<Response<AnswerBody>, Failure> {
        let Caller { listener, parts, id, .. } = caller;
        let body = (RequestBody::Collected(BodyKind::Bytes, original), None);
        self.forwarder.received(listener, parts, body, id, deadline).await
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
}
