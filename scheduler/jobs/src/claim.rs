//! Item that is handed out: its request, and the report of its attempt.

use crate::disk::of_results;
use crate::error::JobError;
use crate::id::{BatchId, FileId};
use crate::lifecycle::Interruption;
use crate::line;
use crate::readers::{blocking, detached};
use crate::shared::{Shared, read_at};
use crate::table::batches;
use crate::table::items::{self, Claimed, ItemRef, Kind, Record, Recorded};
use crate::time::UnixMillis;
use crate::types::{Form, ItemResult, Usage};
use crate::writer::Unit;
use serde::Serialize;
use serde_json::value::RawValue;
use std::sync::Arc;

/// Item in flight. Dropped without a report, it waits again.
#[derive(Debug)]
pub struct Claim {
    shared: Arc<Shared>,
    source: Arc<Source>,
    item: ItemRef,
    claimed: Claimed,
    reported: bool,
}

/// Batch of the claims of one call.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) form: Form,
    pub(crate) input: FileId,
    pub(crate) owner: String,
    pub(crate) model: String,
}

/// Request of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Route of the OpenAI API; `None` for the run API of Workers AI.
    pub endpoint: Option<String>,
    /// Name of the model.
    pub model: String,
    /// Body, as the client wrote it.
    pub body: Vec<u8>,
}

/// Response in the form of the OpenAI API's output lines.
#[derive(Serialize)]
struct Response<'a> {
    status_code: u16,
    request_id: &'a str,
    body: &'a RawValue,
}

#[derive(Serialize)]
struct Failure<'a> {
    code: &'a str,
    message: &'a str,
}

impl Claim {
    pub(crate) fn new(shared: &Arc<Shared>, source: &Arc<Source>, item: ItemRef, claimed: Claimed) -> Self {
        Self { shared: Arc::clone(shared), source: Arc::clone(source), item, claimed, reported: false }
    }

    /// Batch of the item.
    #[must_use]
    pub fn batch(&self) -> BatchId {
        self.item.batch
    }

    /// Position in the batch, from 0.
    #[must_use]
    pub fn item(&self) -> u32 {
        self.item.item
    }

    /// Number of this attempt, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.claimed.attempt
    }

    /// Returns true if an instance has died while the item was in flight: it runs alone on its model.
    #[must_use]
    pub fn is_suspect(&self) -> bool {
        self.claimed.suspect
    }

    /// Name of the token's holder.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.source.owner
    }

    /// Reads the request from the input file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub async fn request(&self) -> Result<Request, JobError> {
        let (folder, source, claimed) = (self.shared.folder.clone(), Arc::clone(&self.source), self.claimed);
        blocking(move || {
            let line = read_at(&folder.open(source.input)?, claimed.offset, u64::from(claimed.length))?;
            let body = line::body(&source.form, line).ok_or(JobError::Unknown("request"))?;
            let endpoint = match &source.form {
                Form::OpenAi { endpoint } => Some(endpoint.clone()),
                Form::WorkersAi { .. } => None,
            };
            Ok(Request { endpoint, model: source.model.clone(), body })
        })
        .await
    }

    /// Records the response. After an error the item is still claimed, and this can be tried again.
    ///
    /// # Errors
    /// The response is too large, or was not stored.
    pub async fn complete(&mut self, result: ItemResult, now: UnixMillis) -> Result<Recorded, JobError> {
        let ItemResult { status, request_id, body, usage } = result;
        let bound = self.shared.limits.result;
        if body.len() > bound {
            return Err(JobError::TooLarge { what: "the response", bound: bound as u64 });
        }
        let body = String::from_utf8(line::as_json(body)).ok().and_then(|json| RawValue::from_string(json).ok());
        let body = body.ok_or(JobError::Unknown("response"))?;
        let response = Response { status_code: status, request_id: &request_id, body: &body };
        let kind = if status < 300 { Kind::Success } else { Kind::Failure };
        self.record(kind, &response, usage, now).await
    }

    /// Records that there is no response and never will be: a line of the error file, with this code.
    ///
    /// # Errors
    /// It was not stored.
    pub async fn fail(&mut self, code: &str, message: &str, now: UnixMillis) -> Result<Recorded, JobError> {
        self.record(Kind::Error, &Failure { code, message }, Usage::default(), now).await
    }

    async fn record(
        &mut self,
        kind: Kind,
        value: &(impl Serialize + Sync),
        usage: Usage,
        now: UnixMillis,
    ) -> Result<Recorded, JobError> {
        let json = serde_json::to_vec(value).map_err(|_| JobError::Unknown("response"))?;
        let (item, record) = (self.item, Record { kind, json, usage });
        let length = record.json.len();
        let work = move |unit: &mut Unit<'_>| {
            let (recorded, bytes) = items::record(unit, &item, &record, now)?;
            let goes_on = batches::phase(unit.connection, item.no)?.is_some_and(|phase| phase.hands_out());
            Ok((recorded, bytes, goes_on))
        };
        let shared = Arc::clone(&self.shared);
        // A stored result counts, whether the caller waits or not.
        let stored = detached(async move {
            let (recorded, bytes, goes_on) = shared.writer.submit(length, work).await?;
            shared.disk.add(of_results(bytes));
            if !goes_on {
                shared.changed();
            }
            Ok(recorded)
        });
        let recorded = stored.await?;
        self.reported = true;
        Ok(recorded)
    }

    /// Reports that the attempt ended without a response: the item waits again, or has its error.
    ///
    /// # Errors
    /// It was not stored. The item waits again in any case.
    pub async fn interrupted(mut self, interruption: Interruption, now: UnixMillis) -> Result<(), JobError> {
        let (item, attempt) = (self.item, self.claimed.attempt);
        let work = move |unit: &mut Unit<'_>| items::interrupt(unit, &item, attempt, interruption, now);
        let shared = Arc::clone(&self.shared);
        let stored = detached(async move {
            let bytes = shared.writer.submit(0, work).await?;
            shared.disk.add(of_results(bytes));
            shared.changed();
            Ok(())
        });
        stored.await?;
        self.reported = true;
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.reported {
            let (item, attempt, shared) = (self.item, self.claimed.attempt, Arc::downgrade(&self.shared));
            self.shared.writer.post(move |unit| {
                // Counts nothing, so no time is needed.
                items::interrupt(unit, &item, attempt, Interruption::Preempted, UnixMillis::default())?;
                shared.upgrade().inspect(|shared| shared.changed());
                Ok(())
            });
        }
    }
}
