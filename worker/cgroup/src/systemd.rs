//! Groups in transient scopes of systemd: one for each instance, zygote and build, its subgroups delegated to this
//! process (systemd.resource-control(5), `Delegate=`). The limits of a model are in the delegated part, where systemd
//! changes nothing, even when it reloads; settings of the scope itself are properties of the unit.
//!
//! Invariants: a scope ends with its last process, without an order; and groups are found and killed in the tree, so
//! that the end of an instance does not need the bus.

use crate::bus::{Bus, Properties};
use crate::cgroupfs::{Cgroupfs, EMPTY_WITHIN, check_directory, children};
use crate::placeholder::Placeholder;
use crate::units::Units;
use crate::{CgroupPaths, CpuSet, Driver, Error, Group, GroupName, Limits, members};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use zbus::zvariant::Value;

/// Longest wait for systemd to see by itself that a scope is empty: it takes some milliseconds. It never does where the
/// first process ended before it was in the scope, as after a kill of the launcher.
const SEEN_WITHIN: Duration = Duration::from_millis(200);
/// Longest wait for systemd to remove the directory of a scope that it was told to stop.
const GONE_WITHIN: Duration = Duration::from_secs(5);
const GONE_AGAIN: Duration = Duration::from_millis(5);

/// Driver of groups in scopes. Always in the unified tree.
pub(crate) struct Systemd {
    tree: Cgroupfs,
    units: Units,
    bus: Bus,
    /// Placeholders of scopes whose worker is not there yet.
    held: Mutex<BTreeMap<String, Placeholder>>,
}

impl Systemd {
    pub(crate) fn new(host: &Cgroupfs, units: Units) -> Self {
        Self { tree: host.with_scopes(units.clone()), units, bus: Bus::system(), held: Mutex::default() }
    }

    /// The group is, or was, in a scope of this node.
    pub(crate) fn has(&self, group: &CgroupPaths) -> bool {
        self.tree.check_inside(group).is_ok()
    }

    fn release(&self, instance: &str) {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(instance);
        drop(held); // waits, so not under the lock
    }

    /// Starts the scope with a placeholder, which moves on into the first part.
    fn start(&self, name: &GroupName, limits: &Limits) -> Result<CgroupPaths, Error> {
        let instance = name.instance();
        let scope = self.units.scope(instance);
        let placeholder = Placeholder::start().map_err(Error::io("start a process for", Path::new(&scope)))?;
        let pid = placeholder.pid().as_raw();
        match self.bus.start_scope(&scope, &self.properties(instance, pid.unsigned_abs())) {
            Ok(()) => {}
            Err(error @ (Error::BusSilent { .. } | Error::BusLost { .. })) => {
                // systemd may still carry out the request.
                placeholder.keep_number();
                return Err(error);
            }
            Err(error) => return Err(error),
        }
        self.held.lock().unwrap_or_else(PoisonError::into_inner).insert(instance.to_owned(), placeholder);
        let made = self.tree.fill(name, limits, |dir| {
            Group::open(&CgroupPaths::V2 { dir: dir.to_owned() })?
                .take(pid)
                .map_err(Error::io("move a process into", dir))?;
            self.tree.instance_dir(instance).dirs().into_iter().try_for_each(|above| self.tree.pass_controllers(above))
        });
        if made.is_err() {
            // The first failure is the one to report.
            let _ = self.destroy(instance);
        }
        made
    }

