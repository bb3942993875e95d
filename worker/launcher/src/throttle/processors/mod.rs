//! Pins instances that compute all the time to as many processors as their limit is, so that the others find one free
//! (`docs/decisions/processors.md`).
//!
//! A thread of the launcher looks four times a second at all groups with a limit of processor time; [`policy`] decides.
//!
//! Invariants: all state is in the kernel, so that the death of a launcher loses nothing; and a group that cannot be
//! read is one that ends, and is left alone.

mod policy;

use omni_cgroup::{CpuSet, CpuShare, Driver, GroupName, Part};
use policy::{Change, Policy, Use};
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks: long enough to see what an instance does in several of the kernel's quota periods (0.1 s), short
/// enough that a request or two feel it before.
const TICK: Duration = Duration::from_millis(250);

/// A group that is looked at.
struct Watched {
    share: CpuShare,
    used_usec: u64,
}

/// Shares out the processors until the launcher ends.
pub(crate) fn share_out(cgroups: &dyn Driver) {
    let mut watched: BTreeMap<String, Watched> = BTreeMap::new();
    let mut policy = Policy::default();
    let mut looked = Instant::now();
    loop {
        thread::sleep(TICK);
        let (Ok(all), Ok(names)) = (cgroups.processors(), cgroups.list()) else { continue };
        watched.retain(|name, _| names.contains(name));
        for name in names {
            // A group that is being made has no limit yet: it is looked at again.
            if !watched.contains_key(&name)
                && let Some(group) = open(cgroups, &name, &all)
            {
                watched.insert(name, group);
            }
        }
        let within = looked.elapsed();
        looked = Instant::now();
        let uses = watched.iter_mut().filter_map(|(name, group)| Some((name.clone(), group.look()?)));
        for (name, change) in policy.tick(&all, within, &uses.collect()) {
            if let Some(group) = watched.get(&name) {
                carry_out(&name, &group.share, &change, &all);
            }
        }
    }
}

/// A group that is new here. What an earlier launcher decided on it is not known, and undone.
fn open(cgroups: &dyn Driver, name: &str, all: &CpuSet) -> Option<Watched> {
    let paths = cgroups.paths(&GroupName::new(name, Part::Model).ok()?);
    let share = CpuShare::open(&paths).ok()??;
    share.let_go(all).ok()?;
    let used_usec = share.used_usec().ok()?;
    Some(Watched { share, used_usec })
}

impl Watched {
    fn look(&mut self) -> Option<Use> {
        let now = self.share.used_usec().ok()?;
        let before = std::mem::replace(&mut self.used_usec, now);
        Some(Use { limit_millis: self.share.limit_millis(), used_usec: now.saturating_sub(before) })
    }
}

fn carry_out(name: &str, share: &CpuShare, change: &Change, all: &CpuSet) {
    let (done, processors) = match change {
        Change::Pin(processors) => (share.keep_to(processors), processors),
        Change::Unpin => (share.let_go(all), all),
    };
    match done {
        Ok(()) => tracing::debug!(group = name, %processors, "processors of a group"),
        Err(error) => {
            tracing::debug!(group = name, error = omni_log::chain(&error), "a group keeps its processors");
        }
    }
}
