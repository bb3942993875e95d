//! Interface of the drivers that make control groups. The launcher uses them; workers only open existing groups.

use crate::{CgroupPaths, CpuSet, Error, Group, GroupName, Limits};

/// Maker of control groups: by the kernel's files ([`crate::Cgroupfs`]), or through systemd, which owns the tree
/// ([`crate::Drivers`] has both).
pub trait Driver: Send + Sync {
    /// Name of the driver that makes groups, as in the node's configuration.
    fn name(&self) -> &'static str;

    /// Makes a group under its limits, in every hierarchy.
    ///
    /// # Errors
    /// [`Error::Exists`] when it is there already; [`Error::LimitNotApplied`] and others when the kernel does not hold
    /// every limit. Nothing is left then.
    fn create(&self, name: &GroupName, limits: &Limits) -> Result<CgroupPaths, Error>;

    /// Moves a process into a new group: from then on the group lives by it.
    ///
    /// # Errors
    /// [`Error::Io`] when the kernel refuses; the process may be in some of the hierarchies then, and must end.
    fn enter(&self, paths: &CgroupPaths, pid: i32) -> Result<(), Error> {
        Group::open(paths)?.take(pid).map_err(Error::io("move a process into", paths.memory()))
    }

    /// Paths that the group has, or would have.
    fn paths(&self, name: &GroupName) -> CgroupPaths;

    /// Processors of all groups together; none before the first group, or without the cpuset controller.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Content`] when the kernel's file is not as it should be.
    fn processors(&self) -> Result<CpuSet, Error>;

    /// Removes a group, which must have ended: waits up to two seconds for its last process to go. The directory of the
    /// instance goes with its last group. Removing an absent group is a success.
    ///
    /// # Errors
    /// [`Error::Outside`] for paths that are not this driver's, [`Error::Busy`] when processes stay.
    fn remove(&self, paths: &CgroupPaths) -> Result<(), Error>;

    /// Instances that have directories below the parent, whole or in part.
    ///
    /// # Errors
    /// [`Error::Io`] when a hierarchy cannot be read.
    fn list(&self) -> Result<Vec<String>, Error>;

    /// Kills everything in an instance's groups and removes them: for leftovers of a crash.
    ///
    /// # Errors
    /// As [`Driver::remove`].
    fn destroy(&self, instance: &str) -> Result<(), Error>;

    /// Removes the parent group where it is empty; the next [`Driver::create`] makes it again.
    ///
    /// # Errors
    /// [`Error::Io`] when the kernel refuses for another reason than instances that are still there.
    fn remove_parent(&self) -> Result<(), Error>;
}
