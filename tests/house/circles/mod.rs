//! Circles of modules and of crates.
//!
//! A module stands for itself and everything below it. Between the children of one module the mentions must form no circle,
//! at every level of every crate; a parent and its own children may mention each other. A name that a module passes on with
//! `use` counts as a mention of the module that it comes from. Test code is left out, and so are mentions in macros that
//! other modules call by text order alone.

mod graph;
mod modules;
#[cfg(test)]
mod tests;

use crate::manifests::Crate;
use crate::tree::Files;
use graph::circles;
use modules::{Module, Path, read};
use std::collections::{BTreeMap, BTreeSet};

/// Crates that have circles still, with the reason.
pub(crate) const EXCEPTIONS: &[(&str, &str)] =
    &[("omni-cuda-sim", "a double of one C library, whose objects refer to each other as the driver's do")];

/// The circles of one crate, as `parent: a -> b -> a`; `sources` by their path below `src/`.
pub(crate) fn of_modules(sources: &BTreeMap<&str, &str>) -> Vec<String> {
    let roots = sources.keys().filter(|path| is_root(path));
    roots.flat_map(|root| of_program(root, sources)).collect()
}

/// Circles of every crate that is not excepted, and exceptions that are needed no more.
pub(crate) fn in_workspace(crates: &[Crate<'_>], files: &Files, exceptions: &[(&str, &str)]) -> Vec<String> {
    let mut violations = of_crates(crates);
    for krate in crates {
        let name = krate.name();
        let circles = of_modules(&sources(krate, crates, files));
        match exceptions.iter().any(|(excepted, _)| *excepted == name) {
            true if circles.is_empty() => violations.push(format!("{name}: has no circle; take it off the list")),
            true => {}
            false => violations.extend(circles.iter().map(|circle| format!("{name}: {circle}"))),
        }
    }
    let unknown = exceptions.iter().filter(|(name, _)| crates.iter().all(|krate| krate.name() != *name));
    violations.extend(unknown.map(|(name, _)| format!("{name}: is no crate; take it off the list")));
    violations
}

/// Circles of the workspace's crates, over all kinds of dependencies.
fn of_crates(crates: &[Crate<'_>]) -> Vec<String> {
    let names: BTreeSet<String> = crates.iter().map(Crate::name).collect();
    let mut edges = BTreeMap::<String, BTreeSet<String>>::new();
    for krate in crates {
        let of_ours = krate.dependencies().into_iter().map(|(name, _)| name).filter(|name| names.contains(name));
        edges.entry(krate.name()).or_default().extend(of_ours);
    }
    circles(&edges).into_iter().map(|circle| format!("crates: {circle}")).collect()
}

/// The sources of a crate's own product by their path below `src/`.
fn sources<'a>(krate: &Crate<'_>, crates: &[Crate<'_>], files: &'a Files) -> BTreeMap<&'a str, &'a str> {
    let below = format!("{}src/", krate.dir);
    let is_foreign = |file: &str| {
        crates.iter().any(|other| {
            other.dir.len() > krate.dir.len() && other.dir.starts_with(krate.dir) && file.starts_with(other.dir)
        })
    };
    files
        .iter()
        .filter(|(file, _)| file.ends_with(".rs") && !is_foreign(file))
        .filter_map(|(file, text)| Some((file.strip_prefix(&below)?, text.as_str())))
        .filter(|(file, _)| !is_test_module(file))
        .collect()
}

fn is_test_module(file: &str) -> bool {
    file == "tests.rs"
        || file.ends_with("/tests.rs")
        || file.ends_with("_tests.rs")
        || file.split('/').any(|part| part == "tests")
}

/// Returns true if a file is the root of a library or of a program.
fn is_root(file: &str) -> bool {
    matches!(file, "lib.rs" | "main.rs")
        || file.strip_prefix("bin/").is_some_and(|name| !name.contains('/') || name.ends_with("/main.rs"))
}

fn of_program(root: &str, sources: &BTreeMap<&str, &str>) -> Vec<String> {
    let mut modules = BTreeMap::new();
    let folder = match root.rsplit_once('/') {
        Some((folder, "main.rs")) => format!("{folder}/"),
        Some((folder, _)) => format!("{folder}/"),
        None => String::new(),
    };
    read(root, &folder, &Path::new(), sources, &mut modules);
    // Parent to edges between its children.
    let mut levels = BTreeMap::<Path, BTreeMap<String, BTreeSet<String>>>::new();
    for (path, module) in &modules {
        for mention in &module.mentions {
            for target in resolve(&modules, path, mention) {
                let shared = path.iter().zip(&target).take_while(|(one, other)| one == other).count();
                if let (Some(from), Some(to)) = (path.get(shared), target.get(shared)) {
                    let level = levels.entry(path[..shared].to_vec()).or_default();
                    level.entry(from.clone()).or_default().insert(to.clone());
                }
            }
        }
    }
    let named = |parent: &Path| if parent.is_empty() { root.to_owned() } else { parent.join("::") };
    let found =
        levels.iter().flat_map(|(parent, edges)| circles(edges).into_iter().map(move |circle| (parent, circle)));
    found.map(|(parent, circle)| format!("{}: {circle}", named(parent))).collect()
}

/// The modules that a path leads to from the module `from`: the last one, and those that pass the name on.
fn resolve(modules: &BTreeMap<Path, Module>, from: &Path, mention: &[String]) -> Vec<Path> {
    let mut passed = Vec::new();
    follow(modules, from, mention, &mut passed, 0);
    passed
}

/// How often a name is followed through `use`: more than any chain is long, so that a circle of names ends.
const LONGEST_CHAIN: usize = 16;

fn follow(modules: &BTreeMap<Path, Module>, from: &Path, mention: &[String], passed: &mut Vec<Path>, depth: usize) {
    let Some(first) = mention.first().filter(|_| depth < LONGEST_CHAIN) else { return };
    let mut at = from.clone();
    let mut rest = mention;
    match first.as_str() {
        "crate" => {
            at.clear();
            rest = &rest[1..];
        }
        "self" => rest = &rest[1..],
        "super" => {
            while let Some(("super", more)) = rest.split_first().map(|(first, more)| (first.as_str(), more)) {
                at.pop();
                rest = more;
            }
        }
        name => {
            let Some(module) = modules.get(from) else { return };
            if !module.children.contains(name) && !module.imports.contains_key(name) {
                return; // another crate's, or an item of this module
            }
        }
    }
    while let Some((name, more)) = rest.split_first() {
        let Some(module) = modules.get(&at) else { break };
        if module.children.contains(name) {
            at.push(name.clone());
            rest = more;
        } else if let Some(import) = module.imports.get(name).filter(|import| import.as_slice() != [name.clone()]) {
            passed.push(at.clone());
            return follow(modules, &at, &[import.as_slice(), more].concat(), passed, depth + 1);
        } else {
            break;
        }
    }
    passed.push(at);
}
