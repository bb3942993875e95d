//! Several control groups behind one file: every reader sees the group that it is in.
//!
//! For instances that share a mount namespace because they come from one zygote. Called by the worker, which adds a group
//! before its process can be in it and removes it after, and on the server's thread for every `open`.
//!
//! What always holds: which group a reader is in is read from the kernel at that moment, and is not the reader's word;
//! no group is ever shown that was not added here.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::sample::{MemorySample, MemorySource, SampleError};
use crate::snapshots::Owner;

/// A group's memory, and the number by which its readers share a bound.
type Source = (Owner, Arc<dyn MemorySource>);

/// The groups. A copy of the handle is the same groups.
#[derive(Clone)]
pub struct Groups {
    own: Arc<dyn MemorySource>,
    others: Arc<Mutex<Others>>,
}

#[derive(Default)]
struct Others {
    sources: BTreeMap<String, Source>,
    /// Numbers that were given: no two groups have had the same one.
    numbered: Owner,
}

impl Groups {
    /// `own` is shown to a reader in none of the groups that are added later.
    pub fn new(own: impl MemorySource) -> Self {
        Self { own: Arc::new(own), others: Arc::default() }
    }

    /// Shows `source` to readers in the group of this name: the last two parts of its path, which are the same in every
    /// hierarchy.
    pub fn add(&self, name: String, source: impl MemorySource) {
        let mut others = self.others();
        others.numbered += 1;
        let source: Source = (others.numbered, Arc::new(source));
        others.sources.insert(name, source);
    }

    /// Its readers see the memory of `own` again.
    pub fn remove(&self, name: &str) {
        self.others().sources.remove(name);
    }

    /// The map is whole between any two of its operations, so a poisoned lock is still good.
    fn others(&self) -> MutexGuard<'_, Others> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemorySource for Groups {
    fn sample(&self) -> Result<MemorySample, SampleError> {
        self.own.sample()
    }

    fn sample_for(&self, reader: u32) -> Result<(u64, MemorySample), SampleError> {
        // A reader that was killed meanwhile gets an answer all the same: it cannot end without one.
        let groups = fs::read_to_string(format!("/proc/{reader}/cgroup")).unwrap_or_default();
        let found = name_in(&groups).and_then(|name| self.others().sources.get(name).cloned());
        let (owner, source) = found.unwrap_or_else(|| (0, Arc::clone(&self.own)));
        Ok((owner, source.sample()?))
    }
}

/// The name, as [`Groups::add`] takes it, of the group that a `/proc/<pid>/cgroup` names for the memory controller.
#[must_use]
pub fn name_in(groups: &str) -> Option<&str> {
    let mut unified = None;
    for line in groups.lines() {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        if controllers.split(',').any(|controller| controller == "memory") {
            return last_two(path);
        }
        if controllers.is_empty() {
            unified = Some(path);
        }
    }
    last_two(unified?)
}

/// One part, where there are no two.
fn last_two(path: &str) -> Option<&str> {
    let (above, last) = path.rsplit_once('/')?;
    let two = above.rsplit_once('/').and_then(|(start, _)| path.get(start.len() + 1..));
    two.or(Some(last)).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_the_memory_controller_is_named() {
        let table = [
            ("0::/omni/0123456789ab/model\n", Some("0123456789ab/model")),
            ("5:memory:/omni/a/model\n4:cpu,cpuacct:/omni/b/model\n0::/omni/c/model\n", Some("a/model")),
            ("4:cpu,memory:/a/model\n0::/c/model\n", Some("a/model")),
            ("4:cpu:/omni/b/model\n0::/../../omni/c/model\n", Some("c/model")),
            ("0::/model\n", Some("model")),
            ("0::/\n", None),
            ("nonsense", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(name_in(text), expected, "{text}");
        }
    }
}
