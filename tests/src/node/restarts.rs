//! A crash of a node's scheduler, and the next one on the same folders or with another models folder.

use super::{Node, Output};
use crate::{PATIENCE, wait_for};
use nix::sys::signal::{Signal, kill};
use std::fs;

impl Node {
    /// Ends the scheduler with SIGKILL, as a crash would; models go on. [`Node::start_again`] brings a successor.
    pub fn crash(&mut self) {
        kill(self.pid(), Signal::SIGKILL).expect("killed");
        self.wait(PATIENCE).expect("gone");
    }

    /// Ends the node, and waits only for its scheduler, as a shell would.
    pub fn end_scheduler(&mut self) {
        kill(self.pid(), Signal::SIGTERM).expect("told");
        let ended = self.wait(PATIENCE).expect("gone");
        assert!(ended.success(), "{ended}\n{}", self.log());
    }

    /// Starts a scheduler on the same folders, after [`Node::crash`], and waits until it is ready.
    pub fn start_again(&mut self) {
        self.begin_again();
        self.await_ready();
    }

    /// As [`Node::start_again`], without waiting.
    pub fn begin_again(&mut self) {
        (self.scheduler, self.successor) = (self.setup.spawn(&self.setup.path("log")), None);
    }

    /// Starts a second scheduler on the same folders and waits for its end.
    ///
    /// # Panics
    /// When it serves instead.
    #[must_use]
    pub fn rival(&self) -> Output {
        let log = self.setup.path("rival.log");
        let mut rival = self.setup.spawn(&log);
        let ended = wait_for("the second scheduler to end", PATIENCE, || rival.try_wait().expect("our child"));
        let code = ended.code().unwrap_or(128);
        Output { code, stdout: String::new(), stderr: fs::read_to_string(log).unwrap_or_default() }
    }

    /// Has the next scheduler serve another models folder, to which models are published from now on.
    pub fn serve_another_folder(&mut self, name: &str) {
        fs::create_dir(self.setup.path(name)).unwrap();
        name.clone_into(&mut self.setup.models);
    }
}
