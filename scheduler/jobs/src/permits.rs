//! Bounds on what each owner has open at a time: uploads, and contents that are read.

use crate::error::JobError;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Uploads of one owner that are under way.
const MAX_UPLOADS: u32 = 8;
/// Contents of files that one owner reads.
const MAX_CONTENTS: u32 = 32;

/// Permits of one kind for all owners.
#[derive(Debug, Clone)]
pub(crate) struct Permits {
    most: u32,
    refusal: &'static str,
    /// Permits of owners that have any.
    held: Arc<Mutex<HashMap<Arc<str>, u32>>>,
}

/// Permit of an owner, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    permits: Permits,
    owner: Arc<str>,
}

impl Permits {
    pub(crate) fn uploads() -> Self {
        let refusal = "this token has too many uploads under way: wait until one has ended";
        Self { most: MAX_UPLOADS, refusal, held: Arc::default() }
    }

    pub(crate) fn contents() -> Self {
        let refusal = "this token reads the contents of too many files: wait until one has been read";
        Self { most: MAX_CONTENTS, refusal, held: Arc::default() }
    }

    pub(crate) fn take(&self, owner: &str) -> Result<Permit, JobError> {
        let owner: Arc<str> = owner.into();
        let mut held = self.held();
        let of_owner = held.entry(Arc::clone(&owner)).or_default();
        if *of_owner >= self.most {
            return Err(JobError::OwnerBusy(self.refusal));
        }
        *of_owner += 1;
        drop(held);
        Ok(Permit { permits: self.clone(), owner })
    }

    fn held(&self) -> MutexGuard<'_, HashMap<Arc<str>, u32>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut held = self.permits.held();
        if let Some(of_owner) = held.get_mut(&self.owner) {
            *of_owner -= 1;
            if *of_owner == 0 {
                held.remove(&self.owner);
            }
        }
    }
}

#[test]
fn each_owner_has_its_own_permits() {
    let permits = Permits::uploads();
    let mut of_one: Vec<_> = (0..MAX_UPLOADS).map(|_| permits.take("a").unwrap()).collect();
    assert!(matches!(permits.take("a"), Err(JobError::OwnerBusy(_))));
    permits.take("b").unwrap();
    of_one.pop();
    drop(permits.take("a").unwrap());
    drop(of_one);
    assert!(permits.held().is_empty());
}
