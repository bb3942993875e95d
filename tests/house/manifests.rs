//! Rules about `Cargo.toml`: which crate may know which, who owns a library, nothing unused, one toolchain.

use crate::crates::{DIRECTIONS, OWNERS};
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
