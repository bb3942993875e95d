//! Handle of the store: files and batches for the gateway, work for the dispatcher.

use crate::claim::{Claim, Source};
use crate::error::{JobError, OpenError};
use crate::files::{Content, Folder, Part};
use crate::id::{BatchId, FileId};
use crate::lifecycle::{Event, Phase, Status};
use crate::line;
use crate::output::{self, ItemReport};
use crate::readers::{blocking, detached};
use crate::shared::Shared;
use crate::table::batches::{self, Stored};
use crate::table::items::{self, Claimed, ItemRef};
use crate::table::{files, owners};
use crate::tend;
use crate::time::UnixMillis;
use crate::types::{Batch, Counts, FileInfo, Form, Limits, Page, Purpose, Scope, Times, Usage, Work};
use crate::upload::Upload;
use crate::writer::Unit;
use rusqlite::Connection;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Time in which an equal request is a retry of the first: longer than the time-out of clients, ten minutes, after
/// which they send it again.
const RETRY_WINDOW: Duration = Duration::from_secs(15 * 60);

/// Store of batch jobs. Cloned handles are one store, which is closed with the last.
#[derive(Debug, Clone)]
pub struct JobStore {
    shared: Arc<Shared>,
}

/// Batch of the OpenAI API that a client asks for. The gateway has checked what it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewBatch {
    /// Name of the token's holder.
    pub owner: String,
    /// File with the requests.
    pub input: FileId,
    /// Route of all its requests.
    pub endpoint: String,
    /// JSON object, shown again with the batch.
    pub metadata: Option<String>,
    /// Time that output files are kept from their creation; the store's default if absent.
    pub output_expires_after: Option<Duration>,
}

impl JobStore {
    /// Opens the store below `dir`, creating what is missing. Items that the previous process had in flight wait again.
    /// Blocks for the disk.
    ///
    /// # Errors
    /// The folder cannot be used, another process uses it, or the database cannot be read.
    pub fn open(dir: &Path, limits: Limits, now: UnixMillis) -> Result<Self, OpenError> {
        Ok(Self { shared: Arc::new(Shared::open(dir, limits, now)?) })
    }

    /// Closes the store once what waits is on the disk. Later changes fail, and the next process may open the folder.
    /// Items that are still claimed then count as lost with this process: claims are to be dropped before.
    pub async fn close(&self) {
        self.shared.writer.close().await;
    }

    /// Counter that changes when there may be work, or something may be due.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes()
    }

    /// Does what is due, within [`Limits::pass`]; returns when to call again if [`JobStore::changes`] says nothing before:
    /// at once if more is due.
    ///
    /// # Errors
    /// The database or the disk failed.
    pub async fn tend(&self, now: UnixMillis) -> Result<Option<UnixMillis>, JobError> {
        tend::tend(&self.shared, now).await
    }

    /// Bytes of all files and results, counted as [`Limits::disk`] bounds them.
    #[must_use]
    pub fn disk_used(&self) -> u64 {
        self.shared.disk.used()
    }
}

/// Files.
impl JobStore {
    /// Begins an upload.
    ///
    /// # Errors
    /// There is no room, or the disk failed.
    pub async fn upload(&self, owner: &str, name: &str) -> Result<Upload, JobError> {
        let (shared, owner, name) = (Arc::clone(&self.shared), owner.to_owned(), name.to_owned());
        blocking(move || Upload::begin(&shared, &owner, &name)).await
    }

    /// File of the caller.
    ///
    /// # Errors
    /// There is no such file, or the database failed.
    pub async fn file(&self, scope: Scope<'_>, id: FileId, now: UnixMillis) -> Result<FileInfo, JobError> {
        let scope = scope.to_owned();
        let find =
            move |connection: &Connection| files::find(connection, scope.get(), id, now)?.ok_or(JobError::NoFile);
        self.shared.readers.read_async(find).await
    }

