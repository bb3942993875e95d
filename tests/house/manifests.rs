//! Rules about `Cargo.toml`: which crate may know which, who owns a library, nothing unused, one toolchain.

use crate::rust::lines_with;
use crate::tree::Files;
use std::collections::BTreeMap;
use toml::{Table, Value};

/// A member of the workspace.
pub(crate) struct Crate<'a> {
    /// With a slash at its end.
    pub(crate) dir: &'a str,
    pub(crate) manifest: &'a str,
    pub(crate) sources: Vec<&'a str>,
}

/// Our crates and those of ours that each may know. The privileged side and the side that faces the network share `protocol/*` and
/// the layout of `omni-dir`. `omnictl` shares `omni-control-api`, `omni-snapshot`, with which it copies a directory as the node
/// does, `omni-machine`, the facts of `omnictl doctor`, and the templates and parsers of a model, which `omnictl check` tries.
const DIRECTIONS: &[(&str, &[&str])] = &[
    ("omni-anthropic", &["omni-codec", "omni-config", "omni-generation", "omni-request-error"]),
    ("omni-auth", &["omni-config", "omni-request-error"]),
    ("omni-body", &[]),
    ("omni-capacity", &["omni-config", "omni-machine", "omni-node-protocol", "omni-policy", "omni-task"]),
    ("omni-chat-template", &["omni-generation"]),
    ("omni-codec", &["omni-generation", "omni-request-error"]),
    ("omni-control-api", &[]),
    ("omni-cgroup", &["omni-process"]),
    ("omni-dir", &[]),
    ("omni-config", &[]),
    ("omni-cuda-runtime-double", &[]),
    ("omni-cuda-card", &[]),
    ("omni-cuda-entries", &[]),
    ("omni-cuda-proxy", &["omni-gpu-protocol"]),
    ("omni-cuda", &["omni-cuda-card", "omni-cuda-entries", "omni-gpu-protocol"]),
    ("omni-cuda-sim", &["omni-cuda-card", "omni-cuda-entries"]),
    (
        "omni-gpu",
        &[
            "omni-capacity",
            "omni-config",
            "omni-control-api",
            "omni-log",
            "omni-machine",
            "omni-node-protocol",
            "omni-policy",
            "omni-task",
        ],
    ),
    ("omni-generation", &["omni-config", "omni-request-error"]),
    ("omni-gpu-protocol", &[]),
    ("omni-engine-client", &["omni-body", "omni-engine-protocol", "omni-policy", "omni-request-error"]),
    ("omni-engine-protocol", &[]),
    ("omni-node-protocol", &["omni-engine-protocol"]),
    ("omni-ingress", &["omni-auth", "omni-body", "omni-config", "omni-request-error"]),
    (
        "omni-launcher-client",
        &["omni-config", "omni-engine-protocol", "omni-log", "omni-node-protocol", "omni-packet-socket", "omni-task"],
    ),
    ("omni-log", &[]),
    ("omni-machine", &[]),
    ("omni-meminfo-fs", &[]),
    ("omni-request-error", &[]),
    ("omni-openai", &["omni-codec", "omni-config", "omni-generation", "omni-request-error"]),
    ("omni-packet-socket", &["omni-engine-protocol"]),
    ("omni-page", &["omni-control-api"]),
    ("omni-policy", &[]),
    ("omni-snapshot", &["omni-dir", "omni-node-protocol"]),
    ("omni-process", &[]),
    ("omni-task", &["omni-policy"]),
    // The native form of Workers AI takes the messages and tools of the OpenAI API too.
    (
        "omni-workers-ai",
        &["omni-body", "omni-codec", "omni-config", "omni-generation", "omni-openai", "omni-request-error"],
    ),
    ("omni-structured-output", &["omni-generation"]),
    ("omni-tool-parser", &["omni-generation"]),
    ("omni-store", &["omni-config", "omni-log", "omni-node-protocol"]),
    ("omni-sink", &[]),
    ("omni-traces", &["omni-log", "omni-sink"]),
    ("omni-usage", &["omni-log", "omni-sink"]),
    // Knows no HTTP and no model: the API and the executor call it.
    ("omni-jobs", &[]),
    (
        "omni-jobs-executor",
        &[
            "omni-config",
            "omni-control-api",
            "omni-inference",
            "omni-jobs",
            "omni-log",
            "omni-request-error",
            "omni-supervisor",
            "omni-workers-ai",
        ],
    ),
    (
        "omni-admin",
        &[
            "omni-auth",
            "omni-body",
            "omni-capacity",
            "omni-codec",
            "omni-config",
            "omni-control-api",
            "omni-dir",
            "omni-gpu",
            "omni-inference",
            "omni-ingress",
            "omni-jobs",
            "omni-log",
            "omni-node-protocol",
            "omni-page",
            "omni-policy",
            "omni-request-error",
            "omni-supervisor",
            "omni-takeover",
            "omni-traces",
            "omni-usage",
        ],
    ),
    (
        "omni-inference",
        &[
            "omni-anthropic",
            "omni-auth",
            "omni-body",
            "omni-chat-template",
            "omni-codec",
            "omni-config",
            "omni-control-api",
            "omni-engine-client",
            "omni-engine-protocol",
            "omni-generation",
            "omni-ingress",
            "omni-jobs",
            "omni-launcher-client",
            "omni-log",
            "omni-node-protocol",
            "omni-openai",
            "omni-policy",
            "omni-request-error",
            "omni-structured-output",
            "omni-supervisor",
            "omni-sink",
            "omni-tool-parser",
            "omni-traces",
            "omni-usage",
            "omni-workers-ai",
        ],
    ),
    (
        "omni-takeover",
        &[
            "omni-config",
            "omni-control-api",
            "omni-engine-protocol",
            "omni-ingress",
            "omni-log",
            "omni-node-protocol",
            "omni-packet-socket",
            "omni-supervisor",
        ],
    ),
    (
        "omni-sandbox",
        &[
            "omni-cgroup",
            "omni-dir",
            "omni-engine-protocol",
            "omni-gpu-protocol",
            "omni-log",
            "omni-machine",
            "omni-meminfo-fs",
            "omni-process",
        ],
    ),
    ("omni-worker-spec", &["omni-cgroup", "omni-engine-protocol", "omni-node-protocol", "omni-sandbox"]),
    (
        "omni-environment",
        &[
            "omni-cgroup",
            "omni-config",
            "omni-log",
            "omni-node-protocol",
            "omni-process",
            "omni-sandbox",
            "omni-worker-spec",
        ],
    ),
    (
        "omni-instance",
        &[
            "omni-cgroup",
            "omni-dir",
            "omni-engine-protocol",
            "omni-gpu-protocol",
            "omni-log",
            "omni-meminfo-fs",
            "omni-node-protocol",
            "omni-process",
            "omni-sandbox",
            "omni-worker-spec",
        ],
    ),
    (
        "omni-launcher",
        &[
            "omni-cgroup",
            "omni-config",
            "omni-dir",
            "omni-engine-protocol",
            "omni-environment",
            "omni-gpu-protocol",
            "omni-log",
            "omni-machine",
            "omni-meminfo-fs",
            "omni-node-protocol",
            "omni-process",
            "omni-sandbox",
            "omni-snapshot",
            "omni-weights",
            "omni-worker-spec",
        ],
    ),
    ("omni-weights", &["omni-config", "omni-node-protocol"]),
    // A program of its own, which no privileged one is linked with.
    ("omni-weights-downloader", &["omni-config", "omni-weights"]),
    (
        "omni-worker",
        &[
            "omni-cgroup",
            "omni-config",
            "omni-engine-protocol",
            "omni-gpu-protocol",
            "omni-instance",
            "omni-launcher",
            "omni-log",
            "omni-machine",
            "omni-node-protocol",
            "omni-sandbox",
            "omni-snapshot",
            "omni-worker-spec",
        ],
    ),
    (
        "omni-supervisor",
        &[
            "omni-body",
            "omni-capacity",
            "omni-config",
            "omni-control-api",
            "omni-engine-client",
            "omni-engine-protocol",
            "omni-gpu",
            "omni-gpu",
            "omni-launcher-client",
            "omni-launcher-client",
            "omni-log",
            "omni-node-protocol",
            "omni-packet-socket",
            "omni-policy",
            "omni-request-error",
            "omni-store",
            "omni-task",
        ],
    ),
    (
        "omni-scheduler",
        &[
            "omni-admin",
            "omni-auth",
            "omni-body",
            "omni-capacity",
            "omni-config",
            "omni-control-api",
            "omni-dir",
            "omni-gpu",
            "omni-inference",
            "omni-ingress",
            "omni-jobs-executor",
            "omni-log",
            "omni-machine",
            "omni-policy",
            "omni-store",
            "omni-supervisor",
            "omni-takeover",
            "omni-sink",
            "omni-task",
            "omni-traces",
            "omni-usage",
        ],
    ),
    (
        "omnictl",
        &["omni-chat-template", "omni-config", "omni-control-api", "omni-machine", "omni-snapshot", "omni-tool-parser"],
    ),
    ("omni-tests", &["omni-config", "omni-control-api", "omni-cuda-card", "omni-node-protocol"]),
    (
        "omni-properties",
        &[
            "omni-anthropic",
            "omni-body",
            "omni-chat-template",
            "omni-config",
            "omni-engine-client",
            "omni-engine-protocol",
            "omni-generation",
            "omni-gpu-protocol",
            "omni-inference",
            "omni-ingress",
            "omni-node-protocol",
            "omni-openai",
            "omni-policy",
            "omni-request-error",
            "omni-supervisor",
            "omni-tool-parser",
            "omni-workers-ai",
        ],
    ),
];

