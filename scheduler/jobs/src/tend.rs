//! Steps that are due: validation, the end of windows, output files, removal of what is old.
//!
//! Each step can be repeated: one that a killed process had begun begins again. A step that fails is logged and tried
//! again later; other batches do not wait for it.

use crate::disk::{of_items, of_results};
use crate::error::JobError;
use crate::lifecycle::{Due, Event};
use crate::output::{self, Written};
use crate::readers::blocking;
use crate::shared::Shared;
use crate::table::batches::{self, Stored};
use crate::table::{files, items, owners};
use crate::time::UnixMillis;
use crate::types::{FileInfo, Form, LineError, Purpose};
use crate::validate::{Validated, validate};
use crate::writer::Unit;
use rusqlite::Connection;
use std::io::BufReader;

/// Items inserted or deleted in one command: other commands wait a few milliseconds for it.
const CHUNK: usize = 2000;
/// Buffer of the input file.
const BUFFER: usize = 64 << 10;

/// Bytes as which a step counts beside those of input files that it reads.
const STEP_BYTES: u64 = 64 << 10;

/// Does what is due, within [`Limits::pass`](crate::Limits::pass); returns when to call again if nothing else happens.
pub(crate) async fn tend(shared: &Shared, now: UnixMillis) -> Result<Option<UnixMillis>, JobError> {
    let mut progress = shared.progress.lock().await;
    let mut bytes = 0_u64;
    while bytes < shared.limits.pass {
        bytes = bytes.saturating_add(STEP_BYTES);
        let stored = shared.readers.read_async(move |connection| Ok(batches::due(connection, now)?)).await?;
        let (steps, mut next) = progress.steps(stored, now);
        let mut done = false;
        for (stored, due) in steps {
            if bytes >= shared.limits.pass && done {
                break;
            }
            bytes = bytes.saturating_add(STEP_BYTES).saturating_add(size(shared, &stored, due));
            let result = step(shared, &stored, due, now).await;
            done |= progress.record(&stored, result, now)?;
        }
        done |= remove_old(shared, now).await?;
        if !done {
            next.extend(progress.next_retry());
            next.extend(next_removal(shared, now).await?);
            return Ok(next.into_iter().min());
        }
    }
    Ok(Some(now))
}

/// Bytes that a step reads, about; none of a file that is missing, which the step reports.
fn size(shared: &Shared, stored: &Stored, due: Due) -> u64 {
    match due {
        Due::Validate | Due::Write => shared.folder.size(stored.batch.input).unwrap_or_default(),
        Due::Apply(_) | Due::Wait(_) | Due::Nothing => 0,
    }
}

async fn step(shared: &Shared, stored: &Stored, due: Due, now: UnixMillis) -> Result<(), JobError> {
    match due {
        Due::Validate => check(shared, stored, now).await?,
        Due::Apply(event) => apply(shared, stored.no, event, now).await?,
        Due::Write => write(shared, stored, now).await?,
        Due::Wait(_) => {}
        Due::Nothing => return purge(shared, stored).await,
    }
    shared.changed();
    Ok(())
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
        Ok(validated) => match reserve(shared, stored, &validated).await {
            Ok(()) => accept(shared, no, validated, now).await,
            Err(error @ (JobError::DiskBound | JobError::OwnerBound(_))) => {
                reject(shared, no, vec![no_room(&error)], now).await
            }
            Err(error) => Err(error),
        },
        Err(errors) => reject(shared, no, errors, now).await,
    }
}

async fn reject(shared: &Shared, no: i64, errors: Vec<LineError>, now: UnixMillis) -> Result<(), JobError> {
    let reject = move |unit: &mut Unit<'_>| {
        if batches::apply(unit.connection, no, Event::Rejected, now)?.is_some() {
            batches::set_errors(unit.connection, no, &errors)?;
        }
        Ok(())
    };
    shared.writer.submit(0, reject).await
}

/// Reserves the disk space of a batch's rows and output files before they are written. Output files of a cancelled batch
/// repeat the names of all its requests.
async fn reserve(shared: &Shared, stored: &Stored, validated: &Validated) -> Result<(), JobError> {
    if stored.reserved > 0 {
        return Ok(()); // by a process that was killed after it
    }
    let Stored { no, batch, .. } = stored;
    let (no, bytes) = (*no, of_items(&batch.form, validated.lines.len() as u64, validated.names));
    let (limits, owner) = (shared.limits.clone(), batch.owner.clone());
    let room = move |connection: &Connection| Ok(owners::room(connection, &owner, &limits)?);
    let mut reserved = shared.disk.reserve(&batch.owner);
    reserved.grow(bytes, shared.readers.read_async(room).await?)?;
    shared.writer.submit(0, move |unit| Ok(batches::set_reserved(unit.connection, no, bytes)?)).await?;
    reserved.keep();
    Ok(())
}

fn no_room(error: &JobError) -> LineError {
    let message = format!("There is no room for the output of this batch: {error}.");
    LineError { code: "insufficient_storage".into(), line: None, message, param: None }
}

/// Inserts the items in chunks, and lets them run with the last.
async fn accept(shared: &Shared, no: i64, validated: Validated, now: UnixMillis) -> Result<(), JobError> {
    delete_items(shared, no).await?; // those of a process that was killed here
    let Validated { lines, models, names: _ } = validated;
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
    shared.turns().forget(no);
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
    shared.disk.remove(of_results(bytes).saturating_add(stored.reserved));
    Ok(())
}

/// Removes files and batches whose time is over, at most as many as one read finds; returns whether there were files.
async fn remove_old(shared: &Shared, now: UnixMillis) -> Result<bool, JobError> {
    let before = UnixMillis(now.0.saturating_sub(batches::millis(shared.limits.keep)));
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
        return Ok(false);
    }
    let folder = shared.folder.clone();
    let bytes = removed.iter().map(|(_, bytes)| bytes).sum();
    blocking(move || {
        removed.iter().try_for_each(|(id, _)| folder.remove_file(*id)).map_err(JobError::io("remove a file"))
    })
    .await?;
    shared.disk.remove(bytes);
    Ok(true)
}

/// Next time at which something is to be removed.
async fn next_removal(shared: &Shared, now: UnixMillis) -> Result<Option<UnixMillis>, JobError> {
    let next = move |connection: &Connection| {
        let next = [files::next_expiry(connection, now)?, batches::next_purge(connection, now)?];
        Ok(next.into_iter().flatten().min())
    };
    shared.readers.read_async(next).await
}
