//! Specification of a sandbox, from the launcher; the worker carries it out and decides nothing.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// World inside, as a process sees it. The system's read-only files (libraries, certificates, time zones, devices,
/// `/proc`, `/sys` topology, passwd and group) is always there and not listed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// Host name inside.
    pub hostname: String,
    /// User and group of the process, which no other process of the host has.
    pub uid: u32,
    /// See `uid`.
    pub gid: u32,
    /// Directories of the host that appear inside, in order.
    pub binds: Vec<Bind>,
    /// Device files of the host that appear in `/dev` under their own name and may be used with `ioctl`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<PathBuf>,
    /// A lasting directory with a quota, mounted at `/cache`.
    pub cache: Option<Cache>,
    /// A folder with weights, mounted at `/weights`, read-only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<Weights>,
    /// Size of `/tmp` and of `/dev/shm`, each, in bytes.
    pub tmp_bytes: u64,
    /// Stay in the host's network namespace (`resolv.conf` and `hosts` appear then).
    pub host_network: bool,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// Absolute path of the program inside, then its arguments.
    pub argv: Vec<String>,
    /// Working directory inside.
    pub cwd: PathBuf,
}

/// Directory (or file) of the host inside the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    /// On the host; chosen by the launcher, never by a model.
    pub source: PathBuf,
    /// Absolute path inside.
    pub target: PathBuf,
    /// Read-only unless set. Never executable set-user-id, never devices.
    pub writable: bool,
}

/// A folder in one that the operator lists. Others than root may have changed what is in that one: it is found through no
/// link that leads out of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weights {
    /// The listed folder.
    pub folder: PathBuf,
    /// The path in it; empty for the listed folder itself.
    pub below: PathBuf,
}

impl Weights {
    /// The path on the host, for messages.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        // Joined as parts: an empty path would leave a `/` at the end.
        self.folder.components().chain(self.below.components()).collect()
    }
}

/// A lasting directory with a quota: an ext4 image on a loop device, owned inside by the instance's user through an
/// id-mapped mount, so that it works across the users of successive instances.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// The image file; made when it is missing.
    pub image: PathBuf,
    /// Size and quota, in bytes.
    pub bytes: u64,
}
