//! The Python package `omni`, which travels inside the launcher: written to `<state-dir>/python/<digest>/omni`, root's and
//! read-only, and compiled once for each interpreter, so that no engine compiles anything when it starts.

use super::interpreter::Interpreter;
use crate::command::{self, CommandError};
use include_dir::{Dir, DirEntry, include_dir};
use sha2::{Digest, Sha256};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

static PACKAGE: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../python/omni");

/// Where an instance finds the directory that holds the package.
pub const INSIDE: &str = "/omni/python";
/// The engine's program.
pub const ENGINE: &str = "/omni/python/omni/_engine/main.py";

/// How long the compiler may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The package on this node.
#[derive(Debug)]
pub struct Package {
    dir: PathBuf,
}

/// The package could not be compiled.
#[derive(Debug, thiserror::Error)]
pub(super) enum CompileError {
    #[error(transparent)]
    Run(#[from] CommandError),
    #[error("the package omni cannot be compiled; Python said: {0}")]
    Failed(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Package {
    /// Writes the package below `python`, unless it is there. With `alone`, nothing runs from there now, and what other
    /// versions left is removed.
    pub fn install(python: &Path, alone: bool) -> io::Result<Self> {
        fs::create_dir_all(python)?;
        let name = digest();
        let dir = python.join(&name);
        for entry in fs::read_dir(python)? {
            let other = entry?;
            if other.file_name() != *name && (alone || other.file_name() == *".new") {
                fs::remove_dir_all(other.path())?;
            }
        }
        if !dir.exists() {
            let new = python.join(".new");
            fs::create_dir(&new)?;
            write(&PACKAGE, &new.join("omni"))?;
            fs::rename(&new, &dir)?;
        }
        Ok(Self { dir })
    }

    /// The directory to bind at [`INSIDE`].
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Compiles the package for an interpreter, unless that is done. The interpreter is the
    /// operator's: it runs as root.
    pub(super) fn compile(&self, interpreter: &Interpreter) -> Result<(), CompileError> {
        let done = self.dir.join(format!(".{}", interpreter.tag));
        if done.exists() {
            return Ok(());
        }
        let mut program = Command::new(&interpreter.base);
        program.args(["-I", "-S", "-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash", "-s"]);
        program.arg(&self.dir).args(["-p", INSIDE]).arg(self.dir.join("omni")).env_clear().current_dir("/");
        let finished = command::ask(program, PATIENCE)?;
        if finished.code != Some(0) {
            return Err(CompileError::Failed(finished.tail));
        }
        Ok(fs::write(done, "")?)
    }
}

fn is_source(path: &Path) -> bool {
    let hidden = |part: &std::ffi::OsStr| part == "__pycache__" || part == "tests";
    let named =
        path.extension().is_some_and(|end| end == "py") || path.file_name().is_some_and(|name| name == "py.typed");
    named && !path.iter().any(hidden)
}

fn write(dir: &Dir<'_>, to: &Path) -> io::Result<()> {
    for file in sources(dir) {
        let path = to.join(file.path());
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, file.contents())?;
    }
    Ok(())
}

/// The files of the package, in a fixed order.
fn sources<'a>(dir: &'a Dir<'a>) -> Vec<&'a include_dir::File<'a>> {
    let mut files = Vec::new();
    let mut waiting = vec![dir];
    while let Some(dir) = waiting.pop() {
        for entry in dir.entries() {
            match entry {
                DirEntry::Dir(below) => waiting.push(below),
                DirEntry::File(file) if is_source(file.path()) => files.push(file),
                DirEntry::File(_) => {}
            }
        }
    }
    files.sort_unstable_by_key(|file| file.path());
    files
}

fn digest() -> String {
    let mut hasher = Sha256::new();
    for file in sources(&PACKAGE) {
        let path = file.path().as_os_str().as_encoded_bytes();
        for part in [path, file.contents()] {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
    }
    hasher.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn the_package_is_installed_compiled_and_importable_without_writing() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("old/omni")).unwrap();
        let package = Package::install(dir.path(), true).unwrap();
        assert!(!dir.path().join("old").exists());
        let version = "3.11".parse().unwrap();
        let python = crate::interpreter::find(version, &Default::default(), OsStr::new("")).unwrap();
        package.compile(&python).unwrap();
        let compiled = package.dir().join("omni/__pycache__/__init__.cpython-311.pyc");
        assert_eq!(fs::read(&compiled).unwrap()[4], 1, "flags of PEP 552: by hash, not checked");
        let again = Package::install(dir.path(), false).unwrap();
        assert_eq!(again.dir(), package.dir());
        let output = Command::new(&python.base)
            .args(["-B", "-c", "import omni; print(omni.__file__, omni.Request)"])
            .env("PYTHONPATH", package.dir())
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains("/omni/__init__.py"), "{said} {}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn only_sources_travel() {
        for path in ["__init__.py", "_engine/main.py", "py.typed"] {
            assert!(is_source(Path::new(path)), "{path}");
            assert!(sources(&PACKAGE).iter().any(|file| file.path() == Path::new(path)), "{path}");
        }
        for path in ["__pycache__/a.cpython-311.pyc", "tests/test_a.py", "a.pyc", "notes.md"] {
            assert!(!is_source(Path::new(path)), "{path}");
        }
    }
}
