//! The node's configuration file: users, addresses, Python, capacity, GPUs, bounds for the whole node.
//!
//! Read once at start by scheduler and launcher; the command line wins over the paths and addresses here. The file with
//! all defaults is `default-node.toml` beside this crate's manifest; tests keep it in step with this code.
//!
//! Invariant: the uids of instances, of the environment builder and of the scheduler are distinct.

mod cache;
mod capacity;
mod gpu;
mod group;
mod jobs;
mod python;
mod secret;
mod tls;
mod tracing;
mod usage;
mod user;
mod weights;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use toml::de::DeValue;

pub use cache::Cache;
pub use capacity::Capacity;
pub use gpu::{Gpu, GpuDevice, GpuUuid, GpuUuidError};
pub use group::{NoGroup, NodeGroup};
pub use jobs::Jobs;
pub use python::Python;
pub use secret::SecretFile;
pub use tls::Tls;
pub use tracing::Tracing;
pub use usage::{Sink, Usage, WhenFull};
pub use user::{NoUser, NodeUser};
pub use weights::{HostPattern, SourceRule, Weights};

use crate::error::Problems;
use crate::host::HostName;
use crate::kind::{Mismatch, absolute_path, choice, duration, number, parsed, size};
use crate::name::ModelName;
use crate::reader::{Document, Section};
use crate::size::ByteSize;

/// The scheduler's uid where no user is configured and none is called [`user::USUAL`].
pub const FALLBACK_UID: u32 = 1_899_999_998;
/// The file that scheduler and launcher read when none is named and it exists.
pub const DEFAULT_FILE: &str = "/etc/omni/omni.toml";
/// Exit code of both when the configuration must change first: starting again does not help (`EX_CONFIG`).
pub const MISCONFIGURED: u8 = 78;
/// The uid that builds Python environments.
pub const BUILDER_UID: u32 = 1_899_999_999;
/// The uid that fetches weights.
pub const WEIGHTS_UID: u32 = 1_899_999_997;

/// Everything an operator can say about a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NodeConfig {
    /// `[node]`: users, folders, cgroup.
    pub node: Node,
    /// `[server]`: addresses and what they accept.
    pub server: Server,
    /// `[tls]`: the data listener's certificate.
    pub tls: Tls,
    /// `[python]`: how environments are built.
    pub python: Python,
    /// `[capacity]`: what all instances together may use.
    pub capacity: Capacity,
    /// `[gpu]`: cards and the budgets of their memory.
    pub gpu: Gpu,
    /// `[snapshots]`: bounds of a model's directory.
    pub snapshots: Snapshots,
    /// `[cache]`: the lasting cache directories of models.
    pub cache: Cache,
    /// `[weights]`: where models may have their weights.
    pub weights: Weights,
    /// `[network]`: which models may have the node's network.
    pub network: Network,
    /// `[logs]`: bounds of what models write.
    pub logs: Logs,
    /// `[usage]`: records of what requests used.
    pub usage: Usage,
    /// `[jobs]`: batch jobs.
    pub jobs: Jobs,
    /// `[tracing]`: spans of requests to a collector.
    pub tracing: Tracing,
}

/// A configuration of the node that cannot be used, with everything that is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NodeConfigError(pub Problems);

impl NodeConfig {
    /// Reads the text of the node's configuration file.
    ///
    /// # Errors
    ///
    /// The text is not TOML; a key is unknown, of the wrong type or beyond its bounds; or uids overlap. All problems
    /// are reported, each with its line.
    pub fn parse(text: &str) -> Result<Self, NodeConfigError> {
        let mut document = Document::parse(text).map_err(NodeConfigError)?;
        let config = document.read(|root| Self {
            node: root.section("node", Node::read),
            server: root.section("server", Server::read),
            tls: root.section("tls", Tls::read),
            python: root.section("python", Python::read),
            capacity: root.section("capacity", Capacity::read),
            gpu: root.section("gpu", Gpu::read),
            snapshots: root.section("snapshots", Snapshots::read),
            cache: root.section("cache", Cache::read),
            weights: root.section("weights", Weights::read),
            network: root.section("network", Network::read),
            logs: root.section("logs", Logs::read),
            usage: root.section("usage", Usage::read),
            jobs: root.section("jobs", Jobs::read),
            tracing: root.section("tracing", Tracing::read),
        });
        if document.is_clean()
            && let Some((key, reason)) = config.node.overlap()
        {
            document.refuse("node", key, reason);
        }
        if document.is_clean()
            && let Some((key, reason)) = config.tls.half()
        {
            document.refuse("tls", key, reason);
        }
        if document.is_clean()
            && let Some((key, reason)) = config.usage.without_server()
        {
            document.refuse("usage", key, reason);
        }
        if document.is_clean()
            && let Some((key, reason)) = config.tracing.without_endpoint()
        {
            document.refuse("tracing", key, reason);
        }
        if document.is_clean()
            && let Some(reason) = config.weights.unused_key()
        {
            document.refuse("weights", "sources", reason);
        }
        document.finish(config).map_err(NodeConfigError)
    }

