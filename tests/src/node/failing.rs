//! End of a node's scheduler by itself, or by a signal.

use super::{Node, Output, settle};
use crate::PATIENCE;
use crate::leftovers::Marks;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

impl Node {
    /// Waits for the end of the scheduler after a signal of the test's own.
    ///
    /// # Panics
    /// When it does not end.
    pub fn wait_for_end(&mut self) -> ExitStatus {
        self.wait(PATIENCE).unwrap_or_else(|| panic!("{} did not end\n{}", self.setup.name, self.log()))
    }

    /// Waits until the scheduler has ended, and proves that nothing is left: how it ended, and as standard error all that
    /// the node has said.
    ///
    /// # Panics
    /// When it goes on, or leaves something.
    #[must_use]
    pub fn ends_by_itself(mut self) -> Output {
        let status = self.wait_for_end();
        self.ended = true;
        let marks = self.setup.marks();
        let left = settle(&marks, |_| {});
        let log = self.log();
        settle(&marks, Marks::sweep);
        let _ = fs::remove_dir_all(self.setup.runtime_dir());
        assert!(left.is_empty(), "{} left behind:\n{}\n{log}", self.setup.name, left.join("\n"));
        let code = status.code().or(status.signal().map(|signal| 128 + signal)).expect("an end");
        Output { code, stdout: String::new(), stderr: log }
    }
}
