//! Python interpreters: finding one for a version, and querying its identity.
//!
//! The node's own interpreters, which the operator names or has in PATH, are queried by running them as root and
//! outside of any sandbox. An interpreter that a manifest names ([`existing`]) is foreign, although it must belong to
//! root all the way: not every program of root is an interpreter, and an interpreter may load files of others. It is
//! only ever run in a sandbox.

use super::sandboxed_command::SandboxedCommandError;
use crate::command::{self, CommandError, Finished};
use omni_config::PythonVersion;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Longest time of a query.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// Room for files that the program writes meanwhile, in a sandbox.
pub(super) const TMP_BYTES: u64 = 16 << 20;
/// Where interpreters are, beside PATH.
const PLACES: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];
/// Program of the query. `sys._base_executable` is the interpreter behind a virtual environment or a pyenv shim.
const QUESTION: &str = "import json, os, sys
print(json.dumps({'version': sys.version.split()[0], 'build': sys.version, 'tag': sys.implementation.cache_tag,
    'base': os.path.realpath(getattr(sys, '_base_executable', None) or sys.executable),
    'prefix': os.path.realpath(sys.prefix), 'base_prefix': os.path.realpath(sys.base_prefix)}))";

/// Query of a foreign program, to be run in a sandbox.
pub(super) struct Question {
    /// The command.
    pub(super) argv: Vec<String>,
    /// Directories of the host that it sees beside `/usr`.
    pub(super) shown: Vec<PathBuf>,
}

/// Identity of an interpreter, by its own account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interpreter {
    /// "3.11.7".
    pub version: String,
    /// `sys.version`: compiler and build date too.
    build: String,
    /// The tag of its bytecode files, "cpython-311".
    pub tag: String,
    /// The program itself, behind links, shims and virtual environments.
    pub base: PathBuf,
    /// `sys.prefix`, which is the environment's directory in a virtual environment.
    pub(super) prefix: PathBuf,
    /// `sys.base_prefix`.
    pub(super) base_prefix: PathBuf,
    /// Size and time of change of the program, which differ after an upgrade.
    identity: (u64, i64, i64),
}

/// No such interpreter.
#[derive(Debug, thiserror::Error)]
pub enum InterpreterError {
    /// Not in PATH, the usual places or the configuration.
    #[error(
        "no Python {version} on this node ({there}): install it, name it below [python.interpreters] in the node's \
         configuration, or ask for another version with `python` in [runtime] of omni.toml"
    )]
    NotFound { version: PythonVersion, there: String },
    /// Named by a configuration and not usable.
    #[error("the interpreter {} cannot be run", path.display())]
    Unusable {
        path: PathBuf,
        #[source]
        source: Unusable,
    },
    /// Named by a manifest, and other users than root may have put it there.
    #[error(
        "the interpreter {} cannot be used: {} can be changed by others than root. An existing environment must belong \
         to root, and so must every directory on the way to it", path.display(), at.display()
    )]
    Foreign { path: PathBuf, at: PathBuf },
}

