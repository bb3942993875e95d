//! Groups behind one file system: every reader sees the group that it is in.
//!
//! There are several for instances that share a mount namespace because they come from one zygote, else one. The worker
//! adds a group before its process can be in it and removes it after; the server's thread looks the reader's up for
//! every `open`.
//!
//! Invariants: a reader's group is read from the kernel at that moment, and never claimed by the reader; no group is
//! ever shown that was not added here.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::snapshots::Owner;
use crate::view::View;

/// Group, and the number by which its readers share a bound.
type Numbered = (Owner, Arc<View>);

/// The groups. A clone refers to the same ones.
#[derive(Clone)]
pub struct Groups {
    own: Arc<View>,
    others: Arc<Mutex<Others>>,
}

#[derive(Default)]
struct Others {
    views: BTreeMap<String, Numbered>,
    /// Numbers given so far: no two groups have had the same one.
    numbered: Owner,
}

impl Groups {
    /// Groups with `own` for readers in none of the groups that are added later.
    #[must_use]
    pub fn new(own: View) -> Self {
        Self { own: Arc::new(own), others: Arc::default() }
    }

    /// Shows `view` to readers in the group of this name: the last two parts of its path, which are the same in every
    /// hierarchy.
    pub fn add(&self, name: String, view: View) {
        let mut others = self.others();
        others.numbered += 1;
        let view: Numbered = (others.numbered, Arc::new(view));
        others.views.insert(name, view);
    }

    /// Shows `own` to its readers again.
    pub fn remove(&self, name: &str) {
        self.others().views.remove(name);
    }

    pub(crate) fn own(&self) -> &View {
        &self.own
    }

    /// Group of a reader, by the process number that it has for the server, with a number for all processes that are
    /// shown the same, which share the bound of open files. The reader waits in its `open` for the answer, so the
    /// process number is still its own.
    pub(crate) fn of(&self, reader: u32) -> Numbered {
        let own = || (0, Arc::clone(&self.own));
        if self.others().views.is_empty() {
            return own();
        }
        // A reader that was killed meanwhile gets an answer all the same: it cannot end without one.
        let groups = fs::read_to_string(format!("/proc/{reader}/cgroup")).unwrap_or_default();
        name_in(&groups).and_then(|name| self.others().views.get(name).cloned()).unwrap_or_else(own)
    }

    /// Locks the map, which is consistent between any two of its operations, so a poisoned lock is still good.
    fn others(&self) -> MutexGuard<'_, Others> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Name, as [`Groups::add`] takes it, of the group that a `/proc/<pid>/cgroup` names for the memory controller.
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

/// Last two parts of a path, or one where there are no two.
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
