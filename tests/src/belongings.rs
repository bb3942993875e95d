//! All that a node has while no model runs: the same before and after anything that models, people or crashes did.

use crate::process::descriptors;
use crate::{Node, PATIENCE, wait_for};
use nix::unistd::Pid;
use std::fs;
use std::time::{Duration, Instant};

/// What the kernel and the node's folders say.
#[derive(Debug, PartialEq)]
pub struct Belongings {
    scheduler: Vec<String>,
    launcher: Vec<String>,
    threads: [usize; 2],
    mounts: [usize; 2],
    traces: Vec<String>,
    found: Vec<String>,
}

impl Belongings {
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

    /// Once nothing of any instance is there.
    ///
    /// # Panics
    /// When something stays.
    #[must_use]
    pub fn at_rest(node: &Node) -> Self {
        wait_for("all instances to be gone", PATIENCE, || {
            let one = Self::of(node);
            (one.traces.is_empty() && one.found.iter().all(|line| !line.ends_with("/model"))).then_some(one)
        })
    }

    /// The node comes back to this within moments.
    ///
    /// # Panics
    /// When it does not.
    pub fn assert_unchanged(&self, node: &Node) {
        let mut after = Self::of(node);
        let end = Instant::now() + Duration::from_secs(10);
        while after != *self && Instant::now() < end {
            after = Self::of(node);
        }
        assert_eq!(after, *self, "{}", node.log());
    }
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