    fn properties(&self, instance: &str, pid: u32) -> Properties<'_> {
        vec![
            ("Description", Value::from(format!("Omni, {instance}"))),
            ("Slice", Value::from(self.units.slice())),
            ("PIDs", Value::from(vec![pid])),
            // Implies Delegate=yes, for these only.
            ("DelegateControllers", Value::from(self.tree.controllers())),
            // A failed scope is removed like any other.
            ("CollectMode", Value::from("inactive-or-failed")),
            // Overrides the manager's default: each part has its own limit of processes.
            ("TasksMax", Value::from(u64::MAX)),
            // Models end when they are drained, and not at the beginning of a shutdown.
            ("DefaultDependencies", Value::from(false)),
        ]
    }

    /// Waits until systemd has removed an empty scope.
    fn await_gone(&self, instance: &str, dir: &Path) -> Result<(), Error> {
        if gone(dir, SEEN_WITHIN) {
            return Ok(());
        }
        let stopped = self.bus.stop(&self.units.scope(instance));
        // systemd may have seen the empty scope meanwhile, whatever the stop returned.
        if gone(dir, GONE_WITHIN) {
            return Ok(());
        }
        stopped?;
        Err(Error::Busy { dir: dir.to_owned(), waited: GONE_WITHIN })
    }
}

impl Driver for Systemd {
    fn name(&self) -> &'static str {
        "systemd"
    }

    fn create(&self, name: &GroupName, limits: &Limits) -> Result<CgroupPaths, Error> {
        self.tree.check(limits)?;
        let instance = name.instance();
        let paths = self.tree.paths(name);
        let made = match self.tree.instance_dir(instance).memory().exists() {
            false => self.start(name, limits)?,
            true => self.tree.fill(name, limits, |_| Ok(()))?,
        };
        // The weight is on the scope itself, where systemd would overwrite a plain write.
        let Some(weight) = limits.weight(&paths).and_then(|weight| weight.value.parse::<u64>().ok()) else {
            return Ok(made);
        };
        self.bus.set(&self.units.scope(instance), &vec![("CPUWeight", Value::from(weight))]).inspect_err(|_| {
            let _ = fs::remove_dir(made.memory());
        })?;
        Ok(made)
    }

    fn enter(&self, paths: &CgroupPaths, pid: i32) -> Result<(), Error> {
        Group::open(paths)?.take(pid).map_err(Error::io("move a process into", paths.memory()))?;
        let scope = paths.memory().parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        if let Some(instance) = scope.as_deref().and_then(|scope| self.units.instance(scope)) {
            self.release(instance);
        }
        Ok(())
    }

    fn paths(&self, name: &GroupName) -> CgroupPaths {
        self.tree.paths(name)
    }

    fn processors(&self) -> Result<CpuSet, Error> {
        self.tree.processors()
    }

    fn remove(&self, paths: &CgroupPaths) -> Result<(), Error> {
        self.tree.check_inside(paths)?;
        let dir = paths.memory();
        let scope = dir.parent().unwrap_or(dir);
        let instance = scope.file_name().and_then(|name| self.units.instance(name.to_str()?)).unwrap_or_default();
        self.release(instance);
        members::wait_empty(&[dir], EMPTY_WITHIN)?;
        members::remove_dir(dir, EMPTY_WITHIN)?;
        if children(scope)?.is_empty() { self.await_gone(instance, scope) } else { Ok(()) }
    }

    fn list(&self) -> Result<Vec<String>, Error> {
        self.tree.list()
    }

    fn destroy(&self, instance: &str) -> Result<(), Error> {
        check_directory(instance)?;
        self.release(instance);
        let all = self.tree.instance_dir(instance);
        let dir = all.memory();
        if !dir.exists() {
            return Ok(());
        }
        members::kill(&[dir])?;
        members::wait_empty(&[dir], EMPTY_WITHIN)?;
        self.await_gone(instance, dir)
    }

    /// Stops the slices of this node alone, when they are empty.
    fn remove_parent(&self) -> Result<(), Error> {
        let CgroupPaths::V2 { dir: root } = self.tree.root() else { return Ok(()) };
        for slice in self.units.own_slices() {
            let dir = root.join(Units::path(&slice));
            if !dir.exists() {
                continue;
            }
            if !children(&dir)?.is_empty() || !members::is_empty(&[&dir])? {
                break;
            }
            self.bus.stop(&slice)?;
        }
        Ok(())
    }
}

fn gone(dir: &Path, within: Duration) -> bool {
    let until = Instant::now() + within;
    while dir.exists() {
        if Instant::now() >= until {
            return false;
        }
        thread::sleep(GONE_AGAIN);
    }
    true
}