/// Libraries that only some crates may use.
const OWNERS: &[(&str, &[&str])] = &[
    (
        "tokio",
        &[
            "omni-admin",
            "omni-body",
            "omni-capacity",
            "omni-engine-client",
            "omni-gpu",
            "omni-inference",
            "omni-ingress",
            "omni-jobs",
            "omni-jobs-executor",
            "omni-launcher-client",
            "omni-packet-socket",
            "omni-scheduler",
            "omni-store",
            "omni-supervisor",
            "omni-takeover",
            "omni-task",
            "omni-weights-downloader",
            "omnictl",
            "omni-tests",
            "omni-properties",
        ],
    ),
    (
        "hyper",
        &[
            "omni-admin",
            "omni-anthropic",
            "omni-auth",
            "omni-codec",
            "omni-inference",
            "omni-ingress",
            "omni-jobs-executor",
            "omni-openai",
            "omni-weights-downloader",
            "omni-workers-ai",
            "omnictl",
            "omni-tests",
            "omni-properties",
        ],
    ),
    (
        "hyper-util",
        &["omni-admin", "omni-ingress", "omni-jobs-executor", "omni-weights-downloader", "omnictl", "omni-tests"],
    ),
    ("http-body-util", &["omni-ingress", "omni-jobs-executor", "omni-weights-downloader", "omnictl", "omni-tests"]),
    ("tokio-rustls", &["omni-ingress", "omni-tests", "omni-weights-downloader"]),
    ("ring", &["omni-weights-downloader"]),
    ("quick-xml", &["omni-weights-downloader"]),
    ("rcgen", &["omni-tests"]),
    // A file system that records what is flushed is a test of omni-jobs.
    ("fuser", &["omni-jobs", "omni-meminfo-fs"]),
    ("cgroups-rs", &["omni-cgroup"]),
    ("zbus", &["omni-cgroup"]),
    ("landlock", &["omni-sandbox"]),
    ("seccompiler", &["omni-sandbox"]),
    (
        "prometheus-client",
        &[
            "omni-admin",
            "omni-auth",
            "omni-body",
            "omni-capacity",
            "omni-gpu",
            "omni-ingress",
            "omni-launcher-client",
            "omni-supervisor",
        ],
    ),
    ("tracing-journald", &["omni-log"]),
    ("tracing-subscriber", &["omni-log"]),
    ("libloading", &["omni-gpu"]),
    ("rusqlite", &["omni-jobs"]),
    ("jsonschema", &["omni-structured-output"]),
    ("minijinja", &["omni-chat-template"]),
    ("minijinja-contrib", &["omni-chat-template"]),
];