    /// The text of a configuration file that says every key, its default and its meaning, and changes nothing.
    #[must_use]
    pub const fn default_toml() -> &'static str {
        include_str!("../default-node.toml")
    }

    /// The sections that a launcher uses: all but those of the scheduler alone.
    #[must_use]
    pub fn of_launcher(&self) -> serde_json::Value {
        let mut sections = serde_json::to_value(self).unwrap_or_default(); // a parsed value can always be written
        if let Some(sections) = sections.as_object_mut() {
            let others = ["server", "tls", "capacity", "logs", "usage", "jobs", "tracing"];
            sections.retain(|name, _| !others.contains(&name.as_str()));
        }
        sections
    }

    /// Returns true if `[network] access = "host"` is granted to this model.
    #[must_use]
    pub fn allows_host_access(&self, model: &ModelName) -> bool {
        self.network.host_access.contains(model)
    }

    /// Returns true if `[limits] body-handover = true` is granted to this model.
    #[must_use]
    pub fn allows_body_handover(&self, model: &ModelName) -> bool {
        self.server.body_handover.contains(model)
    }
}

/// `[node]`: users, folders, cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Node {
    /// The scheduler's user; unset: `omni` where it exists, else [`FALLBACK_UID`].
    pub user: Option<NodeUser>,
    /// Group that may change the node by the control socket, beside root; unset: the group `omni-admin` where it
    /// exists.
    pub admin_group: Option<NodeGroup>,
    /// The first uid of instances.
    pub uid_base: u32,
    /// How many uids instances have.
    pub uid_count: u32,
    /// The models folder.
    pub models: Option<PathBuf>,
    /// Folder of lasting state: snapshots, generations.
    pub state_dir: Option<PathBuf>,
    /// Folder of data that can be made again: environments, packages, caches of models.
    pub cache_dir: Option<PathBuf>,
    /// Sockets.
    pub runtime_dir: Option<PathBuf>,
    /// The cgroup below which the node's are made, relative to the root of the hierarchy.
    pub cgroup_parent: String,
    /// Driver that creates the control groups.
    pub cgroup_driver: CgroupDriver,
}

/// Driver that creates the control groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CgroupDriver {
    /// systemd where it manages the machine's groups, else the node itself.
    #[default]
    Auto,
    /// systemd, a scope for each instance.
    Systemd,
    /// The node itself, by the kernel's files.
    Cgroupfs,
}

impl Default for Node {
    fn default() -> Self {
        Self {
            user: None,
            admin_group: None,
            uid_base: 1_900_000_000,
            uid_count: 4096,
            models: None,
            state_dir: None,
            cache_dir: None,
            runtime_dir: None,
            cgroup_parent: "omni".to_owned(),
            cgroup_driver: CgroupDriver::Auto,
        }
    }
}

impl Node {
    fn read(section: &mut Section<'_>) -> Self {
        let default = Self::default();
        let path = |value: &DeValue<'_>| absolute_path(value).map(Some);
        let drivers =
            [("auto", CgroupDriver::Auto), ("systemd", CgroupDriver::Systemd), ("cgroupfs", CgroupDriver::Cgroupfs)];
        Self {
            user: section.get("user", |value| user::user(value).map(Some), default.user),
            admin_group: section.get("admin-group", |value| group::group(value).map(Some), default.admin_group),
            // Uids below 65536 belong to the system and its users; the highest two mean "nobody" and "no change".
            uid_base: section.get("uid-base", number(65_536..=u32::MAX - 65_538), default.uid_base),
            uid_count: section.get("uid-count", number(1..=65_536), default.uid_count),
            models: section.get("models", path, default.models),
            state_dir: section.get("state-dir", path, default.state_dir),
            cache_dir: section.get("cache-dir", path, default.cache_dir),
            runtime_dir: section.get("runtime-dir", path, default.runtime_dir),
            cgroup_parent: section.get("cgroup-parent", cgroup, default.cgroup_parent),
            cgroup_driver: section.get("cgroup-driver", choice(&drivers), default.cgroup_driver),
        }
    }

    /// The key whose uids meet others, and why.
    fn overlap(&self) -> Option<(&'static str, String)> {
        // The bounds of both keys keep the sum below 2³².
        let last = self.uid_base + (self.uid_count - 1);
        let instances = self.uid_base..=last;
        let range = format!("the uids of instances, {} to {last},", self.uid_base);
        if let Some(uid) = [FALLBACK_UID, BUILDER_UID, WEIGHTS_UID].into_iter().find(|uid| instances.contains(uid)) {
            return Some(("uid-base", format!("{range} include {uid}, which the node uses itself")));
        }
        match &self.user {
            Some(NodeUser::Uid(BUILDER_UID)) => {
                Some(("user", format!("{BUILDER_UID} builds environments, which is foreign code: use another uid")))
            }
            Some(NodeUser::Uid(WEIGHTS_UID)) => {
                Some(("user", format!("{WEIGHTS_UID} fetches weights from foreign servers: use another uid")))
            }
            Some(NodeUser::Uid(uid)) if instances.contains(uid) => {
                Some(("user", format!("{range} include the scheduler's own: use another uid")))
            }
            Some(NodeUser::Uid(_) | NodeUser::Name(_)) | None => None,
        }
    }
}

