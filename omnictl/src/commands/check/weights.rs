//! `source` in `[weights]` of `omni.toml`: may the model have that folder of the node or that source, and is the folder there?
//! And weights beside `omni.toml`, where the native engine is to find them there.
//!
//! Only a node knows. Without one the folder is looked for here, and one that is not here is no finding: it is where the
//! model will run that it is needed.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use omni_config::Manifest;
use omni_config::manifest::Engine;
use omni_config::node::Weights;

use super::{Finding, line_of};
use crate::output::note;

/// Endings of files that the native engine reads.
const FORMATS: [&str; 2] = ["gguf", "safetensors"];

/// `listed`: the folders of the node that takes the model, on this machine.
pub(super) fn check(dir: &Path, manifest: &Manifest, listed: Option<&Weights>) -> Option<Finding> {
    if let (Some(source), Some(listed)) = (manifest.weights.fetched(), listed) {
        let path = dir.join("omni.toml");
        return listed.rule(&source).is_none().then(|| {
            Finding::at(
                &path,
                line_of(&path, "[weights]", "source"),
                format!("`weights.source`: weights of this node may not be fetched from {source}"),
                "the operator has to list it, or a beginning of it, under [weights.sources] of the node's configuration",
            )
        });
    }
    let Some(folder) = manifest.weights.folder() else { return of_native(dir, manifest) };
    let missing = match fs::metadata(folder) {
        Ok(found) => !found.is_dir(),
        // Other errors are this user's, and not the node's.
        Err(error) => [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()),
    };
    let path = dir.join("omni.toml");
    let finding =
        |message: String, hint: &str| Some(Finding::at(&path, line_of(&path, "[weights]", "source"), message, hint));
    let shown = folder.display();
    match listed {
        Some(listed) if listed.granted(folder).is_none() => finding(
            format!("`weights.source`: {shown} is in no folder that models of this node may have their weights in"),
            "the operator has to list one under `folders` in [weights] of the node's configuration",
        ),
        Some(_) if missing => finding(
            format!("`weights.source`: there is no folder {shown} on this node"),
            "put the files there, or correct the path",
        ),
        None if missing => {
            note(format_args!(
                "note: there is no folder {shown} on this machine; a node needs one that its operator has listed"
            ));
            None
        }
        Some(_) | None => None,
    }
}

/// A model of the native engine without a source, whose directory has no weights either.
fn of_native(dir: &Path, manifest: &Manifest) -> Option<Finding> {
    if manifest.runtime.engine != Engine::Native || manifest.weights.source.is_some() {
        return None;
    }
    let is_format = |path: &Path| FORMATS.iter().any(|ending| path.extension().is_some_and(|found| found == *ending));
    let is_there = fs::read_dir(dir)
        .is_ok_and(|mut entries| entries.any(|entry| entry.is_ok_and(|entry| is_format(&entry.path()))));
    let hint = "put them beside omni.toml, or name them as `source` in [weights]";
    (!is_there).then(|| Finding::at(dir, None, "there are no weights: neither safetensors nor a GGUF file", hint))
}
