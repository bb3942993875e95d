//! Steps that are due: validation, the end of windows, output files, removal of what is old.
//!
//! Each step can be repeated: one that a killed process had begun begins again. A step that fails is logged and tried
//! again later; other batches do not wait for it.

use crate::disk::of_results;
use crate::error::JobError;
use crate::lifecycle::{Due, Event, Facts, due};
use crate::output::{self, Written};
use crate::readers::blocking;
use crate::shared::Shared;
use crate::table::batches::{self, Stored};
use crate::table::{files, items};
use crate::time::UnixMillis;
use crate::types::{FileInfo, Form, Purpose};
use crate::validate::{Validated, validate};
use crate::writer::Unit;
use rusqlite::Connection;
use std::io::BufReader;
use std::time::Duration;

/// Pause after a step that failed.
const RETRY: Duration = Duration::from_secs(30);
/// Items inserted or deleted in one command: other commands wait a few milliseconds for it.
const CHUNK: usize = 2000;
/// Buffer of the input file.
const BUFFER: usize = 64 << 10;

/// Result of a look at one batch.
enum Step {
    /// Something was done, after which more may be due.
    Done,
    /// Nothing is due until then.
    Wait(UnixMillis),
    /// Nothing is due any more.
    Over,
}

/// Does all that is due; returns when to look again if nothing else happens.
pub(crate) async fn tend(shared: &Shared, now: UnixMillis) -> Result<Option<UnixMillis>, JobError> {
    let _alone = shared.tending.lock().await;
    loop {
        let mut next = Vec::new();
        let mut done = false;
        for (stored, facts) in shared.readers.read_async(move |connection| Ok(batches::due(connection, now)?)).await? {
            match step(shared, &stored, &facts, now).await {
                Ok(Step::Done) => done = true,
                Ok(Step::Wait(until)) => next.push(until),
                Ok(Step::Over) => {}
                Err(JobError::Closed) => return Err(JobError::Closed),
                Err(error) => {
                    let batch = stored.batch.id;
                    tracing::error!(%batch, error = &error as &dyn std::error::Error, "a step of a batch job failed");
                    next.push(now.after(RETRY));
                }
            }
        }
        if !done {
            next.extend(remove_old(shared, now).await?);
            return Ok(next.into_iter().min());
        }
    }
}

async fn step(shared: &Shared, stored: &Stored, facts: &Facts, now: UnixMillis) -> Result<Step, JobError> {
    match due(facts, now) {
        Due::Validate => check(shared, stored, now).await?,
        Due::Apply(event) => apply(shared, stored.no, event, now).await?,
        Due::Write => write(shared, stored, now).await?,
        Due::Wait(until) => return Ok(Step::Wait(until)),
        Due::Nothing => {
            purge(shared, stored).await?;
            return Ok(Step::Over);
        }
    }
    shared.changed();
    Ok(Step::Done)
}

async fn apply(shared: &Shared, no: i64, event: Event, now: UnixMillis) -> Result<(), JobError> {
    shared.writer.submit(0, move |unit| Ok(batches::apply(unit.connection, no, event, now).map(drop)?)).await
}

async fn check(shared: &Shared, stored: &Stored, now: UnixMillis) -> Result<(), JobError> {
    let (no, form, limits) = (stored.no, stored.batch.form.clone(), shared.limits.clone());
    let (folder, input) = (shared.folder.clone(), stored.batch.input);
    let validated = blocking(move || {
        let file = BufReader::with_capacity(BUFFER, folder.open(input)?);
        validate(file, &form, &limits).map_err(JobError::io("read the input file"))
    });
    match validated.await? {
        Ok(validated) => accept(shared, no, validated, now).await,
        Err(errors) => {
            let reject = move |unit: &mut Unit<'_>| {
                if batches::apply(unit.connection, no, Event::Rejected, now)?.is_some() {
                    batches::set_errors(unit.connection, no, &errors)?;
                }
                Ok(())
            };
            shared.writer.submit(0, reject).await
        }
    }
}

/// Inserts the items in chunks, and lets them run with the last.
async fn accept(shared: &Shared, no: i64, validated: Validated, now: UnixMillis) -> Result<(), JobError> {
    delete_items(shared, no).await?; // those of a process that was killed here
    let Validated { lines, models } = validated;
    let mut counts: Vec<(String, u64)> = models.into_iter().map(|name| (name, 0)).collect();
    for line in &lines {
        if let Some((_, items)) = counts.get_mut(usize::from(line.model)) {
            *items += 1;
        }
    }
    let mut first = 0;
    for chunk in lines.chunks(CHUNK) {
        let chunk = chunk.to_vec();
        let items = chunk.len() as u32;
        shared.writer.submit(0, move |unit| Ok(items::insert(unit.connection, no, first, &chunk)?)).await?;
        first += items;
    }
    let start = move |unit: &mut Unit<'_>| {
        // A batch that was cancelled meanwhile has its items deleted.
        if batches::apply(unit.connection, no, Event::Accepted, now)?.is_some() {
            batches::set_models(unit.connection, no, &counts)?;
        }
        Ok(())
    };
    shared.writer.submit(0, start).await
}

