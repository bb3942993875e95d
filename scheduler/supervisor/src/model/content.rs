//! Content of a model's directory: its snapshot and its manifest, parsed once for each content.

use omni_capacity::need;
use omni_config::Foreign;
use omni_config::manifest::{Access, Engine, LogLevel, MOST_SAID, Manifest, TooLarge, WeightsFile};
use omni_config::name::ModelName;
use omni_config::node::NodeConfig;
use omni_engine_protocol::packet::MAX_PACKET;
use omni_launcher_client::EnvironmentRequest;
use omni_node_protocol::id::{EnvironmentKey, InstanceId, SnapshotDigest};
use omni_node_protocol::launcher::{EngineSpec, StartSpec, WeightsPlace, WeightsRequest, ZygoteSpec};
use omni_policy::fleet::Settings;
use std::collections::BTreeMap;

// The rest of a message is for what the node adds: names and numbers, a card, the reason why a start failed.
const _: () = assert!(MOST_SAID + 16 * 1024 <= MAX_PACKET, "a manifest fits into a message");

/// Tells the engine from which level on libraries' lines are wanted, where that is not the default.
const LOG_LEVEL: &str = "OMNI_LOG_LIBRARIES";
/// Variable with the seconds in which a server has to be healthy, so that its engine says why it is not.
const STARTUP: &str = "OMNI_STARTUP_SECONDS";

/// A content that can be served.
#[derive(Debug, Clone)]
pub struct Content {
    /// Digest: the model's version.
    pub snapshot: SnapshotDigest,
    /// The manifest, defaults filled in.
    pub manifest: Manifest,
    /// The manifest's text, for the note that comes back at adoption.
    pub text: Option<String>,
}

