//! Driver by the kernel's files: makes, finds and removes groups. [`crate::systemd`] makes groups in a scope with parts
//! of it.
//!
//! Layout, in each hierarchy: `<parent>/<instance>/{model,worker}`. On v2 a group that passes controllers on may hold
//! no process, so only these leaves ever do.

use crate::cpu_share;
use crate::hierarchy;
use crate::members;
use crate::mounts::{self, DISKS, NEEDED, PROCESSORS};
use crate::name::check_parent;
use crate::own_root;
use crate::units::Units;
use crate::{CgroupPaths, CpuSet, Driver, Error, GroupName, Limits};
use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, statfs};
use nix::unistd::{SysconfVar, sysconf};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Component, Path};
use std::time::Duration;

/// Longest wait for a group to become empty after everything in it was killed.
pub(crate) const EMPTY_WITHIN: Duration = Duration::from_secs(2);

/// Attempts to pass controllers down. systemd takes one away that no group below the root uses yet, perhaps between two
/// steps of this driver; once a group below has it, it stays (seen with systemd 252 and 257).
const DESCENTS: u32 = 10;

/// Groups by directories in the kernel's file systems, v2 or v1.
#[derive(Debug, Clone)]
pub struct Cgroupfs {
    root: CgroupPaths,
    parent: String,
    /// Names of scopes, where the instances' directories are scopes of systemd.
    scopes: Option<Units>,
    page: u64,
    /// Processors of groups can be chosen.
    chooses: bool,
}

impl Cgroupfs {
    /// Examines this host's mounts; `parent` is relative to the root of every hierarchy and is made when it is needed.
    ///
    /// # Errors
    /// [`Error::NoHierarchy`] names what is missing; [`Error::BadName`] when `parent` leaves the tree;
    /// [`Error::NotACgroup`] when a mount is hidden by another.
    pub fn detect(parent: &str) -> Result<Self, Error> {
        let file = Path::new("/proc/self/mountinfo");
        let mountinfo = fs::read_to_string(file).map_err(Error::io("read", file))?;
        let controllers = |dir: &Path| fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
        let root = mounts::root_group(&mountinfo, controllers)?;
        if cpu_share::may_choose() {
            Self::at(root, parent, true)
        } else {
            Self::at(root.without_cpuset(), parent, false)
        }
    }

    fn at(root: CgroupPaths, parent: &str, chooses: bool) -> Result<Self, Error> {
        check_parent(parent)?;
        check_file_systems(&root)?;
        let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().and_then(|bytes| u64::try_from(bytes).ok());
        Ok(Self { root, parent: parent.to_owned(), scopes: None, page: page.unwrap_or(4096), chooses })
    }

    /// Root of every hierarchy.
    #[must_use]
    pub fn root(&self) -> &CgroupPaths {
        &self.root
    }

    /// Parent, relative to the root.
    pub(crate) fn parent(&self) -> &str {
        &self.parent
    }

    /// Tree of the same host, with instances in scopes of systemd.
    pub(crate) fn with_scopes(&self, units: Units) -> Self {
        Self { parent: Units::path(&units.slice()), scopes: Some(units), ..self.clone() }
    }