fn cgroup(value: &DeValue<'_>) -> Result<String, Mismatch> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'@');
    let is_segment = |part: &str| !part.is_empty() && !part.starts_with('.') && part.bytes().all(allowed);
    let is_path = |text: &&str| text.len() <= 200 && text.split('/').all(is_segment);
    let path = value.as_str().filter(is_path).map(str::to_owned);
    path.ok_or_else(|| Mismatch::expected("a relative cgroup path such as \"omni\" or \"gpu/omni\""))
}

/// `[server]`: addresses and what they accept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Server {
    /// Where models are called.
    pub listen: SocketAddr,
    /// Health, metrics and capacity.
    pub admin_listen: SocketAddr,
    /// All request bodies that are being collected, together.
    pub buffered_bytes: ByteSize,
    /// Names beside those of the machine itself by which clients may call the listeners.
    pub hosts: BTreeSet<HostName>,
    /// Client connections at a time.
    pub connections: u32,
    /// Client connections at a time from one address; unset: no separate bound.
    pub connections_per_address: Option<u32>,
    /// How long a client may take to send a request's head.
    #[serde(serialize_with = "crate::duration::serialize")]
    pub header_timeout: Duration,
    /// The tokens that clients must show; unset: they need none.
    pub tokens: Option<SecretFile>,
    /// Models that may be given the client's connection to read a large body from.
    pub body_handover: BTreeSet<ModelName>,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 8080).into(),
            admin_listen: (Ipv4Addr::LOCALHOST, 9090).into(),
            buffered_bytes: ByteSize::from_mib(512),
            hosts: BTreeSet::new(),
            connections: 12_000,
            connections_per_address: None,
            header_timeout: Duration::from_secs(30),
            tokens: None,
            body_handover: BTreeSet::new(),
        }
    }
}

impl Server {
    fn read(section: &mut Section<'_>) -> Self {
        let default = Self::default();
        let address = parsed("an IP address and a port such as \"127.0.0.1:8080\" or \"[::1]:8080\"");
        let trusted = section.list("body-handover", parsed("a model's name such as \"@cf/meta/llama\""));
        let hosts = section.list("hosts", parsed("a host's name such as \"models.example.com\""));
        let buffered = size(ByteSize::from_mib(1)..=ByteSize::from_gib(1 << 10));
        let each = number(1..=1_000_000);
        Self {
            listen: section.get("listen", &address, default.listen),
            admin_listen: section.get("admin-listen", &address, default.admin_listen),
            buffered_bytes: section.get("buffered-bytes", buffered, default.buffered_bytes),
            hosts: hosts.into_iter().collect(),
            connections: section.get("connections", &each, default.connections),
            connections_per_address: section.get(
                "connections-per-address",
                |value| each(value).map(Some),
                default.connections_per_address,
            ),
            header_timeout: section.get("header-timeout", duration, default.header_timeout),
            tokens: section.get("tokens", |value| secret::secret(value).map(Some), default.tokens),
            body_handover: trusted.into_iter().collect(),
        }
    }
}

/// `[snapshots]`: bounds of a model's directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Snapshots {
    /// All files together.
    pub bytes: ByteSize,
    /// Files, directories and links.
    pub files: u32,
}

impl Default for Snapshots {
    fn default() -> Self {
        Self { bytes: ByteSize::from_gib(64), files: 20_000 }
    }
}

impl Snapshots {
    fn read(section: &mut Section<'_>) -> Self {
        let default = Self::default();
        let bytes = size(ByteSize::from_mib(1)..=ByteSize::from_gib(64 << 10));
        Self {
            bytes: section.get("bytes", bytes, default.bytes),
            files: section.get("files", number(1..=10_000_000), default.files),
        }
    }
}

/// `[network]`: which models may have the node's network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Network {
    /// The models whose `[network] access = "host"` is granted.
    pub host_access: BTreeSet<ModelName>,
}

impl Network {
    fn read(section: &mut Section<'_>) -> Self {
        let models = section.list("host-access", parsed("a model's name such as \"@cf/meta/llama\""));
        Self { host_access: models.into_iter().collect() }
    }
}

/// `[logs]`: bounds of what models write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Logs {
    /// Lines per second of one model; what is beyond is counted and dropped.
    pub lines_per_second: u32,
    /// The newest output kept of each model.
    pub kept: ByteSize,
}

impl Default for Logs {
    fn default() -> Self {
        Self { lines_per_second: 200, kept: ByteSize::from_kib(256) }
    }
}

impl Logs {
    fn read(section: &mut Section<'_>) -> Self {
        let default = Self::default();
        let kept = size(ByteSize::from_kib(4)..=ByteSize::from_mib(64));
        Self {
            lines_per_second: section.get("lines-per-second", number(1..=1_000_000), default.lines_per_second),
            kept: section.get("kept", kept, default.kept),
        }
    }
}
