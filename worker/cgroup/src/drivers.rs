//! Choice of the driver that makes groups on this machine, and both drivers for existing groups: those of the other
//! driver are found, adopted and removed after a change.

use crate::bus::SOCKET;
use crate::systemd::Systemd;
use crate::units::Units;
use crate::{CgroupPaths, Cgroupfs, Claim, CpuSet, Driver, Error, GroupName, Limits};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Driver wanted by the node's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// systemd where possible, else the kernel's files.
    Auto,
    /// systemd, or an error.
    Systemd,
    /// The kernel's files.
    Cgroupfs,
}

/// Both drivers: the chosen one makes groups, and the other may have made some.
pub struct Drivers {
    files: Cgroupfs,
    scopes: Option<Systemd>,
    /// Reason for the kernel's files; `None` when systemd makes the groups.
    why_files: Option<String>,
}

/// Facts of the machine that decide.
struct Facts<'a> {
    /// The controllers are in the unified tree.
    unified: bool,
    /// `/run/systemd/system` exists: systemd booted the machine (sd_booted(3)).
    booted: bool,
    /// `/proc/1/cgroup`, as this process sees it.
    init: &'a str,
    /// The system bus has a socket.
    bus: bool,
}

impl Drivers {
    /// Examines the machine. `parent` names groups and slices: see [`Cgroupfs::detect`].
    ///
    /// # Errors
    /// As [`Cgroupfs::detect`], and [`Error::NoSystemd`] when systemd is wanted and cannot be used.
    pub fn detect(wanted: Wanted, parent: &str) -> Result<Self, Error> {
        let files = Cgroupfs::detect(parent)?;
        let unified = matches!(files.root(), CgroupPaths::V2 { .. });
        let init = fs::read_to_string("/proc/1/cgroup").unwrap_or_default();
        let booted = Path::new("/run/systemd/system").is_dir();
        let facts = Facts { unified, booted, init: &init, bus: Path::new(SOCKET).exists() };
        let units = Units::of(parent);
        let lacks = lacks(&facts).or_else(|| units.as_ref().err().map(ToString::to_string));
        let why_files = match (wanted, lacks) {
            (Wanted::Systemd, Some(why)) => return Err(Error::NoSystemd { why }),
            (Wanted::Auto, Some(why)) => Some(why),
            (Wanted::Auto | Wanted::Systemd, None) => None,
            (Wanted::Cgroupfs, _) => Some("`cgroup-driver` is \"cgroupfs\"".to_owned()),
        };
        // Also where the bus is gone: its scopes are not.
        let scopes = units.ok().filter(|_| unified).map(|units| Systemd::new(&files, units));
        Ok(Self { files, scopes, why_files })
    }

    /// Reason why groups are made by the kernel's files; `None` when systemd makes them.
    #[must_use]
    pub fn why_files(&self) -> Option<&str> {
        self.why_files.as_deref()
    }

    /// Claims the parent group, with everything below it, for as long as the claim lives.
    ///
    /// # Errors
    /// [`Error::Claimed`] when another launcher has it, or one above or below it; [`Error::Io`] when the root of the
    /// tree cannot be locked.
    pub fn claim(&self) -> Result<Claim, Error> {
        Claim::new(self.files.root(), self.files.parent())
    }

    fn chosen(&self) -> &dyn Driver {
        match &self.scopes {
            Some(scopes) if self.why_files.is_none() => scopes,
            Some(_) | None => &self.files,
        }
    }

    fn all(&self) -> impl Iterator<Item = &dyn Driver> {
        let scopes = self.scopes.iter().map(|scopes| scopes as &dyn Driver);
        std::iter::once(&self.files as &dyn Driver).chain(scopes)
    }

    /// Driver that has made, or would make, this group.
    fn of(&self, group: &CgroupPaths) -> &dyn Driver {
        match &self.scopes {
            Some(scopes) if scopes.has(group) => scopes,
            Some(_) | None => &self.files,
        }
    }
}

