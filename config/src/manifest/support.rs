//! Checks beyond single keys: keys that contradict each other, and features that this version lacks.
//!
//! Called by [`super::Manifest::parse`] once all keys are read. A feature that arrives deletes its line here.
//!
//! Invariant: nothing a manifest asks for is silently ignored.

use super::{Access, Capability, Chat, Cost, Engine, Entrypoint, GpuMode, Kind, Manifest, Render, Weights, ZygoteUse};
use crate::source::Source;

/// A value that is refused although it is well formed.
pub(super) struct Refusal {
    pub(super) section: &'static str,
    pub(super) key: &'static str,
    /// Why, and what to write instead.
    pub(super) reason: String,
}

impl Refusal {
    fn of(section: &'static str, key: &'static str, reason: impl Into<String>) -> Self {
        Self { section, key, reason: reason.into() }
    }
}

/// Keys that contradict each other. Only for a manifest without other problems: the default that stands for a
/// wrong value contradicts what its author did not write.
pub(super) fn contradictions(manifest: &Manifest) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let Manifest { model, runtime, python, generation, chat, batching, weights, resources, scaling, .. } = manifest;
    if model.kind != Kind::TextGeneration {
        let reason = "only kind = \"text-generation\" in [model] has it: remove it";
        let default = Chat::default();
        let set = [
            ("generation", "honours", !generation.honours.is_empty()),
            ("chat", "render", chat.render != default.render),
            ("chat", "tool-parser", chat.tool_parser != default.tool_parser),
            ("chat", "reasoning-parser", chat.reasoning_parser != default.reasoning_parser),
        ];
        let set = set.into_iter().filter(|(_, _, set)| *set);
        refusals.extend(set.map(|(section, key, _)| Refusal::of(section, key, reason)));
    }
    if batching.max == 1 && (batching.isolate || batching.cost != Cost::default()) {
        let reason = "batches of one request are not divided and have no size: set `batching.max`, or remove it";
        let key = if batching.isolate { "isolate" } else { "cost" };
        refusals.push(Refusal::of("batching", key, reason));
    }
    if batching.max > 1 && batching.cost == Cost::Requests && scaling.concurrency > 1 {
        let reason = "batches of `batching.max` requests are handled one after the other: remove it";
        refusals.push(Refusal::of("scaling", "concurrency", reason));
    }
    match runtime.engine {
        Engine::Python => {}
        Engine::OpenAi => refusals.extend(of_server(manifest)),
        Engine::Native => refusals.extend(of_native(manifest)),
    }
    if runtime.engine != Engine::OpenAi && !runtime.command.is_empty() {
        let reason = "only engine = \"openai\" is started by a command: remove it";
        refusals.push(Refusal::of("runtime", "command", reason));
    }
    refusals.extend(of_weights(weights));
    if resources.gpu_mode == GpuMode::Sleep && runtime.engine != Engine::OpenAi {
        let reason = "only a server of engine = \"openai\" sleeps: remove it";
        refusals.push(Refusal::of("resources", "gpu-mode", reason));
    } else if resources.gpu_mode != GpuMode::Unified && resources.gpu_memory.bytes() == 0 {
        let reason = "the model has no GPU: say how much of one it needs as `resources.gpu-memory`, or remove it";
        refusals.push(Refusal::of("resources", "gpu-mode", reason));
    }
    if resources.gpu_memory.bytes() > 0 {
        let reason = "a model with a GPU has no zygote: remove this, or `resources.gpu-memory`";
        let asked = [("zygote", python.zygote == ZygoteUse::On), ("preload", !python.preload.is_empty())];
        let asked = asked.into_iter().filter(|(_, asked)| *asked);
        refusals.extend(asked.map(|(key, _)| Refusal::of("python", key, reason)));
    }
    if python.require_hashes && runtime.interpreter.is_some() {
        let reason =
            "the environment of `runtime.interpreter` is there already, so no hash is looked at: remove one of the two";
        refusals.push(Refusal::of("python", "require-hashes", reason));
    }
    if scaling.min_instances > scaling.max_instances {
        let most = scaling.max_instances;
        let reason = format!("it must not be above `scaling.max-instances`, which is {most}");
        refusals.push(Refusal::of("scaling", "min-instances", reason));
    }
    refusals
}

