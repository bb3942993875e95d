//! `omni.toml`: does the node understand it?

use std::path::Path;

use omni_config::manifest::{Engine, TooLarge};
use omni_config::{Manifest, Problem};

use super::{Finding, text_of};

/// The longest manifest a node reads.
const LIMIT: u64 = 64 << 10;

/// The manifest (the default if it is missing or wrong), and its problems.
pub(super) fn check(dir: &Path) -> (Manifest, Vec<Finding>) {
    let path = dir.join("omni.toml");
    let text = match text_of(&path, LIMIT) {
        Ok(text) => text.unwrap_or_default(),
        Err(finding) => return (Manifest::default(), vec![finding]),
    };
    match Manifest::parse(&text) {
        Ok(manifest) => {
            let large = manifest.check_sendable(&text).err();
            let large = large.map(|error| Finding::at(&path, None, error.to_string(), TooLarge::HINT));
            (manifest, large.into_iter().collect())
        }
        Err(error) => {
            let findings = error.0.listed().iter().map(|problem| finding(&path, problem)).collect();
            let mut manifest = Manifest::default();
            manifest.runtime.engine = engine(&text).unwrap_or(manifest.runtime.engine);
            (manifest, findings)
        }
    }
}

/// The engine that a wrong manifest names, so that only what its engine needs is missed.
fn engine(text: &str) -> Option<Engine> {
    let table: toml::Table = text.parse().ok()?;
    let told = table.get("runtime")?.get("engine")?.as_str()?;
    Engine::ALL.iter().find(|(name, _)| *name == told).map(|(_, engine)| *engine)
}

/// A problem with its line in the place and its hint behind.
fn finding(path: &Path, problem: &Problem) -> Finding {
    let (message, hint) = match problem {
        Problem::TooLong { .. } => (problem.to_string(), "make it shorter".to_owned()),
        Problem::Syntax { message, .. } => (format!("not valid TOML: {message}"), "correct the line".to_owned()),
        Problem::UnknownKey { key, hint, .. } => (format!("unknown key `{key}`"), hint.clone()),
        Problem::Value { key, expected, found, hint, .. } => {
            let hint = hint.clone().unwrap_or_else(|| format!("write {expected}"));
            (format!("`{key}`: expected {expected}, found {found}"), hint)
        }
        Problem::Refused { key, reason, .. } => (format!("`{key}` is refused"), reason.clone()),
    };
    Finding::at(path, problem.line(), message, hint)
}
