//! The launcher of a node, and the one that comes after it.

use crate::{Node, PATIENCE, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

impl Node {
    /// The launcher's process id; `None` while there is none.
    #[must_use]
    pub fn launcher(&self) -> Option<Pid> {
        // The launcher's watcher runs the same program with another argument.
        self.process(|line| line.contains("omni-launcher\0") && line.contains("\0--kept\0"))
    }

    /// Ends the launcher by this signal and waits until the scheduler has the next one, which its keeper starts.
    /// Returns the new process id.
    ///
    /// # Panics
    ///
    /// When there is none, before or after.
    pub fn replace_launcher(&self, by: Signal) -> Pid {
        let first = self.launcher().expect("a launcher");
        kill(first, by).expect("told");
        self.await_launcher(first)
    }

    /// Waits until the scheduler has another launcher than `last`. Its process id.
    ///
    /// # Panics
    /// When none comes.
    pub fn await_launcher(&self, last: Pid) -> Pid {
        wait_for("the next launcher", PATIENCE, || {
            let next = self.launcher().filter(|next| *next != last)?;
            let connected = self.omnictl(["status", "-o", "json"]).stdout.contains("\"launcher_connected\": true");
            connected.then_some(next)
        })
    }
}