/// A content that cannot be served.
#[derive(Debug, Clone)]
pub struct Unservable {
    /// Digest; `None` when no snapshot could be taken.
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
        if let Some(folder) = manifest.weights.folder().filter(|folder| node.weights.granted(folder).is_none()) {
            let asked = format!("weights.source = \"file://{}\"", Foreign(&folder.to_string_lossy()));
            return Err(format!(
                "`{asked}` is in no folder that models may have their weights in: the operator has to list one under \
                 `[weights] folders` of the node's configuration"
            ));
        }
        if let Some(source) = manifest.weights.fetched().filter(|source| node.weights.rule(source).is_none()) {
            return Err(format!(
                "`weights.source = \"{source}\"` is no source that weights may be fetched from: the operator has to list it, or a \
                 beginning of it, under `[weights.sources]` of the node's configuration"
            ));
        }
        if manifest.limits.body_handover && !node.allows_body_handover(name) {
            return Err(not_granted("limits.body-handover = true", "[server] body-handover"));
        }
        if manifest.limits.cache > node.cache.per_model {
            let (asked, most) = (manifest.limits.cache, node.cache.per_model);
            return Err(format!(
                "omni.toml: `cache` in [limits] is {asked}, and this node gives a model {most} at most: ask for less, or \
                 raise `per-model` in [cache] of the node's configuration"
            ));
        }
        let (asked, most) = (manifest.resources.pids, node.capacity.processes_per_instance.unwrap_or(u32::MAX));
        if asked > most {
            return Err(format!(
                "omni.toml: `pids` in [resources] is {asked}, and this node gives an instance {most} at most: ask for less, \
                 or raise `processes-per-instance` in [capacity] of the node's configuration"
            ));
        }
        Ok(Self { snapshot, manifest, text })
    }

    /// Content that fits into the messages to launcher and workers; other content is refused. For content of a directory:
    /// running content was sent already.
    ///
    /// # Errors
    /// A message for the model's author.
    pub fn sendable(self) -> Result<Self, String> {
        let text = self.text.as_deref().unwrap_or_default();
        match self.manifest.check_sendable(text) {
            Ok(()) => Ok(self),
            Err(error) => Err(format!("{error}; {}", TooLarge::HINT)),
        }
    }

    /// Content with one instance at least, whether or not requests come.
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
            request: self.manifest.timeouts.request,
        }
    }

    /// Request for the environment of this content.
    #[must_use]
    pub fn environment_request(&self, model: &ModelName) -> EnvironmentRequest {
        EnvironmentRequest {
            model: model.clone(),
            snapshot: self.snapshot.clone(),
            python: self.manifest.runtime.python.to_string(),
            interpreter: self.manifest.runtime.interpreter.clone(),
            require_hashes: self.manifest.python.require_hashes,
            weights: self.weights_request(),
        }
    }

    /// Request for the weights that the node fetches, or that a folder of it has.
    fn weights_request(&self) -> Option<WeightsRequest> {
        let weights = &self.manifest.weights;
        if weights.folder().is_some() {
            return Some(WeightsRequest { source: weights.source.clone()?, sha256: None, files: BTreeMap::new() });
        }
        let source = weights.fetched()?.to_string();
        let digest = |file: &WeightsFile| (file.path.clone(), file.sha256.clone().unwrap_or_default());
        let files = weights.files.iter().map(digest).collect();
        Some(WeightsRequest { source, sha256: weights.sha256.clone(), files })
    }

    /// Place of the weights that are not in its directory; `None`: there are none.
    #[must_use]
    pub fn weights_place(&self) -> Option<WeightsPlace> {
        let weights = &self.manifest.weights;
        match weights.folder() {
            Some(path) => Some(WeightsPlace::Folder { path: path.to_owned() }),
            None => weights.fetched().map(|_| WeightsPlace::Fetched),
        }
    }

    /// Request for an instance of this content.
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
            engine: match manifest.runtime.engine {
                Engine::Python => EngineSpec::Python {
                    environment,
                    module: manifest.model.entrypoint.module().to_owned(),
                    function: manifest.model.entrypoint.function().to_owned(),
                },
                Engine::OpenAi => EngineSpec::OpenAi { environment, command: manifest.runtime.command.clone() },
                Engine::Native => EngineSpec::Native { environment },
            },
            memory_bytes: need.memory,
            cpu_millis: u32::try_from(need.millicpus).unwrap_or(u32::MAX), // the manifest bounds it
            pids: manifest.resources.pids,
            tmp_bytes: manifest.limits.tmp.bytes(),
            cache_bytes: manifest.limits.cache.bytes(),
            concurrency: manifest.scaling.concurrency,
            batches: manifest.batching.bounds().is_some(),
            host_network: manifest.network.access == Access::Host,
            env: env(manifest),
            log_lines_per_second: node.logs.lines_per_second,
            gpu: None,
            zygote: manifest.zygote_memory().map(|memory| ZygoteSpec {
                preload: manifest.python.preload.clone(),
                memory_bytes: memory.bytes(),
                startup_ms: u64::try_from(manifest.timeouts.startup.as_millis()).unwrap_or(u64::MAX),
            }),
            weights: self.weights_place(),
            note: self.text.clone().unwrap_or_default(),
        }
    }
}

/// The variables of the manifest, and what the engine is told by one.
fn env(manifest: &Manifest) -> BTreeMap<String, String> {
    let own = manifest.env.iter().map(|(name, value)| (name.as_str().to_owned(), value.clone()));
    let libraries = manifest.logs.libraries;
    let told = (libraries != LogLevel::default()).then(|| (LOG_LEVEL.to_owned(), libraries.as_str().to_owned()));
    let startup = (manifest.runtime.engine == Engine::OpenAi)
        .then(|| (STARTUP.to_owned(), manifest.timeouts.startup.as_secs_f64().to_string()));
    own.chain(told).chain(startup).collect()
}

