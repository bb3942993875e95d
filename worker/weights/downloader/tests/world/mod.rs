//! Folders of a run, the server that it asks, and its order.
#![allow(unreachable_pub, reason = "each test has it as a module of its own")]
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use super::server::Server;
use omni_weights::Order;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

pub struct World {
    dir: TempDir,
    pub server: Server,
}

impl World {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["work", "files"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        Self { dir, server: Server::start() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// An order for all of a source, with one host that may be this machine.
pub fn order(source: String, private_host: &str) -> Order {
    Order {
        source,
        sha256: None,
        files: BTreeMap::new(),
        endpoint: None,
        region: None,
        credential: None,
        redirects: Vec::new(),
        private_hosts: vec![private_host.to_owned()],
        authorities: None,
        most_bytes: 1 << 40,
        reserve: 0,
        boot: "boot".to_owned(),
    }
}