    /// Controllers that a group's subgroups need, and optional ones that they use.
    pub(crate) fn controllers(&self) -> Vec<&'static str> {
        NEEDED.into_iter().chain(self.used()).collect()
    }

    fn used(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.chooses.then_some(PROCESSORS).into_iter().chain([DISKS])
    }

    /// The instance's directory in each hierarchy.
    pub(crate) fn instance_dir(&self, instance: &str) -> CgroupPaths {
        self.root
            .join(&self.parent)
            .join(self.scopes.as_ref().map_or(instance.to_owned(), |units| units.scope(instance)))
    }

    fn relative(&self, name: &GroupName) -> String {
        let instance = name.instance();
        let dir = self.scopes.as_ref().map_or(instance.to_owned(), |units| units.scope(instance));
        format!("{}/{dir}/{}", self.parent, name.part())
    }

    /// Makes the directories above the group, and on v2 passes the controllers down to it.
    fn make_parents(&self, name: &GroupName) -> Result<(), Error> {
        let above = format!("{}/{}", self.parent, name.instance());
        for root in self.root.dirs() {
            let mut left = DESCENTS;
            while let Err(error) = self.descend(root, &above) {
                left -= 1;
                match &error {
                    Error::ControllersMissing { dir, source: Some(source), .. }
                        if left > 0 && dir == root && source.kind() == io::ErrorKind::ResourceBusy =>
                    {
                        own_root::make_room(root)?;
                    }
                    Error::ControllersMissing { .. } if left > 0 => {}
                    _ => return Err(error),
                }
            }
        }
        Ok(())
    }

    fn descend(&self, root: &Path, above: &str) -> Result<(), Error> {
        let mut dir = root.to_owned();
        for part in above.split('/') {
            self.pass_controllers(&dir)?;
            dir.push(part);
            match fs::create_dir(&dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(Error::io("create", &dir)(error));
                }
                Err(_) | Ok(()) => self.inherit_processors(&dir)?,
            }
        }
        self.pass_controllers(&dir)
    }

    pub(crate) fn pass_controllers(&self, dir: &Path) -> Result<(), Error> {
        match self.root {
            CgroupPaths::V2 { .. } => pass_controllers(dir, &self.used().collect::<Vec<_>>()),
            CgroupPaths::V1 { .. } => Ok(()),
        }
    }

    fn inherit_processors(&self, dir: &Path) -> Result<(), Error> {
        match &self.root {
            CgroupPaths::V1 { cpuset: Some(root), .. } if dir.starts_with(root) => cpu_share::inherit(dir),
            CgroupPaths::V1 { .. } | CgroupPaths::V2 { .. } => Ok(()),
        }
    }

    /// Refuses paths that this driver cannot have made: they come back from a file after a restart.
    pub(crate) fn check_inside(&self, paths: &CgroupPaths) -> Result<(), Error> {
        let parents = self.root.join(&self.parent);
        let outside = |dir: &Path, parent: &Path| Error::Outside { dir: dir.to_owned(), parent: parent.to_owned() };
        let (dirs, parents) = (paths.dirs(), parents.dirs());
        if dirs.len() != parents.len() {
            return Err(outside(paths.memory(), parents[0]));
        }
        dirs.into_iter().zip(parents).try_for_each(|(dir, parent)| {
            let below: Vec<Component<'_>> =
                dir.strip_prefix(parent).map_err(|_| outside(dir, parent))?.components().collect();
            let normal = below.iter().all(|part| matches!(part, Component::Normal(_)));
            if normal && below.len() == 2 { Ok(()) } else { Err(outside(dir, parent)) }
        })
    }

    /// Makes the group below an existing directory; `made` is called for each directory before there are limits. After
    /// a failure nothing of it is left.
    pub(crate) fn fill(
        &self,
        name: &GroupName,
        limits: &Limits,
        made: impl Fn(&Path) -> Result<(), Error>,
    ) -> Result<CgroupPaths, Error> {
        let paths = self.paths(name);
        let mut dirs = Vec::new();
        let filled = (|| {
            for dir in paths.dirs() {
                fs::create_dir(dir).map_err(|error| match error.kind() {
                    io::ErrorKind::AlreadyExists => Error::Exists { dir: dir.to_owned() },
                    _ => Error::io("create", dir)(error),
                })?;
                dirs.push(dir.to_owned());
                made(dir)?;
            }
            check_file_systems(&paths)?;
            hierarchy::apply(&self.root, &self.relative(name), limits, self.page)?;
            confirm(limits, &paths, self.page)
        })();
        if filled.is_err() {
            // The first failure is the one to report.
            dirs.iter().for_each(|dir| drop(fs::remove_dir(dir)));
        }
        filled.map(|()| paths)
    }

    pub(crate) fn check(&self, limits: &Limits) -> Result<(), Error> {
        limits.check(self.page)
    }
}

impl Driver for Cgroupfs {
    fn name(&self) -> &'static str {
        "cgroupfs"
    }

    fn create(&self, name: &GroupName, limits: &Limits) -> Result<CgroupPaths, Error> {
        self.check(limits)?;
        let filled = self.make_parents(name).and_then(|()| self.fill(name, limits, |dir| self.inherit_processors(dir)));
        if filled.is_err() {
            self.paths(name).dirs().iter().for_each(|dir| drop(remove_instance_dir(dir)));
        }
        filled
    }

    fn paths(&self, name: &GroupName) -> CgroupPaths {
        self.root.join(self.relative(name))
    }

    fn processors(&self) -> Result<CpuSet, Error> {
        let parent = self.root.join(&self.parent);
        match parent.cpuset().is_some_and(|dir| dir.join("cpuset.cpus").exists()) {
            true => cpu_share::available(&parent),
            false => Ok(CpuSet::default()),
        }
    }

    fn remove(&self, paths: &CgroupPaths) -> Result<(), Error> {
        self.check_inside(paths)?;
        members::wait_empty(&paths.dirs(), EMPTY_WITHIN)?;
        for dir in paths.dirs() {
            members::remove_dir(dir, EMPTY_WITHIN)?;
            remove_instance_dir(dir)?;
        }
        Ok(())
    }

    fn list(&self) -> Result<Vec<String>, Error> {
        let mut found = BTreeSet::new();
        for dir in self.root.join(&self.parent).dirs() {
            found.extend(children(dir)?);
        }
        let Some(units) = &self.scopes else { return Ok(found.into_iter().collect()) };
        Ok(found.iter().filter_map(|dir| units.instance(dir)).map(str::to_owned).collect())
    }

    fn destroy(&self, instance: &str) -> Result<(), Error> {
        check_directory(instance)?;
        let all = self.instance_dir(instance);
        let mut groups = BTreeSet::new();
        for dir in all.dirs() {
            groups.extend(children(dir)?);
        }
        for group in groups {
            let paths = all.join(group);
            members::kill(&paths.dirs())?;
            self.remove(&paths)?;
        }
        all.dirs().into_iter().try_for_each(|dir| members::remove_dir(dir, EMPTY_WITHIN))
    }

    fn remove_parent(&self) -> Result<(), Error> {
        self.root.join(&self.parent).dirs().into_iter().try_for_each(remove_if_empty)
    }
}

