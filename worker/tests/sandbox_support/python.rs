//! The interpreter of this machine, and what an engine of these tests is started with.

use omni_sandbox::Bind;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The interpreter of the tests and what of the host it needs.
pub struct Python {
    pub path: String,
    prefix: PathBuf,
}

impl Python {
    pub fn bind(&self) -> Option<Bind> {
        let inside = self.prefix.starts_with("/usr");
        (!inside).then(|| Bind { source: self.prefix.clone(), target: self.prefix.clone(), writable: false })
    }
}

pub fn python() -> &'static Python {
    static PYTHON: OnceLock<Python> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let ask = "import os, sys; print(os.path.realpath(sys.executable)); print(sys.base_prefix)";
        let output = Command::new("python3").args(["-c", ask]).output().expect("python3 is on the PATH");
        let text = String::from_utf8(output.stdout).unwrap();
        let (path, prefix) = text.trim().split_once('\n').unwrap();
        Python { path: path.into(), prefix: prefix.into() }
    })
}

/// The package `omni`, where the engine finds it.
pub(super) fn package() -> Bind {
    let source = fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("python")).unwrap();
    Bind { source, target: "/omni/python".into(), writable: false }
}

pub(super) fn argv(real: bool) -> Vec<String> {
    let engine = if real { "/omni/python/omni/_engine/main.py" } else { "/model/engine.py" };
    vec![python().path.clone(), "-u".into(), engine.into()]
}
