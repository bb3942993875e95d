//! Bytes that the store has on the disk, and the bound for them.
//!
//! A result counts twice until its batch has its output file, which repeats it.

use crate::error::JobError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counter that all parts of the store share.
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    used: Arc<AtomicU64>,
    bound: u64,
}

impl Disk {
    pub(crate) fn new(used: u64, bound: u64) -> Self {
        Self { used: Arc::new(AtomicU64::new(used)), bound }
    }

    /// Counts bytes of an upload before they are written.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<Reservation, JobError> {
        let add = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.bound);
        match self.used.try_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(_) => Ok(Reservation { disk: self.clone(), bytes }),
            Err(_) => Err(JobError::DiskBound),
        }
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
    bytes: u64,
}

impl Reservation {
    /// Counts further bytes.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), JobError> {
        let more = self.disk.reserve(bytes)?;
        self.bytes += more.keep();
        Ok(())
    }

    /// Leaves the bytes to the file, which is in the database now.
    pub(crate) fn keep(mut self) -> u64 {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.disk.remove(self.bytes);
    }
}

#[test]
fn reservations_are_bounded_and_given_back() {
    let disk = Disk::new(10, 100);
    let mut first = disk.reserve(40).unwrap();
    first.grow(50).unwrap();
    assert!(matches!(first.grow(1), Err(JobError::DiskBound)));
    assert!(!disk.has_room());
    drop(first);
    assert_eq!(disk.used(), 10);
    assert_eq!(disk.reserve(90).unwrap().keep(), 90);
    disk.add(u64::MAX);
    assert!(disk.reserve(1).is_err(), "no overflow");
    disk.remove(u64::MAX);
    assert_eq!(disk.used(), 0);
}
