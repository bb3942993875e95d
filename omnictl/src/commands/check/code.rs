//! Checks of the model's code: Python can parse it, the entrypoint exists, and its annotation is that of the model's kind.
//!
//! Python itself compiles the module, without executing any of it, and looks for the function. Invariant: the
//! interpreter starts isolated (`-I -S`), and neither the environment nor the current directory can run code.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use omni_config::Manifest;
use omni_config::manifest::Engine;
use serde::Deserialize;

use super::Finding;

/// Reads the module named by its first argument, prints what is wrong as JSON, or null.
const SCRIPT: &str = include_str!("entrypoint.py");
/// Where the node looks for a model.
const MODEL: &str = "model.py";

/// Result of the script.
#[derive(Deserialize)]
struct Found {
    line: Option<usize>,
    message: String,
    hint: String,
    #[serde(default)]
    is_note: bool,
}

/// A finding, or a note.
pub(super) fn check(dir: &Path, manifest: &Manifest) -> (Option<Finding>, Option<String>) {
    match manifest.runtime.engine {
        Engine::Python => {}
        Engine::OpenAi | Engine::Native => return (None, None), // there is no code of a model
    }
    match inspected(dir, manifest) {
        Err(finding) => (Some(finding), None),
        Ok((_, None)) => (None, None),
        Ok((module, Some(Found { line, message, hint, is_note: true }))) => {
            let line = line.map(|line| format!(":{line}")).unwrap_or_default();
            (None, Some(format!("{}{line}: {message}; {hint}", module.display())))
        }
        Ok((module, Some(Found { line, message, hint, .. }))) => {
            (Some(Finding::at(&module, line, message, hint)), None)
        }
    }
}

/// The module of the entrypoint, and the result of the script.
fn inspected(dir: &Path, manifest: &Manifest) -> Result<(PathBuf, Option<Found>), Finding> {
    let model = dir.join(MODEL);
    if !model.is_file() {
        let hint = format!("a directory is a model by its {MODEL}: `omnictl init` writes one to begin with");
        return Err(Finding::at(&model, None, "there is no such file", hint));
    }
    let entrypoint = &manifest.model.entrypoint;
    let Some(module) = module_file(dir, entrypoint.module()) else {
        let path = dir.join(format!("{}.py", entrypoint.module().replace('.', "/")));
        return Err(Finding::at(&path, None, "there is no such file", "correct `model.entrypoint` in omni.toml"));
    };
    let inspected = interpreters(manifest).iter().find_map(|interpreter| inspect(interpreter, &module, manifest));
    match inspected {
        Some(found) => Ok((module, found)),
        None => Err(Finding::at(&module, None, "not looked at: there is no Python here", "install python3")),
    }
}

/// The file of a module below the model's directory.
fn module_file(dir: &Path, module: &str) -> Option<PathBuf> {
    let stem = dir.join(module.replace('.', "/"));
    [stem.with_extension("py"), stem.join("__init__.py")].into_iter().find(|path| path.is_file())
}

/// The interpreters to ask, the one nearest to the model's own first.
fn interpreters(manifest: &Manifest) -> Vec<PathBuf> {
    let named = manifest.runtime.interpreter.clone();
    let versioned = PathBuf::from(format!("python{}", manifest.runtime.python));
    named.into_iter().chain([versioned, PathBuf::from("python3")]).collect()
}

/// Runs the script in this interpreter; the finding, if there is one, or `None` if the interpreter does not work.
fn inspect(interpreter: &Path, module: &Path, manifest: &Manifest) -> Option<Option<Found>> {
    let arguments = [OsStr::new("-I"), OsStr::new("-S"), OsStr::new("-c"), OsStr::new(SCRIPT)];
    let output = Command::new(interpreter)
        .args(arguments)
        .arg(module)
        .arg(manifest.model.entrypoint.function())
        .arg(manifest.batching.max.to_string())
        .arg(manifest.model.kind.name())
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    output.status.success().then(|| serde_json::from_slice(&output.stdout).ok()).flatten()
}
