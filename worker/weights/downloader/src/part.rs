//! File that is being fetched: its bytes and its journal on the disk, and who waits for its ranges.

use crate::failure::Failure;
use crate::journal::{self, Header};
use crate::range;
use crate::source::RemoteFile;
use crate::url::Origin;
use bytes::Bytes;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::uio::pwritev;
use omni_weights::{Digest, FetchedFile};
use sha2::{Digest as _, Sha256};
use std::fs::{self, File};
use std::io::{self, IoSlice, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Bytes that are read at a time for the digest.
const READ: usize = 128 << 10;

/// Pieces that the kernel takes at a time.
const MOST_SLICES: usize = 1024;

/// Requests for a file that are made ahead of its digest. Further ones wait, so that a processor that cannot compute the
/// digest beside the transfer shares its time between both, rather than computing most of it when all is fetched.
const AHEAD: u64 = 9;

/// Validator of a content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Validator {
    pub(crate) text: String,
    /// The server that takes it in `If-Match`; `None` for one of an earlier run, or that is no entity tag.
    pub(crate) origin: Option<Origin>,
}

/// File that is being fetched.
pub(crate) struct Part {
    pub(crate) number: u32,
    pub(crate) remote: RemoteFile,
    /// Something of it was there from an earlier run.
    pub(crate) is_resumed: bool,
    /// The server sends the whole file only, or nothing tells ranges of two contents apart.
    is_whole: AtomicBool,
    /// Bytes of it that are on the disk.
    on_disk: AtomicU64,
    /// Ranges that the digest covers.
    hashed: AtomicU64,
    hashed_more: Notify,
    file: File,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    journal: File,
    done: Vec<bool>,
    validator: Option<Validator>,
    is_aborted: bool,
}

impl Part {
    /// Opens the file in `work`, with what an earlier run has fetched of it, and has the file system reserve its room.
    pub(crate) fn open(
        work: &Path,
        number: u32,
        remote: RemoteFile,
        boot: &str,
        own: &Origin,
    ) -> Result<Self, Failure> {
        let header = Header {
            boot: boot.to_owned(),
            path: remote.path.clone(),
            size: remote.size,
            range: range::RANGE,
            sha256: remote.sha256.clone(),
            etag: remote.etag.clone(),
        };
        let path = work.join(FetchedFile::part_name(number));
        let journal_path = work.join(format!("{number}.journal"));
        let text = fs::read_to_string(&journal_path).unwrap_or_default();
        let resumed = journal::read(&text, &header).filter(|_| path.is_file());
        let fresh = resumed.is_none();
        let disk = |error: io::Error| Failure::Disk(error);
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(fresh);
        let (file, mut journal) = (options.open(&path).map_err(disk)?, options.open(&journal_path).map_err(disk)?);
        if fresh {
            let line = serde_json::to_string(&header).map_err(io::Error::from).map_err(disk)?;
            writeln!(journal, "{line}").map_err(disk)?;
        } else {
            // After the last complete line.
            let end = text.rfind('\n').map_or(0, |end| end as u64 + 1);
            journal.set_len(end).map_err(disk)?;
            io::Seek::seek(&mut journal, io::SeekFrom::End(0)).map_err(disk)?;
        }
        reserve(&file, remote.size)?;
        let resumed = resumed.unwrap_or_default();
        let done: Vec<bool> = (0..range::count(remote.size)).map(|number| resumed.ranges.contains(&number)).collect();
        let listed = remote.etag.clone().map(|text| Validator { text, origin: Some(own.clone()) });
        let learned = resumed.etag.map(|text| Validator { text, origin: None });
        let state = State { journal, validator: listed.or(learned), is_aborted: false, done };
        let fetched = (0..).zip(&state.done).filter(|(_, done)| **done);
        let fetched = fetched.map(|(number, _)| length(&range::bytes(remote.size, number))).sum();
        let is_resumed = state.done.iter().any(|done| *done);
        let (is_whole, on_disk) = (AtomicBool::new(false), AtomicU64::new(fetched));
        Ok(Self {
            number,
            remote,
            is_resumed,
            is_whole,
            on_disk,
            hashed: AtomicU64::new(0),
            hashed_more: Notify::new(),
            file,
            state: Mutex::new(state),
            changed: Condvar::new(),
        })
    }

    /// Ranges that are not on the disk.
    pub(crate) fn missing(&self) -> Vec<u64> {
        let state = self.state();
        (0..).zip(&state.done).filter(|(_, done)| !**done).map(|(number, _)| number).collect()
    }

    /// Bytes that are on the disk.
    pub(crate) fn fetched(&self) -> u64 {
        self.on_disk.load(Ordering::Relaxed)
    }

    /// Bytes that the digest covers.
    pub(crate) fn hashed(&self) -> u64 {
        self.hashed.load(Ordering::Relaxed).saturating_mul(range::RANGE).min(self.remote.size)
    }

    /// Counts nothing of it as fetched any more: all of it is fetched anew.
    pub(crate) fn begin_anew(&self) {
        self.on_disk.store(0, Ordering::Relaxed);
    }

    /// The validator of what is on the disk, once it is known.
    pub(crate) fn validator(&self) -> Option<Validator> {
        self.state().validator.clone()
    }

