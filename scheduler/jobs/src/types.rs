//! Values of the store's interface. Pure.

use crate::id::{BatchId, FileId};
use crate::lifecycle::{Phase, Status};
use crate::time::UnixMillis;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Bounds of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all files and results together; beyond it uploads are refused and no item is handed out.
    pub disk: u64,
    /// Bytes of the files and results of one owner; beyond it its uploads are refused and none of its items is handed
    /// out. The owner of a node without tokens has no such bound, and ten times the three below.
    pub owner_disk: u64,
    /// Files of one owner.
    pub owner_files: u64,
    /// Batches of one owner that have not ended.
    pub owner_batches: u64,
    /// Batches of one owner that are kept, those that have ended included.
    pub owner_kept: u64,
    /// Bytes of an uploaded file.
    pub upload: u64,
    /// Requests of a batch.
    pub items: u32,
    /// Bytes of a line of an input file, which is held in memory.
    pub line: usize,
    /// Bytes of a result.
    pub result: usize,
    /// Models of a batch.
    pub models: usize,
    /// Bytes of input files that are read, for validation and output files, before the store is asked again what is due;
    /// each other step counts a little.
    pub pass: u64,
    /// Time from the creation of a batch until it expires.
    pub window: Duration,
    /// Time that files, and batches after their end, are kept.
    pub keep: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            disk: 10 << 30,
            owner_disk: 5 << 30,
            owner_files: 10_000,
            owner_batches: 1000,
            owner_kept: 10_000,
            upload: 200 << 20,
            items: 50_000,
            line: 8 << 20,
            result: 16 << 20,
            models: 100,
            pass: 64 << 20,
            window: Duration::from_secs(24 * 3600),
            keep: Duration::from_secs(30 * 24 * 3600),
        }
    }
}

/// Files and batches that a caller sees: those of one token's holder, or all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope<'a> {
    /// Name of the token's holder. Anybody else's do not exist for it.
    Owner(&'a str),
    /// The operator of the node.
    Node,
}

impl Scope<'_> {
    pub(crate) fn to_owned(self) -> OwnedScope {
        OwnedScope(match self {
            Scope::Owner(owner) => Some(owner.to_owned()),
            Scope::Node => None,
        })
    }
}

/// Scope that goes to another thread.
#[derive(Debug, Clone)]
pub(crate) struct OwnedScope(Option<String>);

impl OwnedScope {
    pub(crate) fn get(&self) -> Scope<'_> {
        self.0.as_deref().map_or(Scope::Node, Scope::Owner)
    }
}

/// Part of a list, the newest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page<Id> {
    /// Last entry of the previous page.
    pub after: Option<Id>,
    /// Entries, at most 100.
    pub limit: usize,
}

impl<Id> Page<Id> {
    pub(crate) fn rows(&self) -> i64 {
        i64::try_from(self.limit.clamp(1, 100)).unwrap_or(100)
    }
}

/// Reason for which a file exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Input of a batch, uploaded by a client.
    Batch,
    /// Output or error file of a batch.
    BatchOutput,
    /// Requests of a Workers AI batch; in no list of files.
    Queued,
}

/// File of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileInfo {
    /// Identifier.
    pub id: FileId,
    /// Name of the token's holder.
    pub owner: String,
    /// Reason for which it exists.
    pub purpose: Purpose,
    /// Name that the client gave it.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Time of its creation.
    pub created_at: UnixMillis,
    /// Time from which it does not exist any more.
    pub expires_at: UnixMillis,
}

/// API that a batch belongs to, which is the form of its lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// Lines of `custom_id`, `method`, `url` and `body`; all for this route.
    OpenAi {
        /// Route, such as `/v1/chat/completions`.
        endpoint: String,
    },
    /// Each line is the input of this model, which may have an `external_reference`.
    WorkersAi {
        /// Name of the model.
        model: String,
    },
}

/// Batch of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Identifier.
    pub id: BatchId,
    /// Name of the token's holder.
    pub owner: String,
    /// API it belongs to.
    pub form: Form,
    /// File with its requests.
    pub input: FileId,
    /// State.
    pub phase: Phase,
    /// Times of its states.
    pub times: Times,
    /// Items, once validated.
    pub counts: Counts,
    /// Model that all its items name, once validated.
    pub model: Option<String>,
    /// Tokens of all results.
    pub usage: Usage,
    /// File with the responses of success, if there is any.
    pub output: Option<FileId>,
    /// File with the other items, if there is any.
    pub error: Option<FileId>,
    /// Lines for which it was refused.
    pub errors: Vec<LineError>,
    /// JSON object that the client gave it.
    pub metadata: Option<String>,
}

impl Batch {
    /// State in the words of the OpenAI API.
    #[must_use]
    pub fn status(&self) -> Status {
        self.phase.status()
    }
}

/// Times at which a batch entered its states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// Creation.
    pub created: UnixMillis,
    /// Time at which it expires.
    pub expires: UnixMillis,
    /// First time at which an item could run.
    pub in_progress: Option<UnixMillis>,
    /// Cancellation.
    pub cancelling: Option<UnixMillis>,
    /// Last result, or the end of the window.
    pub finalizing: Option<UnixMillis>,
    /// End: completed, failed, expired or cancelled.
    pub ended: Option<UnixMillis>,
}

/// Items of a batch. Items that never ran, because it was cancelled or expired, are neither completed nor failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// All.
    pub total: u64,
    /// With a response of success.
    pub completed: u64,
    /// With another response, or with none for good.
    pub failed: u64,
}

/// Tokens of a result, or of all results of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of prompts, cached ones included.
    pub input: u64,
    /// Tokens of prompts that a cache held.
    pub cached: u64,
    /// Tokens of answers, reasoning included.
    pub output: u64,
    /// Tokens of reasoning.
    pub reasoning: u64,
}

/// Fault of an input file, in the form of the OpenAI API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineError {
    /// Kind of the fault.
    pub code: String,
    /// Line, from 1; `None` if it is the whole file's.
    pub line: Option<u32>,
    /// Fault, in words.
    pub message: String,
    /// Member of the line.
    pub param: Option<String>,
}

/// Response to an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemResult {
    /// HTTP status: below 300 is success.
    pub status: u16,
    /// Identifier of the request that was sent.
    pub request_id: String,
    /// Body. Text that is not JSON is stored as a JSON string.
    pub body: Vec<u8>,
    /// Tokens.
    pub usage: Usage,
}

/// Items of one batch for one model that wait or run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    /// Batch.
    pub batch: BatchId,
    /// Name of the token's holder.
    pub owner: String,
    /// Name of the model.
    pub model: String,
    /// Items that wait.
    pub pending: u64,
    /// Waiting items that were in flight when an instance died: each is claimed alone, before the others of the batch and
    /// while nothing of the model is in flight, of any batch.
    pub suspects: u64,
    /// Items that were claimed and not reported.
    pub in_flight: u64,
    /// Creation of the batch.
    pub created: UnixMillis,
    /// Time at which the batch expires.
    pub expires: UnixMillis,
    /// The batch is cancelled or has expired: nothing is claimed, and what is in flight should be cancelled.
    pub stopping: bool,
}
