//! Bytes that the store has on the disk, and the bound for them.
//!
//! A result counts twice until its batch has its output file, which repeats it.

use crate::error::JobError;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes as which results of this length count.
pub(crate) fn of_results(length: u64) -> u64 {
    length.saturating_mul(2)
}

/// Uploads of one owner that are under way.
const MAX_UPLOADS: u32 = 8;

/// Counter that all parts of the store share.
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    used: Arc<AtomicU64>,
    bound: u64,
    /// Reservations by owner. Bounded by the requests that are under way.
    reserved: Arc<Mutex<HashMap<Arc<str>, Reserved>>>,
}

/// Reservations of one owner.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Reserved {
    bytes: u64,
    uploads: u32,
}

impl Disk {
    pub(crate) fn new(used: u64, bound: u64) -> Self {
        Self { used: Arc::new(AtomicU64::new(used)), bound, reserved: Arc::default() }
    }

    /// Reservation of an owner, of no bytes yet.
    pub(crate) fn reserve(&self, owner: &str) -> Reservation {
        self.reservation(owner, 0)
    }

    /// Reservation for an upload of an owner, of no bytes yet.
    pub(crate) fn reserve_upload(&self, owner: &str) -> Result<Reservation, JobError> {
        let reservation = self.reservation(owner, 1);
        let mut reserved = self.reserved();
        let uploads = &mut reserved.entry(Arc::clone(&reservation.owner)).or_default().uploads;
        *uploads += 1;
        if *uploads > MAX_UPLOADS {
            drop(reserved);
            return Err(JobError::OwnerBound("this token has too many uploads under way: wait until one has ended"));
        }
        drop(reserved);
        Ok(reservation)
    }

    fn reservation(&self, owner: &str, uploads: u32) -> Reservation {
        Reservation { disk: self.clone(), owner: owner.into(), bytes: 0, uploads, kept: false }
    }

    fn reserved(&self) -> MutexGuard<'_, HashMap<Arc<str>, Reserved>> {
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
    uploads: u32,
    kept: bool,
}

impl Reservation {
    /// Counts bytes before they are written. `room`: those that all reservations of the owner may have.
    pub(crate) fn grow(&mut self, bytes: u64, room: u64) -> Result<(), JobError> {
        let mut reserved = self.disk.reserved();
        let of_owner = reserved.entry(Arc::clone(&self.owner)).or_default();
        let grown = of_owner.bytes.saturating_add(bytes);
        if grown > room {
            return Err(JobError::OWNER_DISK);
        }
        let add = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.disk.bound);
        if self.disk.used.try_update(Ordering::Relaxed, Ordering::Relaxed, add).is_err() {
            return Err(JobError::DiskBound);
        }
        of_owner.bytes = grown;
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
            of_owner.bytes = of_owner.bytes.saturating_sub(self.bytes);
            of_owner.uploads = of_owner.uploads.saturating_sub(self.uploads);
            if *of_owner == Reserved::default() {
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
    let mut uploads: Vec<_> = (0..MAX_UPLOADS).map(|_| disk.reserve_upload("a").unwrap()).collect();
    assert!(matches!(disk.reserve_upload("a"), Err(JobError::OwnerBound(_))));
    disk.reserve_upload("b").unwrap().grow(50, 50).unwrap();
    uploads[0].grow(30, 50).unwrap();
    uploads[1].grow(20, 50).unwrap();
    assert!(matches!(uploads[2].grow(1, 50), Err(JobError::OwnerBound(_))));
    uploads.remove(0).keep();
    uploads[1].grow(30, 50).unwrap();
    disk.reserve_upload("a").unwrap();
    drop(uploads);
    assert_eq!(disk.used(), 30);
    assert!(disk.reserved().is_empty());
}