    /// Content of a file of the caller.
    ///
    /// # Errors
    /// There is no such file, its owner reads too many, or it cannot be opened.
    pub async fn content(
        &self,
        scope: Scope<'_>,
        id: FileId,
        now: UnixMillis,
    ) -> Result<(FileInfo, Content), JobError> {
        let info = self.file(scope, id, now).await?;
        let (folder, permit) = (self.shared.folder.clone(), self.shared.contents.take(&info.owner)?);
        let content = blocking(move || Ok(Content::new(folder.open(id)?, permit))).await?;
        Ok((info, content))
    }

    /// Files of the caller, of one purpose or of all; the newest first.
    ///
    /// # Errors
    /// The database failed.
    pub async fn files(
        &self,
        scope: Scope<'_>,
        purpose: Option<Purpose>,
        page: Page<FileId>,
        now: UnixMillis,
    ) -> Result<Vec<FileInfo>, JobError> {
        let scope = scope.to_owned();
        let list = move |connection: &Connection| Ok(files::list(connection, scope.get(), purpose, &page, now)?);
        self.shared.readers.read_async(list).await
    }

    /// Deletes a file for its owner. Its bytes go when no batch reads it any more.
    ///
    /// # Errors
    /// There is no such file, or the database failed.
    pub async fn delete_file(&self, scope: Scope<'_>, id: FileId, now: UnixMillis) -> Result<(), JobError> {
        let scope = scope.to_owned();
        let hide = move |unit: &mut Unit<'_>| {
            if files::hide(unit.connection, scope.get(), id, now)? { Ok(()) } else { Err(JobError::NoFile) }
        };
        self.shared.writer.submit(0, hide).await?;
        self.shared.changed();
        Ok(())
    }
}

