//! All that a node has while no model runs: the same before and after anything that models, people or crashes did.

use crate::process::descriptors;
use crate::{Node, PATIENCE, wait_for};
use nix::unistd::Pid;
use std::fs;
use std::time::{Duration, Instant};

/// Looks in a row, 5 ms apart, that find the same before a node counts as at rest.
const SETTLED: usize = 20;

/// Resources by the kernel's and the node's folders.
#[derive(Debug, PartialEq)]
pub struct Resources {
    scheduler: Vec<String>,
    launcher: Vec<String>,
    threads: [usize; 2],
    mounts: [usize; 2],
    traces: Vec<String>,
    found: Vec<String>,
}

impl Resources {
    /// Now.
    ///
    /// # Panics
    /// When there is no launcher.
    #[must_use]
    pub fn of(node: &Node) -> Self {
        let (scheduler, launcher) = (node.pid(), node.launcher().expect("a launcher"));
        Self {
            scheduler: descriptors(scheduler),
            launcher: descriptors(launcher),
            threads: [scheduler, launcher].map(|pid| count(pid, "task")),
            mounts: [scheduler, launcher].map(|pid| mounts(node, pid)),
            traces: node.traces(),
            found: node.found(),
        }
    }

    /// Resources at rest: no instance is left, no client is connected, and nothing more has disappeared for a while. A
    /// descriptor that is being closed must not count.
    ///
    /// # Panics
    ///
    /// When something stays.
    #[must_use]
    pub fn at_rest(node: &Node) -> Self {
        let mut last: Option<(Self, usize)> = None;
        wait_for("all instances to be gone", PATIENCE, || {
            let now = Self::of(node);
            let is_empty = now.traces.is_empty() && now.found.iter().all(|line| !line.ends_with("/model"));
            let looks = match last.take() {
                Some((before, looks)) if before == now && is_empty && node.connections() == 0 => looks + 1,
                _ => 0,
            };
            if looks == SETTLED {
                return Some(now);
            }
            last = Some((now, looks));
            None
        })
    }

    /// The node comes back to this within moments, and keeps nothing more.
    ///
    /// # Panics
    /// When it does not.
    pub fn assert_unchanged(&self, node: &Node) {
        let mut after = Self::of(node);
        let end = Instant::now() + Duration::from_secs(10);
        while !self.covers(&after) && Instant::now() < end {
            after = Self::of(node);
        }
        assert!(self.covers(&after), "before: {self:?}\nafter: {after:?}\n{}", node.log());
    }

    /// Returns true if everything that is there now was there before.
    fn covers(&self, after: &Self) -> bool {
        let few =
            |before: &[usize; 2], after: &[usize; 2]| before.iter().zip(after).all(|(before, after)| after <= before);
        holds(&self.scheduler, &after.scheduler)
            && holds(&self.launcher, &after.launcher)
            && few(&self.threads, &after.threads)
            && few(&self.mounts, &after.mounts)
            && holds(&self.traces, &after.traces)
            && holds(&self.found, &after.found)
    }
}

/// Returns true if each line of `after` is in `before`, at least as often.
fn holds(before: &[String], after: &[String]) -> bool {
    let mut rest = before.to_vec();
    after.iter().all(|line| rest.iter().position(|other| other == line).map(|at| rest.swap_remove(at)).is_some())
}

fn count(pid: Pid, part: &str) -> usize {
    fs::read_dir(format!("/proc/{pid}/{part}")).unwrap().count()
}

/// Others mount things meanwhile: only those of this node count.
fn mounts(node: &Node, pid: Pid) -> usize {
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    mounts.lines().filter(|line| node.is_named(line)).count()
}

impl Node {
    /// Client connections that the scheduler has open now, on both listeners.
    #[must_use]
    pub fn connections(&self) -> usize {
        let (data, admin) = (self.data_address(), self.admin_address());
        let table = fs::read_to_string("/proc/net/tcp").expect("the kernel's list");
        let ours = |line: &&str| {
            let mut fields = line.split_whitespace().skip(1);
            let (Some(local), Some(_), Some(state)) = (fields.next(), fields.next(), fields.next()) else {
                return false;
            };
            let port = local.rsplit(':').next().and_then(|port| u16::from_str_radix(port, 16).ok());
            let inode = fields.nth(5);
            // Listening, and those that only the kernel remembers, do not count.
            [Some(data.port()), Some(admin.port())].contains(&port) && state != "0A" && inode != Some("0")
        };
        table.lines().skip(1).filter(ours).count()
    }
}
