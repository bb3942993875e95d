//! What a model directory says: its snapshot and its manifest, parsed once for each content.

use crate::capacity::need;
use crate::policy::fleet::Settings;
use omni_config::manifest::{Access, Manifest};
use omni_config::name::ModelName;
use omni_config::node::NodeConfig;
use omni_ipc::id::{EnvironmentKey, InstanceId, SnapshotDigest};
use omni_ipc::launcher::{StartSpec, ZygoteSpec};

/// A content that can be served.
#[derive(Debug, Clone)]
pub struct Content {
    /// Its digest: the model's version.
    pub snapshot: SnapshotDigest,
    /// The manifest, defaults filled in.
    pub manifest: Manifest,
    /// The manifest's text, for the note that comes back at adoption.
    pub text: Option<String>,
}

/// A content that cannot be served.
#[derive(Debug, Clone)]
pub struct Unservable {
    /// Its digest; `None` when no snapshot could be taken.
    pub snapshot: Option<SnapshotDigest>,
    /// Why, for the model's author.
    pub message: String,
}

impl Content {
    /// Parses the text of `omni.toml`, if there is one.
    ///
    /// # Errors
    /// A message for the model's author.
    pub fn parse(
        name: &ModelName,
        snapshot: SnapshotDigest,
        text: Option<String>,
        node: &NodeConfig,
    ) -> Result<Self, String> {
        let manifest = match &text {
            Some(text) => Manifest::parse(text).map_err(|error| format!("omni.toml: {error}"))?,
            None => Manifest::default(),
        };
        if manifest.network.access == Access::Host && !node.allows_host_access(name) {
            return Err(not_granted("network.access = \"host\"", "[network] host-access"));
        }
        if manifest.limits.body_handover && !node.allows_body_handover(name) {
            return Err(not_granted("limits.body-handover = true", "[server] body-handover"));
        }
        Ok(Self { snapshot, manifest, text })
    }

    /// The same, with an instance that is there whether or not requests come.
    #[must_use]
    pub fn kept(mut self) -> Self {
        let scaling = &mut self.manifest.scaling;
        scaling.min_instances = scaling.min_instances.max(1);
        self
    }

    /// The first twelve digits of the version, as answers carry it.
    #[must_use]
    pub fn short_version(&self) -> &str {
        self.snapshot.as_str().get(..12).unwrap_or_default()
    }

    /// The parts that decide the life of its instances.
    #[must_use]
    pub fn settings(&self) -> Settings {
        Settings {
            min: self.manifest.scaling.min_instances,
            max: self.manifest.scaling.max_instances,
            idle_timeout: self.manifest.scaling.idle_timeout,
            startup: self.manifest.timeouts.startup,
            drain: self.manifest.timeouts.drain,
        }
    }

    /// The request for an instance of this content.
    #[must_use]
    pub fn start_spec(
        &self,
        name: &ModelName,
        instance: InstanceId,
        environment: EnvironmentKey,
        node: &NodeConfig,
    ) -> StartSpec {
        let manifest = &self.manifest;
        let need = need(&manifest.resources);
        StartSpec {
            instance,
            model: name.as_str().to_owned(),
            snapshot: self.snapshot.clone(),
            environment,
            module: manifest.model.entrypoint.module().to_owned(),
            function: manifest.model.entrypoint.function().to_owned(),
            memory_bytes: need.memory,
            cpu_millis: u32::try_from(need.millicpus).unwrap_or(u32::MAX), // the manifest bounds it
            pids: manifest.resources.pids,
            tmp_bytes: manifest.limits.tmp.bytes(),
            cache_bytes: manifest.limits.cache.bytes(),
            concurrency: manifest.scaling.concurrency,
            host_network: manifest.network.access == Access::Host,
            env: manifest.env.iter().map(|(name, value)| (name.as_str().to_owned(), value.clone())).collect(),
            log_lines_per_second: node.logs.lines_per_second,
            gpu: None,
            zygote: manifest.zygote_memory().map(|memory| ZygoteSpec {
                preload: manifest.python.preload.clone(),
                memory_bytes: memory.bytes(),
                startup_ms: u64::try_from(manifest.timeouts.startup.as_millis()).unwrap_or(u64::MAX),
            }),
            note: self.text.clone().unwrap_or_default(),
        }
    }
}
/// What a manifest asks for, and where the operator lists who may have it.
fn not_granted(asked: &str, list: &str) -> String {
    format!(
        "`{asked}` is not allowed for this model: the operator has to list it under `{list}` of the node's configuration"
    )
}