/// Batches.
impl JobStore {
    /// Creates a batch over an uploaded file. The same request again, as a client's retry is, returns the same batch.
    ///
    /// # Errors
    /// There is no such file for batches, or the database failed.
    pub async fn create(&self, new: NewBatch, now: UnixMillis) -> Result<Batch, JobError> {
        let keep = new.output_expires_after.unwrap_or(self.shared.limits.keep);
        let form = Form::OpenAi { endpoint: new.endpoint };
        let mut batch = self.batch_of(new.owner, form, new.input, now);
        batch.metadata = new.metadata;
        let shared = Arc::clone(&self.shared);
        let create = move |unit: &mut Unit<'_>| {
            let input = files::find(unit.connection, Scope::Owner(&batch.owner), batch.input, now)?;
            if input.ok_or(JobError::NoFile)?.purpose != Purpose::Batch {
                return Err(JobError::Purpose);
            }
            let since = UnixMillis(now.0.saturating_sub(batches::millis(RETRY_WINDOW)));
            if let Some(same) = batches::same(unit.connection, &batch, keep, since)? {
                return Ok(same.batch);
            }
            owners::check_batch(unit.connection, &batch.owner, &shared.limits)?;
            batches::insert(unit.connection, &batch, keep)?;
            Ok(batch)
        };
        let batch = self.shared.writer.submit(0, create).await?;
        self.shared.changed();
        Ok(batch)
    }

    /// Creates a batch of Workers AI from the inputs of one model, each a JSON object.
    ///
    /// # Errors
    /// There are too many, one is too large, there is no room, or the disk failed.
    pub async fn queue(
        &self,
        owner: &str,
        model: &str,
        inputs: Vec<Vec<u8>>,
        now: UnixMillis,
    ) -> Result<Batch, JobError> {
        let limits = &self.shared.limits;
        if inputs.is_empty() || inputs.len() > limits.items as usize {
            return Err(JobError::Requests(limits.items));
        }
        if inputs.iter().any(|input| input.len() > limits.line) {
            return Err(JobError::TooLarge { what: "a request", bound: limits.line as u64 });
        }
        let (this, owner, model) = (self.clone(), owner.to_owned(), model.to_owned());
        // The file counts as long as it is there, whether its client waits or not.
        detached(async move { this.queue_inputs(owner, model, inputs, now).await }).await
    }

    async fn queue_inputs(
        &self,
        owner: String,
        model: String,
        inputs: Vec<Vec<u8>>,
        now: UnixMillis,
    ) -> Result<Batch, JobError> {
        let bytes = inputs.iter().map(|input| input.len() as u64 + 1).sum();
        let (shared, name) = (Arc::clone(&self.shared), owner.clone());
        let write = move || {
            let mut reserved = shared.disk.reserve(&name);
            let room = shared.readers.read(|connection| Ok(owners::room(connection, &name, &shared.limits)?))?;
            reserved.grow(bytes, room)?;
            Ok((write_inputs(&shared.folder, inputs)?, reserved))
        };
        let (id, reserved) = blocking(write).await?;
        let limits = self.shared.limits.clone();
        let batch = self.batch_of(owner.clone(), Form::WorkersAi { model }, id, now);
        let file = FileInfo {
            id,
            owner,
            purpose: Purpose::Queued,
            name: String::new(),
            bytes,
            created_at: now,
            // The batch has ended by then, and its results have been kept for their time.
            expires_at: batch.times.expires.after(limits.keep),
        };
        let row = batch.clone();
        let create = move |unit: &mut Unit<'_>| {
            owners::check_file(unit.connection, &file.owner, file.bytes, &limits)?;
            owners::check_batch(unit.connection, &file.owner, &limits)?;
            files::insert(unit.connection, &file)?;
            Ok(batches::insert(unit.connection, &row, limits.keep)?)
        };
        self.shared.insert_file(id, create).await?;
        reserved.keep();
        self.shared.changed();
        Ok(batch)
    }

    fn batch_of(&self, owner: String, form: Form, input: FileId, now: UnixMillis) -> Batch {
        Batch {
            id: BatchId::new(),
            owner,
            form,
            input,
            phase: Phase::Validating,
            times: Times { created: now, expires: now.after(self.shared.limits.window), ..Times::default() },
            counts: Counts::default(),
            model: None,
            usage: Usage::default(),
            output: None,
            error: None,
            errors: Vec::new(),
            metadata: None,
        }
    }

    /// Batch of the caller.
    ///
    /// # Errors
    /// There is no such batch, or the database failed.
    pub async fn batch(&self, scope: Scope<'_>, id: BatchId) -> Result<Batch, JobError> {
        Ok(self.stored(scope, id).await?.batch)
    }

    async fn stored(&self, scope: Scope<'_>, id: BatchId) -> Result<Stored, JobError> {
        let scope = scope.to_owned();
        let find = move |connection: &Connection| batches::find(connection, scope.get(), id)?.ok_or(JobError::NoBatch);
        self.shared.readers.read_async(find).await
    }

    /// Batches of the caller that the OpenAI API has, or all batches of the node; the newest first.
    ///
    /// # Errors
    /// The database failed.
    pub async fn batches(&self, scope: Scope<'_>, page: Page<BatchId>) -> Result<Vec<Batch>, JobError> {
        let scope = scope.to_owned();
        let list = move |connection: &Connection| Ok(batches::list(connection, scope.get(), &page)?);
        self.shared.readers.read_async(list).await
    }

    /// Cancels a batch; its results so far are kept. Does nothing if it is cancelled already.
    ///
    /// # Errors
    /// There is no such batch, it ends in another way, or the database failed.
    pub async fn cancel(&self, scope: Scope<'_>, id: BatchId, now: UnixMillis) -> Result<Batch, JobError> {
        let scope = scope.to_owned();
        let cancel = move |unit: &mut Unit<'_>| {
            let find = |unit: &mut Unit<'_>| batches::find(unit.connection, scope.get(), id)?.ok_or(JobError::NoBatch);
            let stored = find(unit)?;
            match (batches::apply(unit.connection, stored.no, Event::Cancel, now)?, stored.batch.status()) {
                (Some(_), _) | (None, Status::Cancelling | Status::Cancelled) => Ok(find(unit)?.batch),
                (None, status) => Err(JobError::Ended(status.name())),
            }
        };
        let batch = self.shared.writer.submit(0, cancel).await?;
        self.shared.changed();
        Ok(batch)
    }

    /// Bytes of all results of a batch of Workers AI.
    ///
    /// # Errors
    /// There is no such batch, or the database failed.
    pub async fn results_bytes(&self, scope: Scope<'_>, id: BatchId) -> Result<u64, JobError> {
        let no = self.stored(scope, id).await?.no;
        self.shared.readers.read_async(move |connection| Ok(batches::results_bytes(connection, no)?)).await
    }

    /// Items of a batch of Workers AI with their results, in their order from number `first` on: at most 500 at a time,
    /// and 16 MiB if one alone does not have more. Results of more than `longest` bytes are left out. Those of an
    /// OpenAI batch are in its output files instead, once it has ended.
    ///
    /// # Errors
    /// There is no such batch, or its files cannot be read.
    pub async fn reports(
        &self,
        scope: Scope<'_>,
        id: BatchId,
        first: u32,
        most: u32,
        longest: u64,
    ) -> Result<Vec<ItemReport>, JobError> {
        let stored = self.stored(scope, id).await?;
        let (folder, readers) = (self.shared.folder.clone(), self.shared.readers.clone());
        blocking(move || output::reports(&folder, &readers, &stored, first, most, longest)).await
    }
}

