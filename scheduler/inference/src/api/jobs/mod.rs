//! Files and batches of the OpenAI API, and queued requests of Workers AI.
//!
//! Invariant: whatever a request names, it sees what the holder of its token owns, and nothing else. Without tokens there is one owner,
//! whose name is empty.

mod batches;
mod files;
pub(crate) mod queue;

use super::ApiRequest;
use crate::answer::{AnswerBody, Document};
use crate::jobs_handle::failure;
use crate::state::RunApi;
use bytes::Bytes;
use hyper::{Response, Version};
use omni_auth::TokenHolder;
use omni_body::BudgetShare;
use omni_ingress::body::IncomingBody;
use omni_jobs::{BatchId, FileId, JobStore, Scope, UnixMillis};
use omni_openai::JobsRoute;
use omni_openai::batch::object_answer;
use omni_request_error::Failure;
use omni_supervisor::clock::unix_ms;
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time for a client to read an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Name of the owner of what a request makes.
pub(super) fn owner(holder: Option<&Arc<TokenHolder>>) -> &str {
    holder.map_or("", |holder| holder.name())
}

/// Time of day, as the store has it.
pub(super) fn now() -> UnixMillis {
    UnixMillis(unix_ms())
}

/// The store.
async fn store(api: &RunApi) -> Result<JobStore, Failure> {
    let jobs = api.jobs().ok_or(Failure::NoSuchRoute)?;
    if api.node().draining() {
        return Err(Failure::ShuttingDown);
    }
    jobs.store().await
}

/// A request for files or batches, of one owner.
struct JobsRequest<'a> {
    request: &'a ApiRequest<'a>,
    store: JobStore,
    owner: &'a str,
}

impl ApiRequest<'_> {
    /// Serves a request for files or batches.
    pub(super) async fn jobs(
        &self,
        route: JobsRoute,
        incoming: &mut IncomingBody,
    ) -> Result<Response<AnswerBody>, Failure> {
        let store = store(self.api).await?;
        let jobs = JobsRequest { request: self, store, owner: owner(self.holder) };
        match route {
            JobsRoute::Files => jobs.files().await,
            JobsRoute::Upload => jobs.upload(incoming).await,
            JobsRoute::File(id) => jobs.file(file_id(&id)?).await,
            JobsRoute::DeleteFile(id) => jobs.delete_file(file_id(&id)?).await,
            JobsRoute::Content(id) => jobs.content(file_id(&id)?).await,
            JobsRoute::Batches => jobs.batches().await,
            JobsRoute::Create => jobs.create(incoming).await,
            JobsRoute::Batch(id) => jobs.batch(batch_id(&id)?).await,
            JobsRoute::Cancel(id) => jobs.cancel(batch_id(&id)?).await,
        }
    }
}

impl JobsRequest<'_> {
    /// Memory for what this owner sends and gets.
    fn share(&self) -> Arc<BudgetShare> {
        self.request.api.arrivals.share(self.request.holder.map(|holder| &**holder))
    }

    /// Response with a file, a batch or a list.
    fn respond(&self, object: &impl Serialize) -> Result<Response<AnswerBody>, Failure> {
        kept_json(object_answer(object), self.request.parts.version, &self.share())
    }

    fn scope(&self) -> Scope<'_> {
        Scope::Owner(self.owner)
    }
}

fn file_id(text: &str) -> Result<FileId, Failure> {
    FileId::parse(text).ok_or(Failure::NoSuchJob("file"))
}

fn batch_id(text: &str) -> Result<BatchId, Failure> {
    BatchId::parse(text).ok_or(Failure::NoSuchJob("batch"))
}

/// Response with a document, whose memory counts until its client has read it.
fn kept_json(json: Bytes, version: Version, share: &Arc<BudgetShare>) -> Result<Response<AnswerBody>, Failure> {
    Document::json(json).kept_response(None, version, share, Instant::now() + ANSWER_TIMEOUT)
}
