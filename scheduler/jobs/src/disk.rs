//! Bytes that the store has on the disk, and the bound for them.
//!
//! A result counts twice until its batch has its output file, which repeats it. The rest of the output files, and the rows
//! of items, are reserved for a batch when its items are accepted, until they are removed.

use crate::error::JobError;
use crate::types::Form;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes as which results of this length count.
pub(crate) fn of_results(length: u64) -> u64 {
    length.saturating_mul(2)
}

/// Bytes of an item's rows in the database: 1.9 MB for 50,000 items, and 1.0 MB for their results.
const ROWS: u64 = 60;
/// Bytes of a line of an output file beside the item's name and its record, or beside its name and the longest error of a
/// batch that was cut off.
const ENVELOPE: u64 = 256;

/// Bytes that a batch takes beside its input and its results, with so many items and bytes of their names.
pub(crate) fn of_items(form: &Form, items: u64, names: u64) -> u64 {
    let rows = items.saturating_mul(ROWS);
    match form {
        Form::OpenAi { .. } => rows.saturating_add(items.saturating_mul(ENVELOPE)).saturating_add(names),
        // Without output files.
        Form::WorkersAi { .. } => rows,
    }
}

/// Counter that all parts of the store share.
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    used: Arc<AtomicU64>,
    bound: u64,
    /// Reserved bytes of owners that have any. Bounded by the requests that are under way.
    reserved: Arc<Mutex<HashMap<Arc<str>, u64>>>,
}

impl Disk {
    pub(crate) fn new(used: u64, bound: u64) -> Self {
        Self { used: Arc::new(AtomicU64::new(used)), bound, reserved: Arc::default() }
    }

    /// Reservation of an owner, of no bytes yet.
    pub(crate) fn reserve(&self, owner: &str) -> Reservation {
        Reservation { disk: self.clone(), owner: owner.into(), bytes: 0, kept: false }
    }

    fn reserved(&self) -> MutexGuard<'_, HashMap<Arc<str>, u64>> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if there is room for results. Those of items in flight are taken in any case.
    pub(crate) fn has_room(&self) -> bool {
        self.used() < self.bound
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, bytes: u64) {
        let _ = self.used.try_update(Ordering::Relaxed, Ordering::Relaxed, |used| Some(used.saturating_add(bytes)));
    }

    pub(crate) fn remove(&self, bytes: u64) {
        let _ = self.used.try_update(Ordering::Relaxed, Ordering::Relaxed, |used| Some(used.saturating_sub(bytes)));
    }
}

/// Bytes of a file that is not in the database yet, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    disk: Disk,
    owner: Arc<str>,
    bytes: u64,
    kept: bool,
}

impl Reservation {
    /// Counts bytes before they are written. `room`: those that all reservations of the owner may have.
    pub(crate) fn grow(&mut self, bytes: u64, room: u64) -> Result<(), JobError> {
        let mut reserved = self.disk.reserved();
        let of_owner = reserved.entry(Arc::clone(&self.owner)).or_default();
        let grown = of_owner.saturating_add(bytes);
        if grown > room {
            return Err(JobError::OWNER_DISK);
        }
        let add = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.disk.bound);
        if self.disk.used.try_update(Ordering::Relaxed, Ordering::Relaxed, add).is_err() {
            return Err(JobError::DiskBound);
        }
        *of_owner = grown;
        self.bytes += bytes;
        Ok(())
    }

    /// Leaves the bytes to the file, which is in the database now.
    pub(crate) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut reserved = self.disk.reserved();
        if let Some(of_owner) = reserved.get_mut(&self.owner) {
            *of_owner = of_owner.saturating_sub(self.bytes);
            if *of_owner == 0 {
                reserved.remove(&self.owner);
            }
        }
        if !self.kept {
            self.disk.remove(self.bytes);
        }
    }
}

#[test]
fn reservations_are_bounded_and_given_back() {
    let disk = Disk::new(10, 100);
    let mut first = disk.reserve("");
    first.grow(40, u64::MAX).unwrap();
    first.grow(50, u64::MAX).unwrap();
    assert!(matches!(first.grow(1, u64::MAX), Err(JobError::DiskBound)));
    assert!(!disk.has_room());
    drop(first);
    assert_eq!(disk.used(), 10);
    let mut second = disk.reserve("");
    second.grow(90, u64::MAX).unwrap();
    second.keep();
    assert_eq!(disk.used(), 100);
    disk.add(u64::MAX);
    assert!(disk.reserve("").grow(1, u64::MAX).is_err(), "no overflow");
    disk.remove(u64::MAX);
    assert_eq!(disk.used(), 0);
}

#[test]
fn an_owner_has_a_part_of_what_is_reserved() {
    let disk = Disk::new(0, 100);
    let mut uploads: Vec<_> = (0..8).map(|_| disk.reserve("a")).collect();
    disk.reserve("b").grow(50, 50).unwrap();
    uploads[0].grow(30, 50).unwrap();
    uploads[1].grow(20, 50).unwrap();
    assert!(matches!(uploads[2].grow(1, 50), Err(JobError::OwnerBound(_))));
    uploads.remove(0).keep();
    uploads[1].grow(30, 50).unwrap();
    drop(uploads);
    assert_eq!(disk.used(), 30);
    assert!(disk.reserved().is_empty());
}