/// Work.
impl JobStore {
    /// Items that wait or are in flight, by batch and model; the batch that expires first is the first.
    ///
    /// # Errors
    /// The database failed.
    pub async fn work(&self) -> Result<Vec<Work>, JobError> {
        self.shared.readers.read_async(|connection| Ok(batches::work(connection)?)).await
    }

    /// Number of batches in each state, of all owners.
    ///
    /// # Errors
    /// The database failed.
    pub async fn states(&self) -> Result<Vec<(Status, u64)>, JobError> {
        self.shared.readers.read_async(|connection| Ok(batches::states(connection)?)).await
    }

    /// Claims up to `most` items of a batch for one model. The attempts are counted, on the disk, when this returns. None
    /// are returned to a batch that has to wait for its turn, which it keeps by asking as often as others.
    ///
    /// # Errors
    /// There is no such batch, no room for results, or the database failed.
    pub async fn claim(&self, batch: BatchId, model: &str, most: u32) -> Result<Vec<Claim>, JobError> {
        if !self.shared.disk.has_room() {
            return Err(JobError::DiskBound);
        }
        let limits = self.shared.limits.clone();
        // The sum over all rows of an owner is read beside the writer, which others wait for.
        let find = move |connection: &Connection| {
            let stored = batches::find(connection, Scope::Node, batch)?.ok_or(JobError::NoBatch)?;
            let has_room = owners::has_room(connection, &stored.batch.owner, &limits)?;
            if has_room { Ok(stored) } else { Err(JobError::DiskBound) }
        };
        let Stored { no, batch: Batch { form, input, owner, .. }, .. } = self.shared.readers.read_async(find).await?;
        let source = Arc::new(Source { form, input, owner, model: model.to_owned() });
        let shared = Arc::clone(&self.shared);
        // Claims are made in the transaction: if nobody takes them, they give their items back.
        let claim = move |unit: &mut Unit<'_>| {
            if !batches::phase(unit.connection, no)?.ok_or(JobError::NoBatch)?.hands_out() {
                return Ok(Vec::new());
            }
            let claimed = items::claim(unit.connection, &mut shared.turns(), (no, &source.model), most)?;
            let of = |claimed: Claimed| {
                let item = ItemRef { no, batch, item: claimed.item };
                Claim::new(&shared, &source, item, claimed)
            };
            Ok(claimed.into_iter().map(of).collect())
        };
        self.shared.writer.submit(0, claim).await
    }
}

/// Writes the requests of a Workers AI batch as an input file, one on each line.
fn write_inputs(folder: &Folder, inputs: Vec<Vec<u8>>) -> Result<FileId, JobError> {
    let mut part = BufWriter::new(Part::create(folder)?);
    let mut write = |line: &[u8]| part.write_all(line).map_err(JobError::io("write requests"));
    for input in inputs {
        write(&line::on_one_line(input))?;
        write(b"\n")?;
    }
    let part = part.into_inner().map_err(|error| JobError::io("write requests")(error.into_error()))?;
    let id = part.id();
    part.keep()?;
    Ok(id)
}
