//! Claim of a node to its parent group: groups below it without a record are leftovers, and killed, so two nodes must
//! not share one. The launcher makes it first and holds it for as long as it lives.
//!
//! A parent is made when it is needed and removed when it is empty, by the driver or by systemd, so it is no place for
//! a lock. The root's `cgroup.procs` is always there, and is one file for every process that sees the tree: a byte of
//! it stands for each group's name. A parent is locked exclusively, and the groups above it are shared, so that no node
//! is inside another's parent.
//!
//! Invariants: nothing is written to the file, and the kernel ends the claim with its last descriptor.

use crate::{CgroupPaths, Error};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::fs::File;

#[expect(clippy::cast_possible_truncation, reason = "one of 0, 1 and 2 (fcntl.h)")]
const SHARED: i16 = libc::F_RDLCK as i16;
#[expect(clippy::cast_possible_truncation, reason = "as above")]
const FOR_ONE: i16 = libc::F_WRLCK as i16;

/// Claim of the node, until it is dropped.
#[derive(Debug)]
pub struct Claim(#[allow(dead_code, reason = "held, never read")] File);

impl Claim {
    /// Claims `parent`, which [`crate::name::check_parent`] accepts, in the tree below `root`.
    pub(crate) fn new(root: &CgroupPaths, parent: &str) -> Result<Self, Error> {
        let path = root.memory().join("cgroup.procs");
        let file = File::options().read(true).write(true).open(&path).map_err(Error::io("open", &path))?;
        let above = parent.match_indices('/').map(|(end, _)| (&parent[..end], SHARED));
        for (group, kind) in above.chain([(parent, FOR_ONE)]) {
            lock(&file, group, kind).map_err(|errno| match errno {
                Errno::EAGAIN | Errno::EACCES => Error::Claimed { parent: parent.to_owned() },
                errno => Error::io("lock a byte of", &path)(errno),
            })?;
        }
        Ok(Self(file))
    }
}

/// Locks for the open file, not for the process: a lock of the process would end when it closes any descriptor of the
/// file.
fn lock(file: &File, group: &str, kind: i16) -> Result<(), Errno> {
    let byte = libc::flock { l_type: kind, l_whence: 0, l_start: place(group), l_len: 1, l_pid: 0 };
    fcntl(file, FcntlArg::F_OFD_SETLK(&byte)).map(drop)
}

/// Byte that stands for a group: FNV-1a of its name, the same in every version, modulo the range of offsets.
fn place(group: &str) -> i64 {
    let hash = group
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    (hash >> 1).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cgroupfs;

    #[test]
    fn no_node_can_claim_inside_anothers_parent() {
        let own = format!("omni-test-{}-claim", std::process::id());
        let root = Cgroupfs::detect(&own).unwrap().root().clone();
        let inside = format!("{own}/inside");
        let is_claimed = |parent: &str| match Claim::new(&root, parent) {
            Ok(_) => false,
            Err(error @ Error::Claimed { .. }) => error.to_string().contains(&format!("`{parent}`")),
            Err(error) => panic!("{error}"),
        };
        let claim = Claim::new(&root, &own).unwrap();
        assert!(is_claimed(&own) && is_claimed(&inside) && is_claimed(&format!("{inside}/further")));
        assert!(!is_claimed(&format!("{own}-probe")));
        drop(claim);
        let claim = Claim::new(&root, &inside).unwrap();
        assert!(is_claimed(&own) && is_claimed(&inside), "it would take what is inside for its own leftovers");
        let beside = Claim::new(&root, &format!("{own}/beside")).unwrap();
        drop((claim, beside));
        assert!(!is_claimed(&own));
    }

    #[test]
    fn the_offset_of_a_group_never_changes() {
        // FNV-1a of "a" is af63dc4c8601ec8c (draft-eastlake-fnv).
        assert_eq!(place("a"), 0x57b1_ee26_4300_f646);
    }
}
