//! Programs that tests run: those of this build, and the Python of models.

use std::env;
use std::path::PathBuf;

/// A program or library of this build, or of the folder in `OMNI_BIN`.
///
/// # Panics
///
/// When it does not exist.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let beside = || env::current_exe().ok().and_then(|test| Some(test.parent()?.parent()?.to_owned()));
    let folder = env::var_os("OMNI_BIN").map(PathBuf::from).or_else(beside).expect("a folder of programs");
    let program = folder.join(name);
    assert!(program.exists(), "{} is not built: make test, or set OMNI_BIN", program.display());
    program
}

/// The Python of all models that `OMNI_TEST_PYTHON` names, on a machine that lacks the one they have by default.
pub(crate) fn given_python() -> Option<String> {
    env::var("OMNI_TEST_PYTHON").ok()
}

/// The Python of models that say nothing of it.
#[must_use]
pub fn python() -> String {
    given_python().unwrap_or_else(|| "3.11".to_owned())
}