impl Driver for Drivers {
    fn name(&self) -> &'static str {
        self.chosen().name()
    }

    fn create(&self, name: &GroupName, limits: &Limits) -> Result<CgroupPaths, Error> {
        self.chosen().create(name, limits)
    }

    fn enter(&self, paths: &CgroupPaths, pid: i32) -> Result<(), Error> {
        self.of(paths).enter(paths, pid)
    }

    fn paths(&self, name: &GroupName) -> CgroupPaths {
        let found = self.all().map(|driver| driver.paths(name)).find(|paths| paths.memory().exists());
        found.unwrap_or_else(|| self.chosen().paths(name))
    }

    fn processors(&self) -> Result<CpuSet, Error> {
        let mut found = CpuSet::default();
        for driver in self.all() {
            found = if found.is_empty() { driver.processors()? } else { found };
        }
        Ok(found)
    }

    fn remove(&self, paths: &CgroupPaths) -> Result<(), Error> {
        self.of(paths).remove(paths)
    }

    fn list(&self) -> Result<Vec<String>, Error> {
        let mut found = BTreeSet::new();
        for driver in self.all() {
            found.extend(driver.list()?);
        }
        Ok(found.into_iter().collect())
    }

    fn destroy(&self, instance: &str) -> Result<(), Error> {
        self.all().try_for_each(|driver| driver.destroy(instance))
    }

    fn remove_parent(&self) -> Result<(), Error> {
        self.all().try_for_each(Driver::remove_parent)
    }
}

/// Reason why systemd cannot make groups for this process. Pure.
fn lacks(facts: &Facts<'_>) -> Option<String> {
    let init = facts.init.lines().find_map(|line| line.strip_prefix("0::"));
    let why = if !facts.unified {
        "the controllers are not in the unified tree (version 2)"
    } else if !facts.booted {
        "systemd does not run this machine (no /run/systemd/system)"
    } else if init != Some("/init.scope") {
        "systemd is not the first process here, or not in this tree of control groups, as in a container"
    } else if !facts.bus {
        "there is no system bus (/run/dbus/system_bus_socket): install dbus"
    } else {
        return None;
    };
    Some(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_is_used_only_where_it_can_be() {
        let all = Facts { unified: true, booted: true, init: "0::/init.scope\n", bus: true };
        assert_eq!(lacks(&all), None);
        for (facts, word) in [
            (Facts { unified: false, ..all }, "version 2"),
            (Facts { booted: false, ..all }, "/run/systemd/system"),
            (Facts { init: "0::/\n", ..all }, "container"),
            (Facts { init: "0::/../../init.scope\n", ..all }, "container"),
            (Facts { init: "", ..all }, "container"),
            (Facts { bus: false, ..all }, "dbus"),
        ] {
            assert!(lacks(&facts).is_some_and(|why| why.contains(word)), "{word}");
        }
    }

    /// On a machine without systemd it is refused when it is wanted, and skipped when it is not.
    #[test]
    fn the_wanted_driver_is_chosen_or_refused() {
        let parent = format!("omni-test-{}-drivers", std::process::id());
        let auto = Drivers::detect(Wanted::Auto, &parent).unwrap();
        match (auto.why_files(), Drivers::detect(Wanted::Systemd, &parent)) {
            (Some(why), Err(error @ Error::NoSystemd { .. })) => {
                assert!(error.to_string().contains(why) && error.to_string().contains("cgroup-driver"), "{error}");
            }
            (None, Ok(_)) => {}
            (why, asked) => panic!("{why:?}, and asked for: {:?}", asked.err()),
        }
        let files = Drivers::detect(Wanted::Cgroupfs, &parent).unwrap();
        assert!(files.why_files().is_some_and(|why| why.contains("cgroup-driver")));
        assert_eq!(files.list().unwrap(), Vec::<String>::new());
    }
}