/// Enables the used controllers for the children of `dir`, where they are not yet.
fn pass_controllers(dir: &Path, used: &[&'static str]) -> Result<(), Error> {
    let file = dir.join("cgroup.subtree_control");
    let words = |file: &Path| fs::read_to_string(file).map_err(Error::io("read", file));
    let has = |text: &str, name: &&str| text.split_ascii_whitespace().any(|word| word == *name);
    let enabled = words(&file)?;
    if NEEDED.iter().chain(used).all(|name| has(&enabled, name)) {
        return Ok(());
    }
    let missing =
        |names: &[&str], source| Error::ControllersMissing { dir: dir.to_owned(), missing: names.join(", "), source };
    let available = words(&dir.join("cgroup.controllers"))?;
    let used = used.iter().copied().filter(|name| has(&available, name));
    let wanted: Vec<&str> = NEEDED.into_iter().chain(used).filter(|name| !has(&enabled, name)).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let absent: Vec<&str> = wanted.iter().copied().filter(|name| !has(&available, name)).collect();
    if !absent.is_empty() {
        return Err(missing(&absent, None));
    }
    let text: Vec<String> = wanted.iter().map(|name| format!("+{name}")).collect();
    fs::write(&file, text.join(" ")).map_err(|error| missing(&wanted, Some(error)))
}

/// Checks the file systems: an ordinary directory keeps limits in its files, and nothing enforces them.
fn check_file_systems(paths: &CgroupPaths) -> Result<(), Error> {
    paths.dirs().into_iter().try_for_each(|dir| {
        let unified = paths.unified() == Some(dir);
        let wanted = if unified { CGROUP2_SUPER_MAGIC } else { CGROUP_SUPER_MAGIC };
        let found = statfs(dir).map_err(Error::io("look at", dir))?.filesystem_type();
        if found == wanted { Ok(()) } else { Err(Error::NotACgroup { dir: dir.to_owned(), unified }) }
    })
}

/// Reads every limit back, and the weight.
fn confirm(limits: &Limits, paths: &CgroupPaths, page: u64) -> Result<(), Error> {
    let others = limits.weight(paths).into_iter().chain(limits.sockets(paths, page));
    limits.settings(paths, page).into_iter().chain(others).try_for_each(|setting| {
        let found =
            fs::read_to_string(&setting.file).map_or_else(|error| error.to_string(), |text| text.trim().to_owned());
        if found == setting.value {
            Ok(())
        } else {
            Err(Error::LimitNotApplied { file: setting.file, wanted: setting.value, found })
        }
    })
}

/// Checks the form of a name that `list` returned, by whichever program its directory was made.
pub(crate) fn check_directory(instance: &str) -> Result<(), Error> {
    match Path::new(instance).components().collect::<Vec<_>>()[..] {
        [Component::Normal(_)] => Ok(()),
        _ => Err(Error::BadName { name: instance.chars().take(80).collect(), expected: "the name of one directory" }),
    }
}

/// Names of the groups in a directory that need not exist.
pub(crate) fn children(dir: &Path) -> Result<Vec<String>, Error> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(Error::io("read", dir))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::io("read", dir))?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            names.extend(entry.file_name().into_string());
        }
    }
    Ok(names)
}

/// Removes the directory of the instance that `group` was in, once no other group is.
fn remove_instance_dir(group: &Path) -> Result<(), Error> {
    group.parent().map_or(Ok(()), remove_if_empty)
}

fn remove_if_empty(dir: &Path) -> Result<(), Error> {
    match fs::remove_dir(dir).map_err(|error| (error.kind(), error)) {
        Ok(()) | Err((io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::ResourceBusy, _)) => {
            Ok(())
        }
        Err((_, error)) => Err(Error::io("remove", dir)(error)),
    }
}

#[cfg(test)]
mod tests;