async fn delete_items(shared: &Shared, no: i64) -> Result<(), JobError> {
    let chunk = move |unit: &mut Unit<'_>| Ok(batches::purge_items(unit.connection, no, CHUNK as u32)?);
    while shared.writer.submit(0, chunk).await? {}
    Ok(())
}

async fn write(shared: &Shared, stored: &Stored, now: UnixMillis) -> Result<(), JobError> {
    let batch = &stored.batch;
    let outputs = match batch.form {
        Form::OpenAi { .. } => {
            let (folder, readers, stored) = (shared.folder.clone(), shared.readers.clone(), stored.clone());
            blocking(move || output::write(&folder, &readers, &stored)).await?
        }
        // Results of Workers AI are read where they are.
        Form::WorkersAi { .. } => output::Outputs::default(),
    };
    let info = |written: Written, name: &str| FileInfo {
        id: written.id,
        owner: batch.owner.clone(),
        purpose: Purpose::BatchOutput,
        name: format!("{}_{name}.jsonl", batch.id),
        bytes: written.bytes,
        created_at: now,
        expires_at: now.after(stored.output_keep),
    };
    let output = outputs.output.map(|written| info(written, "output"));
    let error = outputs.error.map(|written| info(written, "error"));
    let bytes: u64 = output.iter().chain(&error).map(|file| file.bytes).sum();
    let no = stored.no;
    let written = output.iter().chain(&error).map(|file| file.id).collect();
    let end = move |unit: &mut Unit<'_>| {
        for file in output.iter().chain(&error) {
            files::insert(unit.connection, file)?;
        }
        let id = |file: &Option<FileInfo>| file.as_ref().map(|file| file.id);
        batches::set_files(unit.connection, no, id(&output), id(&error))?;
        batches::apply(unit.connection, no, Event::Written, now)?;
        Ok(())
    };
    if let Err(error) = shared.writer.submit(0, end).await {
        shared.remove_unnamed(&error, written).await;
        return Err(error);
    }
    shared.disk.add(bytes);
    Ok(())
}

/// Removes items and results that are in the output files, or have been kept for their time.
async fn purge(shared: &Shared, stored: &Stored) -> Result<(), JobError> {
    let (no, batch) = (stored.no, &stored.batch);
    delete_items(shared, no).await?;
    let (id, folder) = (batch.id, shared.folder.clone());
    let last = move |unit: &mut Unit<'_>| {
        let bytes = batches::results_bytes(unit.connection, no)?;
        batches::set_purged(unit.connection, no)?;
        unit.results.close(id);
        Ok(bytes)
    };
    let bytes = shared.writer.submit(0, last).await?;
    blocking(move || folder.remove_results(id).map_err(JobError::io("remove results"))).await?;
    shared.disk.remove(of_results(bytes));
    Ok(())
}

/// Removes files and batches whose time is over; returns when the next of them is.
async fn remove_old(shared: &Shared, now: UnixMillis) -> Result<Option<UnixMillis>, JobError> {
    let before = UnixMillis(now.0.saturating_sub(batches::millis(shared.limits.keep)));
    loop {
        let take = move |unit: &mut Unit<'_>| {
            let removable = files::removable(unit.connection, now)?;
            for (id, _) in &removable {
                files::remove(unit.connection, *id)?;
            }
            batches::remove_old(unit.connection, before)?;
            Ok(removable)
        };
        let removed = shared.writer.submit(0, take).await?;
        if removed.is_empty() {
            let next = move |connection: &Connection| {
                let next = [files::next_expiry(connection, now)?, batches::next_purge(connection, now)?];
                Ok(next.into_iter().flatten().min())
            };
            return shared.readers.read_async(next).await;
        }
        let folder = shared.folder.clone();
        let bytes = removed.iter().map(|(_, bytes)| bytes).sum();
        blocking(move || {
            removed.iter().try_for_each(|(id, _)| folder.remove_file(*id)).map_err(JobError::io("remove a file"))
        })
        .await?;
        shared.disk.remove(bytes);
    }
}