/// Message about a resource that a manifest requests and the operator has not granted; `list`: key of the grants.
fn not_granted(asked: &str, list: &str) -> String {
    format!(
        "`{asked}` is not allowed for this model: the operator has to list it under `{list}` of the node's configuration"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_config::node::Capacity;
    use omni_node_protocol::exit::ExitCause;
    use omni_node_protocol::instance::{FromWorker, Welcome};
    use omni_node_protocol::launcher::{GpuMode, GpuSpec, ToLauncher};

    fn content(manifest: String) -> Content {
        let digest = SnapshotDigest::parse(&"0".repeat(64)).unwrap();
        Content::parse(&name(), digest, Some(manifest), &NodeConfig::default()).unwrap()
    }

    /// As long as one can be.
    fn name() -> ModelName {
        vec!["x".repeat(49); 4].join("/").parse().unwrap()
    }

    #[test]
    fn the_request_for_an_environment_has_the_manifests_wishes() {
        let request = |manifest: &str| content(manifest.to_owned()).environment_request(&name());
        assert!(request("[python]\nrequire-hashes = true\n").require_hashes);
        assert!(!request("").require_hashes);
        let own = request("[runtime]\npython = \"3.12\"\ninterpreter = \"/opt/venv/bin/python\"\n");
        assert_eq!((own.python.as_str(), own.interpreter), ("3.12", Some("/opt/venv/bin/python".into())));
    }

    #[test]
    fn content_that_cannot_start_an_instance_is_refused() {
        let json = format!("'[{}1]'", "\"a\",".repeat(7_500));
        let values = format!("[env]\nA = {json}\nB = {json}\n");
        assert!(values.len() < 64 << 10, "the file is not too long");
        let variables: String = (0..3_000).map(|number| format!("VARIABLE_{number:04} = ''\n")).collect();
        for manifest in [values, format!("[env]\n{variables}")] {
            let why = content(manifest).sendable().unwrap_err();
            assert!(why.contains("[env] are too large") && why.contains(&MOST_SAID.to_string()), "{why}");
        }
        content("[env]\nA = '1'\n".to_owned()).sendable().unwrap();
    }

    #[test]
    fn more_processes_than_the_node_gives_an_instance_are_refused_by_name() {
        let node = |machine| NodeConfig { capacity: Capacity::default().on_machine(machine), ..NodeConfig::default() };
        let digest = SnapshotDigest::parse(&"0".repeat(64)).unwrap();
        let parse =
            |text: &str, machine| Content::parse(&name(), digest.clone(), Some(text.to_owned()), &node(machine));
        let why = parse("[resources]\npids = 8193\n", 32_768).unwrap_err();
        for said in ["`pids` in [resources] is 8193", "8192 at most", "`processes-per-instance` in [capacity]"] {
            assert!(why.contains(said), "{why}");
        }
        parse("[resources]\npids = 8192\n", 32_768).unwrap();
        parse("", 16).unwrap();
        parse("[resources]\npids = 32768\n", 1 << 22).unwrap();
    }

    #[test]
    fn accepted_content_fits_into_every_message() {
        let manifest = |quotes: usize| {
            let preload = vec!["'a'"; 256].join(", ");
            format!("[python]\npreload = [{preload}]\n[env]\nA = '{}'\n", "\"".repeat(quotes))
        };
        let is_sendable = |quotes: &usize| content(manifest(*quotes)).sendable().is_ok();
        let most = (1..40_000).step_by(100).take_while(is_sendable).last().unwrap();
        let content = content(manifest(most));
        let instance = InstanceId::parse("0123456789ab").unwrap();
        let environment = EnvironmentKey::parse(&"0".repeat(64)).unwrap();
        let uuid = "GPU-00000000-0000-0000-0000-000000000000".to_owned();
        let gpu = Some(GpuSpec { uuid, minor: u32::MAX, limit_bytes: u64::MAX, mode: GpuMode::Unified });
        let spec = content.start_spec(&name(), instance.clone(), environment, &NodeConfig::default());
        assert!(spec.zygote.is_some());
        let spec = StartSpec { gpu: gpu.clone(), ..spec };
        let welcome = FromWorker::Welcome(Welcome {
            protocol: u32::MAX,
            instance,
            model: name().as_str().to_owned(),
            snapshot: content.snapshot.clone(),
            note: spec.note.clone(),
            engine_pid: Some(i32::MAX),
            started_unix_ms: u64::MAX,
            ready: None,
            // The longest report of a sandbox that could not be made.
            exited: Some(ExitCause::StartFailed { message: "x".repeat(8 * 1024) }),
            ending: true,
            gpu,
        });
        let start = serde_json::to_vec(&ToLauncher::Start(Box::new(spec))).unwrap().len();
        let welcome = serde_json::to_vec(&welcome).unwrap().len();
        assert!(start > MOST_SAID / 2, "a test of something large");
        assert!(start <= MAX_PACKET && welcome <= MAX_PACKET, "{start}, {welcome}");
    }
}
