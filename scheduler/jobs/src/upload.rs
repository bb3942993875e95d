//! File on its way from a client to the disk: written as it comes, through a buffer of its own.

use crate::disk::Reservation;
use crate::error::JobError;
use crate::files::Part;
use crate::permits::Permit;
use crate::readers::{blocking, detached};
use crate::shared::Shared;
use crate::table::{files, owners};
use crate::time::UnixMillis;
use crate::types::{FileInfo, Purpose};
use crate::writer::Unit;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that are collected before they are written.
const BUFFER: usize = 256 << 10;

/// Upload for which there is room. Dropped before [`Upload::finish`], it leaves nothing behind.
#[derive(Debug)]
pub struct Upload {
    shared: Arc<Shared>,
    owner: String,
    name: String,
    /// `None` after a write that failed.
    part: Option<(Part, Reservation)>,
    buffer: Vec<u8>,
    bytes: u64,
    permit: Permit,
}

impl Upload {
    /// Creates the file. Blocks for the disk, briefly.
    pub(crate) fn begin(shared: &Arc<Shared>, owner: &str, name: &str) -> Result<Self, JobError> {
        let permit = shared.uploads.take(owner)?;
        let reserved = shared.disk.reserve(owner);
        shared.readers.read(|connection| owners::check_file(connection, owner, 0, &shared.limits))?;
        let part = Some((Part::create(&shared.folder)?, reserved));
        let (owner, name) = (owner.to_owned(), name.to_owned());
        let buffer = Vec::with_capacity(BUFFER);
        Ok(Self { shared: Arc::clone(shared), owner, name, part, buffer, bytes: 0, permit })
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// The file is too large, the disk is full or has failed. Nothing can be written after that.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<(), JobError> {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        let bound = self.shared.limits.upload;
        if self.bytes > bound {
            self.part = None;
            return Err(JobError::TooLarge { what: "the file", bound });
        }
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(BUFFER - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() == BUFFER {
                self.flush().await?;
            }
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), JobError> {
        let (mut part, mut reserved) = self.part.take().ok_or(JobError::Closed)?;
        let mut buffer = std::mem::take(&mut self.buffer);
        let (shared, owner) = (Arc::clone(&self.shared), self.owner.clone());
        let write = move || {
            let room = shared.readers.read(|connection| Ok(owners::room(connection, &owner, &shared.limits)?))?;
            reserved.grow(buffer.len() as u64, room)?;
            part.write_all(&buffer).map_err(JobError::io("write a file"))?;
            buffer.clear();
            Ok(((part, reserved), buffer))
        };
        let (part, buffer) = blocking(write).await?;
        (self.part, self.buffer) = (Some(part), buffer);
        Ok(())
    }

    /// Puts the file on the disk and into the store. `expires_after`: counted from now; the store's default if absent.
    ///
    /// # Errors
    /// The disk is full or has failed.
    pub async fn finish(mut self, expires_after: Option<Duration>, now: UnixMillis) -> Result<FileInfo, JobError> {
        self.flush().await?;
        let (part, reserved) = self.part.take().ok_or(JobError::Closed)?;
        let file = FileInfo {
            id: part.id(),
            owner: self.owner,
            purpose: Purpose::Batch,
            name: self.name,
            bytes: self.bytes,
            created_at: now,
            expires_at: now.after(expires_after.unwrap_or(self.shared.limits.keep)),
        };
        let (shared, permit) = (self.shared, self.permit);
        // The file counts as long as it is there, whether its client waits or not.
        detached(async move {
            blocking(move || part.keep()).await?;
            let (row, limits) = (file.clone(), shared.limits.clone());
            let insert = move |unit: &mut Unit<'_>| {
                owners::check_file(unit.connection, &row.owner, row.bytes, &limits)?;
                Ok(files::insert(unit.connection, &row)?)
            };
            shared.insert_file(file.id, insert).await?;
            reserved.keep();
            shared.changed();
            drop(permit);
            Ok(file)
        })
        .await
    }
}