    /// Records the validator that came with the first piece of the content. Returns false if another one is known.
    pub(crate) fn learn(&self, validator: Validator) -> Result<bool, Failure> {
        let mut state = self.state();
        if let Some(known) = &state.validator {
            return Ok(known.text == validator.text || self.remote.etag.is_some());
        }
        state.journal.write_all(journal::etag_line(&validator.text).as_bytes()).map_err(Failure::Disk)?;
        state.validator = Some(validator);
        Ok(true)
    }

    /// Writes pieces that follow each other.
    pub(crate) fn write(&self, pieces: &[Bytes], mut at: u64) -> Result<(), Failure> {
        let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let mut left = slices.as_mut_slice();
        IoSlice::advance_slices(&mut left, 0); // without empty ones
        while !left.is_empty() {
            let most = left.get(..MOST_SLICES).unwrap_or(left);
            let written = pwritev(&self.file, most, i64::try_from(at).unwrap_or(i64::MAX));
            let written = match written {
                Ok(0) => return Err(Failure::Disk(io::ErrorKind::WriteZero.into())),
                Ok(written) => written,
                Err(Errno::EINTR) => continue,
                Err(Errno::ENOSPC | Errno::EDQUOT) => {
                    return Err(Failure::DiskFull { needed: self.remote.size, free: 0 });
                }
                Err(errno) => return Err(Failure::Disk(errno.into())),
            };
            self.on_disk.fetch_add(written as u64, Ordering::Relaxed);
            at += written as u64;
            IoSlice::advance_slices(&mut left, written);
        }
        Ok(())
    }

    /// Records ranges that are on the disk.
    pub(crate) fn finish(&self, numbers: Range<u64>) -> Result<(), Failure> {
        let mut state = self.state();
        for number in numbers {
            state.journal.write_all(journal::range_line(number).as_bytes()).map_err(Failure::Disk)?;
            if let Some(done) = usize::try_from(number).ok().and_then(|at| state.done.get_mut(at)) {
                *done = true;
            }
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Ends the wait of those that wait for ranges: no more come.
    pub(crate) fn abort(&self) {
        self.state().is_aborted = true;
        self.changed.notify_all();
    }

    /// Waits until the digest has come near to the ranges of a request. Returns at once if they can only be had with the
    /// whole file.
    pub(crate) async fn near(&self, numbers: &Range<u64>) {
        let ahead = length(numbers).saturating_mul(AHEAD);
        loop {
            let hashed_more = self.hashed_more.notified();
            if numbers.start < self.hashed.load(Ordering::Acquire) + ahead || self.is_whole() {
                return;
            }
            hashed_more.await;
        }
    }

    /// Computes the digest in the order of the bytes, each range as soon as it and all before it are there: it is complete
    /// shortly after the last one. `None` if no more ranges come.
    pub(crate) fn digest(&self) -> io::Result<Option<Digest>> {
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; READ];
        for number in 0..range::count(self.remote.size) {
            if !self.wait(number) {
                return Ok(None);
            }
            let mut rest = range::bytes(self.remote.size, number);
            while !rest.is_empty() {
                let want = usize::try_from(length(&rest)).unwrap_or(READ).min(READ);
                let piece = buffer.get_mut(..want).unwrap_or_default();
                self.file.read_exact_at(piece, rest.start)?;
                hasher.update(&*piece);
                rest.start += want as u64;
            }
            self.hashed.store(number + 1, Ordering::Release);
            self.hashed_more.notify_waiters();
        }
        Ok(Some(Digest::of(hasher)))
    }

    fn wait(&self, number: u64) -> bool {
        let is_done = |state: &State| usize::try_from(number).ok().and_then(|at| state.done.get(at).copied());
        let waits = |state: &mut State| !state.is_aborted && !self.is_whole() && is_done(state) == Some(false);
        let state = self.changed.wait_while(self.state(), waits).unwrap_or_else(PoisonError::into_inner);
        is_done(&state) == Some(true)
    }

    /// The file as the launcher takes it over.
    pub(crate) fn fetched_file(&self, sha256: Digest) -> FetchedFile {
        FetchedFile {
            path: self.remote.path.clone(),
            size: self.remote.size,
            verified: self.remote.sha256.as_ref() == Some(&sha256),
            sha256,
            etag: self.validator().map(|validator| validator.text),
            part: Some(self.number),
        }
    }

    /// Returns whether the file is fetched as a whole, once all tasks have ended.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Acquire)
    }

    /// Leaves the file to be fetched as a whole. Its digest is computed after that.
    pub(crate) fn leave_whole(&self) {
        let state = self.state();
        self.is_whole.store(true, Ordering::Release);
        drop(state);
        self.changed.notify_all();
        self.hashed_more.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reserves the room of a file, so that a full disk is known before the first byte is fetched.
fn reserve(file: &File, size: u64) -> Result<(), Failure> {
    file.set_len(size).map_err(Failure::Disk)?;
    let Ok(length) = i64::try_from(size) else { return Err(Failure::DiskFull { needed: size, free: 0 }) };
    if length == 0 {
        return Ok(());
    }
    match fallocate(file, FallocateFlags::empty(), 0, length) {
        // Some file systems reserve nothing.
        Ok(()) | Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(()),
        Err(Errno::ENOSPC | Errno::EDQUOT) => Err(Failure::DiskFull { needed: size, free: 0 }),
        Err(errno) => Err(Failure::Disk(errno.into())),
    }
}

fn length(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}