/// Folders of `tests/` with tests of whole nodes.
const KINDS: &[&str] = &["functional", "gpu", "resilience", "security"];

impl Crate<'_> {
    fn table(&self) -> Table {
        self.manifest.parse().unwrap_or_else(|error| panic!("{}Cargo.toml: {error}", self.dir))
    }

    pub(crate) fn name(&self) -> String {
        self.table()["package"]["name"].as_str().expect("a name").to_owned()
    }

    /// Every dependency with its value: normal, of tests, of the build.
    pub(crate) fn dependencies(&self) -> Vec<(String, Value)> {
        let table = self.table();
        let sections = ["dependencies", "dev-dependencies", "build-dependencies"];
        let entries = |section: &&str| {
            table.get(*section).and_then(Value::as_table).cloned().into_iter().flatten().collect::<Vec<_>>()
        };
        sections.iter().flat_map(entries).collect()
    }
}

pub(crate) fn directions(krate: &Crate<'_>) -> Vec<String> {
    let name = krate.name();
    let Some((_, allowed)) = DIRECTIONS.iter().find(|(known, _)| *known == name) else {
        return vec![format!("{name}: not in the table of directions")];
    };
    let wrong = |dependency: &str| {
        let ours = DIRECTIONS.iter().any(|(known, _)| *known == dependency);
        let owners = OWNERS.iter().find(|(library, _)| *library == dependency).map(|(_, owners)| *owners);
        (ours && !allowed.contains(&dependency)) || owners.is_some_and(|owners| !owners.contains(&name.as_str()))
    };
    let found = krate.dependencies().into_iter().filter(|(dependency, _)| wrong(dependency));
    found.map(|(dependency, _)| format!("{name} may not depend on {dependency}")).collect()
}