/// Why a program is no interpreter.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    #[error(transparent)]
    Run(#[from] CommandError),
    #[error(transparent)]
    Sandbox(#[from] SandboxedCommandError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is not executable")]
    NotExecutable,
    #[error("it does not answer as a Python interpreter does; it said: {0}")]
    Answer(String),
    #[error("it says that its files are in {}, which is not where it is", .0.display())]
    Elsewhere(PathBuf),
    #[error("it is Python {found}, not {wanted}")]
    Version { found: String, wanted: PythonVersion },
}

impl Interpreter {
    /// Asks the program at `path`, which is the operator's.
    fn ask(path: &Path) -> Result<Self, Unusable> {
        if !is_executable(path) {
            return Err(Unusable::NotExecutable);
        }
        let mut program = Command::new(path);
        // A pyenv shim is a shell script that needs to find its tools.
        let path_variable = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        program
            .args(["-I", "-c", QUESTION])
            .env_clear()
            .env("PATH", path_variable)
            .env("LANG", "C.UTF-8")
            .current_dir("/");
        if let Some(home) = std::env::var_os("HOME") {
            program.env("HOME", home);
        }
        Self::answered(&command::ask(program, PATIENCE)?)
    }

    fn answered(finished: &Finished) -> Result<Self, Unusable> {
        #[derive(Deserialize)]
        struct Answer {
            version: String,
            build: String,
            tag: String,
            base: PathBuf,
            prefix: PathBuf,
            base_prefix: PathBuf,
        }
        let answer = finished.tail.lines().rev().find_map(|line| serde_json::from_str::<Answer>(line).ok());
        // The tag becomes part of a file's name.
        let is_plain = |tag: &str| tag.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let Some(Answer { version, build, tag, base, prefix, base_prefix }) =
            answer.filter(|answer| finished.code == Some(0) && is_plain(&answer.tag))
        else {
            return Err(Unusable::Answer(finished.tail.chars().take(400).collect()));
        };
        let identity = identity(&base)?;
        Ok(Self { version, build, tag, base, prefix, base_prefix, identity })
    }

    /// Checks that the program has not changed since the query.
    pub(super) fn is_current(&self) -> bool {
        identity(&self.base).is_ok_and(|identity| identity == self.identity)
    }

    /// Everything that distinguishes it from another interpreter, for an environment's key.
    pub(super) fn parts(&self) -> [String; 4] {
        let (size, seconds, nanos) = self.identity;
        [
            self.base.display().to_string(),
            self.prefix.display().to_string(),
            self.build.clone(),
            format!("{size} {seconds}.{nanos}"),
        ]
    }

    /// Directories that a sandbox needs beside `/usr`, which it always has.
    pub(super) fn mounts(&self) -> Vec<PathBuf> {
        beside_usr([&self.base_prefix, &self.prefix])
    }

    /// "3.11" of "3.11.7"; `None` for one that no model can ask for by its version.
    pub(super) fn release(&self) -> Option<PythonVersion> {
        self.version.rsplit_once('.')?.0.parse().ok()
    }

    fn is(&self, wanted: PythonVersion) -> bool {
        self.version.starts_with(&format!("{wanted}."))
    }
}

/// The interpreter of a version: the one that the configuration names, else the first in PATH and the usual places.
pub fn find(
    wanted: PythonVersion,
    named: &BTreeMap<PythonVersion, PathBuf>,
    search: &OsStr,
) -> Result<Interpreter, InterpreterError> {
    if let Some(path) = named.get(&wanted) {
        let checked = Interpreter::ask(path).and_then(|found| match found.is(wanted) {
            true => Ok(found),
            false => Err(Unusable::Version { found: found.version, wanted }),
        });
        return checked.map_err(|source| InterpreterError::Unusable { path: path.clone(), source });
    }
    let dirs: Vec<PathBuf> = std::env::split_paths(search).chain(PLACES.map(PathBuf::from)).collect();
    let program = format!("python{wanted}");
    let candidates = dirs.iter().map(|dir| dir.join(&program)).filter(|path| is_executable(path));
    // A shim can be there for a version that is not installed behind it.
    let usable = candidates.filter_map(|path| Interpreter::ask(&path).ok()).find(|found| found.is(wanted));
    usable.ok_or_else(|| InterpreterError::NotFound { version: wanted, there: there(&dirs) })
}

/// The interpreter that a manifest names. `ask` runs a question where it can do no harm.
pub(super) fn existing(
    path: &Path,
    ask: impl FnOnce(Question) -> Result<Finished, SandboxedCommandError>,
) -> Result<Interpreter, InterpreterError> {
    let unusable = |source: Unusable| InterpreterError::Unusable { path: path.to_owned(), source };
    let of_root = |way: &Path| match not_roots(way).map_err(|error| unusable(error.into()))? {
        Some(at) => Err(InterpreterError::Foreign { path: path.to_owned(), at }),
        None => Ok(()),
    };
    let behind = fs::canonicalize(path).map_err(|error| unusable(error.into()))?;
    for way in [path, behind.as_path()] {
        of_root(way)?;
    }
    if !is_executable(path) {
        return Err(unusable(Unusable::NotExecutable));
    }
    // A Python lies in `bin` of its prefix, and so does a link to one in a virtual environment.
    let prefix = |way: &Path| fs::canonicalize(way.parent()?.parent()?).ok().filter(|prefix| !is_shallow(prefix));
    let shown = beside_usr([prefix(&behind), prefix(path)].iter().flatten());
    shown.iter().try_for_each(|dir| of_root(dir))?;
    let argv = [&path.display().to_string(), "-I", "-c", QUESTION].map(str::to_owned).into();
    let finished = ask(Question { argv, shown: shown.clone() }).map_err(|error| unusable(error.into()))?;
    let found = Interpreter::answered(&finished).map_err(unusable)?;
    for prefix in found.mounts() {
        of_root(&prefix)?;
        // For any answer, also with `..`, a model is shown no more of the host than this program was.
        let is_real = fs::canonicalize(&prefix).is_ok_and(|real| real == prefix);
        if !is_real || !shown.iter().any(|dir| prefix.starts_with(dir)) {
            return Err(unusable(Unusable::Elsewhere(prefix)));
        }
    }
    Ok(found)
}

/// Selects the directories that a sandbox needs beside `/usr`, none within another.
fn beside_usr<'a>(dirs: impl IntoIterator<Item = &'a PathBuf>) -> Vec<PathBuf> {
    let mut needed: Vec<PathBuf> = Vec::new();
    for dir in dirs {
        if !dir.starts_with("/usr") && !needed.iter().any(|other| dir.starts_with(other)) {
            needed.push(dir.clone());
        }
    }
    needed
}

/// "/opt": the whole tree of some other software would be shown to the model.
fn is_shallow(dir: &Path) -> bool {
    dir.components().count() < 3
}