/// Refusals of those values that are wrong: each has its section and key, and the reason.
fn refusals_of<const N: usize>(values: [(bool, (&'static str, &'static str), &'static str); N]) -> Vec<Refusal> {
    let refused = values.into_iter().filter(|(wrong, _, _)| *wrong);
    refused.map(|(_, (section, key), reason)| Refusal::of(section, key, reason)).collect()
}

/// Contradictions of a model that is a server with the OpenAI API.
fn of_server(manifest: &Manifest) -> Vec<Refusal> {
    let Manifest { model, runtime, python, generation, batching, weights, network, .. } = manifest;
    let has = |placeholder: &str| runtime.command.iter().any(|argument| argument.contains(placeholder));
    let (socket, port) = (has("{socket}"), has("{port}"));
    let shared = port && network.access == Access::Host;
    let answers = matches!(model.kind, Kind::TextGeneration | Kind::Embeddings | Kind::Rerank);
    let by_server = "a server has no modules and no functions of Python: remove it";
    let refused = [
        (
            !answers,
            ("model", "kind"),
            "engine = \"openai\" in [runtime] serves \"text-generation\", \"embeddings\" and \"rerank\": write one of them",
        ),
        (model.entrypoint != Entrypoint::default(), ("model", "entrypoint"), by_server),
        (
            generation.honours.contains(&Capability::LiteralRanges),
            ("generation", "honours"),
            "the OpenAI API has no place for \"literal-ranges\": remove it",
        ),
        (!python.preload.is_empty(), ("python", "preload"), by_server),
        (python.zygote == ZygoteUse::On, ("python", "zygote"), by_server),
        (
            batching.max > 1,
            ("batching", "max"),
            "a server batches by itself: say how many requests it gets at a time as `scaling.concurrency`",
        ),
        (
            socket == port,
            ("runtime", "command"),
            "engine = \"openai\" needs the command of the server, and in it either `{socket}`, the path of a socket that it \
             listens on, or `{port}`",
        ),
        (
            shared,
            ("runtime", "command"),
            "with `network.access = \"host\"` a port would be open to the whole node: let the server listen on `{socket}`",
        ),
        (
            has("{weights_dir}") && weights.source.is_none(),
            ("runtime", "command"),
            "`{weights_dir}` needs a `weights.source`",
        ),
    ];
    refusals_of(refused)
}

/// Contradictions of a model that the native engine runs.
fn of_native(manifest: &Manifest) -> Vec<Refusal> {
    let Manifest { model, runtime, python, generation, chat, batching, resources, .. } = manifest;
    let no_code = "the native engine runs no Python: remove it";
    let refused = [
        (
            !matches!(model.kind, Kind::TextGeneration | Kind::Embeddings),
            ("model", "kind"),
            "engine = \"native\" in [runtime] serves \"text-generation\" and \"embeddings\": write one of them",
        ),
        (model.entrypoint != Entrypoint::default(), ("model", "entrypoint"), no_code),
        (runtime.interpreter.is_some(), ("runtime", "interpreter"), no_code),
        (!python.preload.is_empty(), ("python", "preload"), no_code),
        (python.zygote == ZygoteUse::On, ("python", "zygote"), no_code),
        (
            !generation.honours.is_empty(),
            ("generation", "honours"),
            "what the native engine honours is known: remove it",
        ),
        (
            chat.render != Render::Node,
            ("chat", "render"),
            "the native engine takes prompts, so the node renders conversations: remove it",
        ),
        (
            batching.max > 1,
            ("batching", "max"),
            "the native engine batches by itself: say how many requests it gets at a time as `scaling.concurrency`",
        ),
        (
            resources.gpu_memory.bytes() > 0,
            ("resources", "gpu-memory"),
            "the native engine computes on the processor in this version: remove it",
        ),
    ];
    refusals_of(refused)
}

/// Keys of `[weights]` that contradict each other.
fn of_weights(weights: &Weights) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    if weights.sha256.is_some() && weights.source.is_none() {
        refusals.push(Refusal::of("weights", "sha256", "there is no `weights.source` to verify: remove it"));
    }
    if !weights.files.is_empty() && weights.source.is_none() {
        refusals.push(Refusal::of("weights", "files", "there is no `weights.source` to fetch them from: remove it"));
    }
    if !weights.files.is_empty() && weights.sha256.is_some() {
        let reason = "`weights.sha256` is of a source that is one file, and `weights.files` lists several: remove it";
        refusals.push(Refusal::of("weights", "sha256", reason));
    }
    let mut paths = std::collections::BTreeSet::new();
    if let Some(twice) = weights.files.iter().find(|file| !paths.insert(&file.path)) {
        let reason = format!("`{}` is there twice: remove one", twice.path.escape_debug());
        refusals.push(Refusal::of("weights", "files", reason));
    }
    if weights.sha256.is_some() && matches!(weights.fetched(), Some(Source::Hub { .. })) {
        let reason =
            "a repository has several files: list those with their digests in `weights.files`, and remove this";
        refusals.push(Refusal::of("weights", "sha256", reason));
    }
    refusals
}

/// Features that this version lacks.
pub(super) fn lacking(manifest: &Manifest) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    for (key, is_there) in
        [("sha256", manifest.weights.sha256.is_some()), ("files", !manifest.weights.files.is_empty())]
    {
        if manifest.weights.folder().is_some() && is_there {
            let reason = "the content of a folder is not verified in this version: remove it";
            refusals.push(Refusal::of("weights", key, reason));
        }
    }
    refusals
}
