//! Scheduler as the main loop sees it: its connection, messages that wait for one, and the links to its files.

use super::connection::Connection;
use super::links::Links;
use omni_node_protocol::launcher::FromLauncher;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// Ends that could not be sent to a scheduler yet.
const UNSENT: usize = 4096;

/// Connection to the scheduler, and messages that wait for one.
pub(super) struct Scheduler {
    pub(super) connection: Connection,
    /// Links in the runtime directory to files of the scheduler.
    pub(super) links: Links,
    /// The connected scheduler has said hello.
    greeted: bool,
    unsent: VecDeque<FromLauncher>,
}

impl Scheduler {
    /// Without a connection; `unsent` are ends of instances for the first scheduler.
    pub(super) fn new(connection: Connection, links: Links, unsent: Vec<FromLauncher>) -> Self {
        Self { connection, links, greeted: false, unsent: unsent.into() }
    }

    /// Takes a new connection. Messages wait for its hello.
    pub(super) fn accept(&mut self) {
        self.connection.accept();
        self.greeted = false;
    }

    /// Marks the connection as one that has said hello.
    pub(super) fn greet(&mut self) {
        self.greeted = true;
    }

    /// Tests that the connected scheduler has said hello.
    pub(super) fn is_greeted(&self) -> bool {
        self.greeted
    }

    /// Sends a message to a scheduler that has said hello; a new one is sent everything at its hello.
    pub(super) fn send(&mut self, message: FromLauncher) {
        if self.greeted {
            self.connection.send(message);
        }
    }

    /// Sends a message with descriptors to a scheduler that has said hello; the descriptors are closed otherwise.
    pub(super) fn send_with(&mut self, message: FromLauncher, descriptors: Vec<OwnedFd>) {
        if self.greeted {
            self.connection.send_with(message, descriptors);
        }
    }

    /// Sends the end of an instance, now or to the next scheduler.
    pub(super) fn send_end(&mut self, end: FromLauncher) {
        if self.greeted && self.connection.peer().is_some() {
            self.connection.send(end);
        } else {
            self.unsent.push_back(end);
            self.unsent.drain(..self.unsent.len().saturating_sub(UNSENT));
        }
    }

    /// Sends the ends that had no scheduler.
    pub(super) fn send_unsent(&mut self) {
        for end in std::mem::take(&mut self.unsent) {
            self.connection.send(end);
        }
    }
}