/// Finds the first part of an absolute path that a user other than root can change. In a sticky directory (such as
/// `/tmp`) other users cannot touch root's entries.
fn not_roots(path: &Path) -> io::Result<Option<PathBuf>> {
    for part in path.ancestors() {
        let found = part.symlink_metadata()?;
        let by_others = !found.is_symlink() && found.mode() & 0o022 != 0 && found.mode() & 0o1000 == 0;
        if found.uid() != 0 || by_others {
            return Ok(Some(part.to_owned()));
        }
    }
    Ok(None)
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn identity(path: &Path) -> io::Result<(u64, i64, i64)> {
    path.metadata().map(|found| (found.size(), found.mtime(), found.mtime_nsec()))
}

fn there(dirs: &[PathBuf]) -> String {
    let found: Vec<String> = PythonVersion::all()
        .filter_map(|version| {
            let path = dirs.iter().map(|dir| dir.join(format!("python{version}"))).find(|path| is_executable(path))?;
            Some(format!("{version} at {}", path.display()))
        })
        .collect();
    if found.is_empty() { "there is none at all".to_owned() } else { format!("there is {}", found.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> PythonVersion {
        text.parse().unwrap()
    }

    #[test]
    fn the_systems_python_is_found_and_identified() {
        let found = find(version("3.11"), &BTreeMap::new(), OsStr::new("/nowhere")).unwrap();
        assert!(found.version.starts_with("3.11.") && found.tag == "cpython-311" && found.is_current(), "{found:?}");
        assert!(found.base.is_absolute() && found.base.is_file());
        let named = BTreeMap::from([(version("3.11"), found.base.clone())]);
        assert_eq!(find(version("3.11"), &named, OsStr::new("")).unwrap().base, found.base);
    }

    #[test]
    fn a_missing_interpreter_is_reported_with_the_ones_found() {
        let error = find(version("3.14"), &BTreeMap::new(), OsStr::new("")).unwrap_err().to_string();
        assert!(error.contains("no Python 3.14 on this node (there is") && error.contains("3.11 at /usr/"), "{error}");
    }

    #[test]
    fn an_interpreter_of_another_version_is_not_taken() {
        let python = find(version("3.11"), &BTreeMap::new(), OsStr::new("")).unwrap().base;
        let named = BTreeMap::from([(version("3.12"), python)]);
        let error = find(version("3.12"), &named, OsStr::new("")).unwrap_err();
        assert!(matches!(error, InterpreterError::Unusable { source: Unusable::Version { .. }, .. }), "{error:?}");
    }

    #[test]
    fn only_roots_environments_are_taken_from_a_manifest() {
        let run = |question: Question| {
            let mut program = Command::new(&question.argv[0]);
            program.args(&question.argv[1..]);
            Ok(command::ask(program, PATIENCE)?)
        };
        let dir = tempfile::tempdir().unwrap();
        let prefix = dir.path().join("env");
        let python = prefix.join("bin/python");
        fs::create_dir_all(prefix.join("bin")).unwrap();
        let write = |text: &str| {
            fs::write(&python, text).unwrap();
            fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        };
        write("#!/bin/sh\necho hello\n");
        let unusable = existing(&python, run).unwrap_err();
        assert!(
            matches!(&unusable, InterpreterError::Unusable { source: Unusable::Answer(said), .. } if said == "hello\n")
        );
        let says = |tag: &str, prefix: &str| {
            write(&format!(
                "#!/bin/sh\necho '{{\"version\": \"3.11.1\", \"build\": \"\", \"tag\": \"{tag}\", \"base\": \"/bin/sh\", \
                 \"prefix\": \"{prefix}\", \"base_prefix\": \"/usr\"}}'\n"
            ));
            existing(&python, |question| {
                assert_eq!(question.shown, [prefix_of(&python)]);
                run(question)
            })
        };
        let own = prefix.display().to_string();
        assert_eq!(says("cpython-311", &own).unwrap().mounts(), std::slice::from_ref(&prefix));
        let named = says("/../../tag", &own).unwrap_err();
        assert!(matches!(named, InterpreterError::Unusable { source: Unusable::Answer(_), .. }), "{named:?}");
        for elsewhere in ["/etc/ssl", &format!("{own}/bin/../../../../etc/ssl")] {
            let error = says("cpython-311", elsewhere).unwrap_err();
            assert!(matches!(&error, InterpreterError::Unusable { source: Unusable::Elsewhere(_), .. }), "{error:?}");
        }
        std::os::unix::fs::chown(dir.path(), Some(1234), None).unwrap();
        let foreign = existing(&python, |_| unreachable!("it is not run")).unwrap_err();
        assert!(matches!(&foreign, InterpreterError::Foreign { at, .. } if at == dir.path()), "{foreign:?}");
        assert!(matches!(existing(Path::new("/nowhere/python"), run), Err(InterpreterError::Unusable { .. })));
        assert_eq!(existing(Path::new("/usr/bin/python3.11"), run).unwrap().mounts(), Vec::<PathBuf>::new());
    }

    fn prefix_of(python: &Path) -> PathBuf {
        fs::canonicalize(python.parent().unwrap().parent().unwrap()).unwrap()
    }
}
