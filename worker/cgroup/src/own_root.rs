//! Room in the root of a container's own tree, for [`crate::cgroupfs`].
//!
//! The root of a control group namespace is a group like any other: on v2 it passes no controller on while it holds a
//! process, and in a container all of them are in it at first. They move into a leaf beside the node's groups. The root
//! of the machine has no such rule, and nothing is ever moved out of it.

use crate::{Error, members};
use nix::libc;
use std::fs;
use std::io;
use std::path::Path;

/// Name of the leaf, as in other software that makes groups in containers.
const LEAF: &str = "init";
/// Rounds of reading and moving. A process that forks meanwhile may leave a child behind, for the next round.
const ROUNDS: u32 = 10;

/// Moves all processes of `root` into its leaf.
///
/// # Errors
/// When a process cannot be moved. A process that comes back meanwhile is left to the kernel's refusal.
pub(crate) fn make_room(root: &Path) -> Result<(), Error> {
    // Only the machine's root has no type.
    if !root.join("cgroup.type").exists() {
        return Ok(());
    }
    let leaf = root.join(LEAF);
    match fs::create_dir(&leaf) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.map_err(Error::io("create", &leaf))?,
    }
    let procs = leaf.join("cgroup.procs");
    for _ in 0..ROUNDS {
        let found = members::read_procs(root)?;
        if found.is_empty() {
            break;
        }
        for pid in found {
            match fs::write(&procs, pid.to_string()) {
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {} // it has ended
                moved => moved.map_err(Error::io("move a process of a container to", &leaf))?,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_moved_out_of_the_machines_root() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.procs"), "1\n").unwrap();
        make_room(root.path()).unwrap();
        assert!(!root.path().join(LEAF).exists());
    }
}
