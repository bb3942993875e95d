//! Programs and libraries that models run with: uv, Python, and the files of the GPU's driver.

use super::tried;
use crate::Settings;
use crate::gpu;
use omni_config::PythonVersion;
use omni_environment::{find_interpreter, find_uv, version};
use omni_machine::{GpuFiles, Python, Uv};

pub(super) fn uv(settings: &Settings) -> Option<Uv> {
    let path = find_uv(&settings.config.python, settings.program_dir.as_deref())?;
    let version = version(&path).ok_or("it does not say its version");
    Some(Uv { path, version: version.into() })
}

/// Every release that models can ask for.
pub(super) fn pythons(settings: &Settings) -> Vec<Python> {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let named = &settings.config.python.interpreters;
    let look = |version: PythonVersion| Python {
        release: version.to_string(),
        is_default: version == PythonVersion::DEFAULT,
        is_named: named.contains_key(&version),
        found: tried(find_interpreter(version, named, &search).map(|found| (found.base, found.version))),
    };
    PythonVersion::all().map(look).collect()
}

pub(super) fn gpu(settings: &Settings) -> GpuFiles {
    gpu::found(&settings.config.gpu, settings.program_dir.as_deref())
}
