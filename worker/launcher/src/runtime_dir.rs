//! Files of instances and zygotes in the runtime directory: sockets, exit files, records.

use omni_dir::Dir;
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::id::InstanceId;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Longest path of a runtime folder in bytes: with `/instances/<12 digits>.sock` behind it, the 107 bytes of a socket's path.
pub(super) const SOCKET_DIR_MAX: usize = 107 - "/instances/012345678901.sock".len();

/// Folder `<runtime-dir>/instances`, or that of the zygotes: sockets, exit files and records, named by instance. Only
/// root can write it, or exchange it: a record that another user could have written would name processes to kill.
#[derive(Debug, Clone)]
pub(super) struct RuntimeDir {
    dir: Arc<Dir>,
}

impl RuntimeDir {
    /// Opens the folder, makes it when it is missing.
    pub(super) fn open(runtime_dir: &Dir, name: &str, mode: u32) -> io::Result<Self> {
        let dir = runtime_dir.subdirectory(name, mode)?.of_root()?;
        dir.belong_to(0, None, mode)?;
        Ok(Self { dir: Arc::new(dir) })
    }

    /// The folder, for sockets that are bound here.
    pub(super) fn dir(&self) -> &Dir {
        &self.dir
    }

    pub(super) fn socket(&self, id: &InstanceId) -> PathBuf {
        self.dir.path().join(socket_name(id))
    }

    /// Tests that the socket of an instance is there.
    pub(super) fn has_socket(&self, id: &InstanceId) -> bool {
        self.dir.has(&socket_name(id))
    }

    pub(super) fn exit_file(&self, id: &InstanceId) -> PathBuf {
        self.dir.path().join(exit_name(id))
    }

    /// Where the worker of a model with a GPU listens for its shims.
    pub(super) fn gpu_socket(&self, id: &InstanceId) -> PathBuf {
        self.dir.path().join(format!("{id}.gpu"))
    }

    /// Records a worker that has just been started, complete or not at all.
    pub(super) fn record(&self, id: &InstanceId, record: &impl Serialize) -> io::Result<()> {
        self.dir.replace(&record_name(id), &serde_json::to_vec(record)?, 0o600)
    }

    /// The record of an instance, when it is one that root wrote.
    pub(super) fn read<R: DeserializeOwned>(&self, id: &InstanceId) -> Option<R> {
        self.json(&record_name(id))
    }

    /// Every instance that left a trace.
    pub(super) fn list(&self) -> io::Result<BTreeSet<InstanceId>> {
        let names = self.dir.names()?.into_iter().filter_map(|name| name.into_string().ok());
        Ok(names.filter_map(|name| InstanceId::parse(name.split('.').next()?).ok()).collect())
    }

    /// How the worker said that its instance ended; `WorkerLost` when it said nothing.
    pub(super) fn exit_cause(&self, id: &InstanceId) -> ExitCause {
        self.json(&exit_name(id)).unwrap_or(ExitCause::WorkerLost)
    }

    /// Removes every file of an instance.
    pub(super) fn remove(&self, id: &InstanceId) -> io::Result<()> {
        let names = self.dir.names()?;
        let own = |name: &&OsString| name.to_string_lossy().split('.').next() == Some(id.as_str());
        names.iter().filter(own).try_for_each(|name| self.dir.remove(name))
    }

    /// A bounded file of root as JSON.
    fn json<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let file = self.dir.read(name).ok()?;
        let found = file.metadata().ok()?;
        let mut text = String::new();
        let trusted = found.uid() == 0 && found.mode() & 0o022 == 0;
        trusted.then(|| file.take(64 * 1024).read_to_string(&mut text).ok())??;
        serde_json::from_str(&text).ok()
    }
}

/// The name of an instance's socket.
pub(super) fn socket_name(id: &InstanceId) -> String {
    format!("{id}.sock")
}

fn exit_name(id: &InstanceId) -> String {
    format!("{id}.exit")
}

fn record_name(id: &InstanceId) -> String {
    format!("{id}.json")
}
