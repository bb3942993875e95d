//! The zygotes of a node, for tests of starts from them.

use super::Node;
use std::fs;

impl Node {
    /// How many zygotes take callers: each has a socket.
    ///
    /// # Panics
    /// When their folder cannot be read.
    #[must_use]
    pub fn zygotes(&self) -> usize {
        let entries = fs::read_dir(self.control_socket().with_file_name("zygotes")).unwrap();
        entries.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|end| end == "sock")).count()
    }
}