pub(crate) fn used_by_a_member(root: &str, crates: &[Crate<'_>]) -> Vec<String> {
    let root: Table = root.parse().expect("the root's Cargo.toml");
    let used: Vec<String> = crates.iter().flat_map(|krate| krate.dependencies()).map(|(name, _)| name).collect();
    let declared = root["workspace"]["dependencies"].as_table().expect("dependencies of the workspace");
    declared
        .keys()
        .filter(|name| !used.contains(name))
        .map(|name| format!("Cargo.toml: no member uses {name}"))
        .collect()
}

/// A member takes versions from the workspace: one version, one reason, one place.
pub(crate) fn inherited(krate: &Crate<'_>) -> Vec<String> {
    let own = |value: &Value| value.get("workspace").and_then(Value::as_bool) != Some(true);
    let found = krate.dependencies().into_iter().filter(|(_, value)| own(value));
    found.map(|(name, _)| format!("{}Cargo.toml: {name} is not taken from the workspace", krate.dir)).collect()
}

/// A dependency that no source of its member names is not needed.
pub(crate) fn mentioned(krate: &Crate<'_>) -> Vec<String> {
    let absent = |name: &str| {
        let ident = name.replace('-', "_");
        krate.sources.iter().all(|source| lines_with(source, &ident).is_empty())
    };
    let found = krate.dependencies().into_iter().filter(|(name, _)| absent(name));
    found.map(|(name, _)| format!("{}Cargo.toml: {name} is not used", krate.dir)).collect()
}

/// Files of tests of whole nodes that no `[[test]]` of `tests/Cargo.toml` names: they would never be run.
pub(crate) fn unbuilt_tests(files: &Files) -> Vec<String> {
    let manifest: Table = files["tests/Cargo.toml"].parse().expect("tests/Cargo.toml");
    let entries = manifest["test"].as_array().expect("entries");
    let named: Vec<&str> = entries.iter().filter_map(|entry| entry["path"].as_str()).collect();
    let is_test = |path: &str| match path.split('/').collect::<Vec<_>>()[..] {
        [kind, file] => KINDS.contains(&kind) && file.ends_with(".rs"),
        [kind, _, file] => KINDS.contains(&kind) && file == "main.rs",
        _ => false,
    };
    let found = files.keys().filter_map(|path| path.strip_prefix("tests/")).filter(|path| is_test(path));
    found.filter(|path| !named.contains(path)).map(|path| format!("tests/{path}: not in tests/Cargo.toml")).collect()
}

/// Versions of what is fuzzed that are not those of what is built and tested: `fuzz/Cargo.lock` is a copy, with what only the
/// fuzzer needs beside it.
pub(crate) fn same_versions(built: &str, fuzzed: &str) -> Vec<String> {
    let packages = |lock: &str| -> BTreeMap<String, Vec<String>> {
        let lock: Table = lock.parse().expect("Cargo.lock");
        let mut versions = BTreeMap::<String, Vec<String>>::new();
        for package in lock["package"].as_array().expect("packages") {
            let field = |name: &str| package[name].as_str().expect("a text").to_owned();
            versions.entry(field("name")).or_default().push(field("version"));
        }
        versions
    };
    let (built, fuzzed) = (packages(built), packages(fuzzed));
    let shared = fuzzed.iter().filter_map(|(name, versions)| Some((name, versions, built.get(name)?)));
    let other = shared.filter(|(_, versions, built)| !versions.iter().all(|version| built.contains(version)));
    other.map(|(name, versions, _)| format!("fuzz/Cargo.lock: {name} is {versions:?}, and not what is built")).collect()
}

/// An exact release, which is also the least that the crates claim to need.
pub(crate) fn toolchain(pin: &str, root: &str) -> Vec<String> {
    let (pin, root): (Table, Table) = (pin.parse().expect("rust-toolchain.toml"), root.parse().expect("Cargo.toml"));
    let channel = pin["toolchain"]["channel"].as_str().unwrap_or("");
    let least = root["workspace"]["package"]["rust-version"].as_str().unwrap_or("");
    let exact = channel.split('.').count() == 3 && channel.split('.').all(|part| part.parse::<u32>().is_ok());
    let agrees = channel.strip_prefix(least).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    if exact && agrees {
        Vec::new()
    } else {
        vec![format!("toolchain {channel:?} is not one exact release of rust-version {least:?}")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(manifest: &'a str, source: &'a str) -> Crate<'a> {
        Crate { dir: "x/", manifest, sources: vec![source] }
    }

    #[test]
    fn a_wrong_direction_is_found() {
        let bad = [
            ("omni-scheduler", "[dependencies]\nomni-worker.workspace = true"),
            ("omnictl", "[dependencies]\nomni-node-protocol.workspace = true"),
            ("omni-worker", "[dependencies]\ntokio.workspace = true"),
            ("omni-worker", "[dev-dependencies]\nhyper.workspace = true"),
            ("omni-config", "[build-dependencies]\nfuser = { workspace = true }"),
            ("omni-new", ""),
        ];
        for (name, dependencies) in bad {
            let manifest = format!("[package]\nname = \"{name}\"\n{dependencies}");
            assert_eq!(directions(&of(&manifest, "")).len(), 1, "{manifest}");
        }
        let good = "[package]\nname = \"omni-takeover\"\n[dependencies]\nomni-node-protocol.workspace = true\ntokio.workspace = true\nserde.workspace = true";
        assert_eq!(directions(&of(good, "")), Vec::<String>::new());
    }

    #[test]
    fn unused_and_foreign_versions_are_found() {
        let root = "[workspace.dependencies]\nserde = \"1\"\nlibc = \"0.2\"";
        let member = "[package]\nname = \"x\"\n[dependencies]\nserde = \"1\"";
        assert_eq!(used_by_a_member(root, &[of(member, "")]), ["Cargo.toml: no member uses libc"]);
        assert_eq!(inherited(&of(member, "")).len(), 1);
        assert_eq!(inherited(&of("[dependencies]\nserde.workspace = true", "")), Vec::<String>::new());
        assert_eq!(mentioned(&of(member, "// serde")).len(), 1);
        assert_eq!(mentioned(&of(member, "use serde::Serialize;")), Vec::<String>::new());
    }

    #[test]
    fn a_version_that_is_fuzzed_alone_is_found() {
        let lock = |name: &str, version: &str| format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n");
        let built = lock("hyper", "1.2.0") + &lock("nix", "0.25.0") + &lock("nix", "0.31.0");
        for (fuzzed, wrong) in [("1.2.0", 0), ("1.2.1", 1)] {
            let fuzzed = lock("hyper", fuzzed) + &lock("nix", "0.31.0") + &lock("libfuzzer-sys", "0.4.0");
            assert_eq!(same_versions(&built, &fuzzed).len(), wrong);
        }
    }

    #[test]
    fn a_test_that_is_not_built_is_found() {
        let manifest = "[[test]]\nname = \"a\"\npath = \"gpu/a.rs\"\n[[test]]\nname = \"b\"\npath = \"gpu/b/main.rs\"";
        let paths =
            ["tests/gpu/a.rs", "tests/gpu/b/main.rs", "tests/gpu/b/part.rs", "tests/gpu/c.rs", "tests/src/d.rs"];
        let mut files: Files = paths.iter().map(|path| ((*path).to_owned(), String::new())).collect();
        files.insert("tests/Cargo.toml".to_owned(), manifest.to_owned());
        assert_eq!(unbuilt_tests(&files), ["tests/gpu/c.rs: not in tests/Cargo.toml"]);
    }

    #[test]
    fn a_loose_toolchain_is_found() {
        let root = "[workspace.package]\nrust-version = \"1.95\"";
        let pin = |channel: &str| format!("[toolchain]\nchannel = \"{channel}\"");
        assert_eq!(toolchain(&pin("1.95.0"), root), Vec::<String>::new());
        for bad in ["stable", "1.95", "1.94.0", "1.950.0", "nightly-2026-01-01"] {
            assert_eq!(toolchain(&pin(bad), root).len(), 1, "{bad}");
        }
    }
}
