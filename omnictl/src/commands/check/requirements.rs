//! `requirements.txt` and `overrides.txt`: can the node read them, and is there a hash where one is required?
//!
//! The node's build checks that an index has the packages, and that hashes match.

use std::path::Path;

use omni_config::Manifest;
use omni_config::manifest::Engine;
use omni_config::requirements::{Requirement, Statement, Unhashed, Unreadable, objection, statements, without_hash};

use super::{Finding, text_of};
use crate::output::note;

/// Longest list of packages that is looked at.
const LIMIT: u64 = 1 << 20;
/// The package that the node brings; the one of this name on public indexes is another project.
const OWN_PACKAGE: &str = "omni";

/// `required_by_node`: the node wants hashes, whatever the manifest says.
pub(super) fn check(dir: &Path, manifest: &Manifest, required_by_node: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    // An existing environment is used as it is: nothing is installed.
    let by = match (manifest.python.require_hashes, required_by_node && manifest.runtime.interpreter.is_none()) {
        (true, _) => Some("omni.toml"),
        (false, true) => Some("the node's configuration"),
        (false, false) => None,
    };
    for name in ["requirements.txt", "overrides.txt"] {
        let path = dir.join(name);
        match text_of(&path, LIMIT) {
            Ok(Some(text)) => {
                findings.extend(own_package(&path, &text));
                // An existing interpreter brings its own packages: requirements are ignored.
                if manifest.runtime.interpreter.is_none() {
                    findings.extend(unreadable(dir, &path, &text));
                }
                // A requirement that overrides change must still be in requirements.txt, with its hash.
                if let Some(by) = by.filter(|_| name == "requirements.txt") {
                    findings.extend(without_hash(&text).into_iter().map(|unhashed| hashless(&path, unhashed, by)));
                }
            }
            Ok(None) if runs_python(manifest) && name == "requirements.txt" && !path.is_symlink() => {
                note("note: no requirements.txt: the model has Python's own library and the package `omni`");
            }
            Ok(None) => {}
            Err(finding) => findings.push(finding),
        }
    }
    findings
}

/// Returns true if the model gets an environment of Python.
fn runs_python(manifest: &Manifest) -> bool {
    match manifest.runtime.engine {
        Engine::Python | Engine::OpenAi => true,
        Engine::Native => false,
    }
}

/// The first error of uv in the text, at which every start would fail.
fn unreadable(dir: &Path, path: &Path, text: &str) -> Option<Finding> {
    let exists = |named: &str| dir.join(named).exists();
    let Unreadable { line, message } = objection(text, &exists)?;
    let hint = "one requirement a line, as `numpy>=1.26,<3`: see \"requirements files\" in pip's documentation";
    Some(Finding::at(path, Some(line), message, hint))
}

fn hashless(path: &Path, Unhashed { line, requirement }: Unhashed, by: &str) -> Finding {
    let message = format!("`{requirement}` has no hash, and `require-hashes` in [python] of {by} wants one");
    let hint = "`uv pip compile --generate-hashes requirements.in -o requirements.txt` writes them";
    Finding::at(path, Some(line), message, hint)
}

fn own_package(path: &Path, text: &str) -> Option<Finding> {
    let line = statements(text).find_map(|statement| match statement {
        Ok(Statement::Requirement(Requirement { line, text, .. })) if is_own(text) => Some(line),
        Ok(_) | Err(_) => None,
    })?;
    let hint = "remove the line: the node brings `omni`, and the index has another project under that name";
    Some(Finding::at(path, Some(line), format!("`{OWN_PACKAGE}` is not installed from an index"), hint))
}

fn is_own(requirement: &str) -> bool {
    package(requirement).eq_ignore_ascii_case(OWN_PACKAGE)
}

/// The name that a line of requirements begins with; empty for options, comments and paths.
fn package(line: &str) -> &str {
    let line = line.trim_start();
    let is_name = |character: char| character.is_ascii_alphanumeric() || matches!(character, '.' | '_' | '-');
    let end = line.find(|character| !is_name(character)).unwrap_or(line.len());
    &line[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_begins_with_its_package() {
        for (line, name) in [
            ("omni", "omni"),
            (" omni==1.0 ; python_version > '3'", "omni"),
            ("omni-tools>=2", "omni-tools"),
            ("numpy[x]", "numpy"),
            ("# omni", ""),
            ("", ""),
        ] {
            assert_eq!(package(line), name, "{line}");
        }
    }
}
