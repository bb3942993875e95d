//! The driver's libraries on this machine: where they are, which of them a model gets, and where else a program could
//! come across `libcuda`.
//!
//! Looked for at every start of an instance, because a driver can be replaced while the node runs. Root's files only: the
//! node's configuration and the system's loader cache say where.

use super::GpuError;
use super::loader_cache;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The driver API.
const CUDA: &str = "libcuda.so.1";
/// Names of the driver's libraries that compute needs, before `.so.`, as NVIDIA's container toolkit lists them: the
/// driver API, NVML, the compiler of PTX with its parts, shared code of both, and keys for confidential computing.
const COMPUTE: [&str; 9] = [
    "libcuda",
    "libcudadebugger",
    "libnvidia-gpucomp",
    "libnvidia-ml",
    "libnvidia-nvvm",
    "libnvidia-nvvm70",
    "libnvidia-pkcs11",
    "libnvidia-pkcs11-openssl3",
    "libnvidia-ptxjitcompiler",
];
/// The linker's cache.
const CACHE: &str = "/etc/ld.so.cache";
/// Much larger than any.
const CACHE_MAX: u64 = 64 << 20;
/// Where the linker looks for what is not in its cache, and where drivers are put that no cache knows.
const PLACES: [&str; 8] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib64",
    "/lib",
    "/usr/local/nvidia/lib64",
    "/run/opengl-driver/lib",
];
/// Parts of the host that every sandbox shows.
const SHOWN: [&str; 5] = ["/usr", "/lib", "/lib32", "/lib64", "/libx32"];

/// The libraries of the driver in this directory, or else of the one that the dynamic linker finds: the names by which
/// programs ask for them, and the files without links.
pub(super) fn libraries(dir: Option<&Path>) -> Result<Vec<(String, PathBuf)>, GpuError> {
    let places = match dir {
        Some(dir) => vec![dir.to_owned()],
        None => {
            let cached = loader_cache::paths(&cache()?, |name| name == CUDA);
            let cached = cached.iter().filter_map(|path| path.parent().map(Path::to_owned));
            cached.chain(PLACES.map(PathBuf::from)).collect()
        }
    };
    let is_ours = |place: &&PathBuf| is_for_this_machine(&place.join(CUDA));
    let Some(place) = places.iter().find(is_ours) else {
        return Err(GpuError::NoDriver { dir: dir.map(Path::to_owned) });
    };
    named(place, |name| COMPUTE.iter().any(|stem| is_version_of(name, stem)))
}

/// Every file with the driver API that a sandbox would show at its own place, by its path without links. A program that
/// has dropped its library path would load it.
pub(super) fn exposed(dir: Option<&Path>) -> Result<BTreeSet<PathBuf>, GpuError> {
    let is_cuda = |name: &str| name == "libcuda.so" || is_version_of(name, "libcuda");
    let cached = loader_cache::paths(&cache()?, is_cuda);
    let places = cached.iter().filter_map(|path| path.parent()).chain(PLACES.map(Path::new)).chain(dir);
    let mut found = BTreeSet::new();
    for place in places.collect::<BTreeSet<_>>() {
        found.extend(named(place, is_cuda)?.into_iter().map(|(_, path)| path));
    }
    found.retain(|path| SHOWN.iter().any(|shown| path.starts_with(shown)));
    Ok(found)
}

/// `libx.so.1`, `libx.so.550.54`; not `libx.so`, which only compilers ask for.
fn is_version_of(name: &str, stem: &str) -> bool {
    let version = name.strip_prefix(stem).and_then(|rest| rest.strip_prefix(".so."));
    version.is_some_and(|version| !version.is_empty() && version.bytes().all(|b| b.is_ascii_digit() || b == b'.'))
}

/// The files of a directory with an accepted name: name, and path without links. None where there is no directory.
fn named(dir: &Path, accept: impl Fn(&str) -> bool) -> Result<Vec<(String, PathBuf)>, GpuError> {
    let at = |source| GpuError::Io { path: dir.to_owned(), source };
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(at)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let Ok(name) = entry.map_err(at)?.file_name().into_string() else { continue };
        if !accept(&name) {
            continue;
        }
        // A link whose library is gone is what a removed driver leaves.
        if let Some(path) = fs::canonicalize(dir.join(&name)).ok().filter(|path| path.is_file()) {
            found.push((name, path));
        }
    }
    Ok(found)
}

fn cache() -> Result<Vec<u8>, GpuError> {
    let mut bytes = Vec::new();
    match File::open(CACHE).and_then(|file| file.take(CACHE_MAX).read_to_end(&mut bytes)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other.map(|_| bytes).map_err(|source| GpuError::Io { path: CACHE.into(), source }),
    }
}

/// Tests that a library is for the processor that this program is for: class and machine of the ELF header (bytes 4,
/// 18, 19).
fn is_for_this_machine(path: &Path) -> bool {
    let kind = |path: &Path| {
        let mut header = [0; 20];
        File::open(path).and_then(|mut file| file.read_exact(&mut header)).ok()?;
        let [0x7f, b'E', b'L', b'F', class, .., machine, of] = header else { return None };
        Some((class, machine, of))
    };
    kind(path).is_some_and(|found| Some(found) == kind(Path::new("/proc/self/exe")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_from_other_names() {
        for name in ["libcuda.so.1", "libcuda.so.550.54.14"] {
            assert!(is_version_of(name, "libcuda"), "{name}");
        }
        for name in ["libcuda.so", "libcuda.so.", "libcuda.so.1.bak", "libcudart.so.12", "libcuda.so.x", "libcuda.1"] {
            assert!(!is_version_of(name, "libcuda"), "{name}");
        }
    }

    #[test]
    fn a_driver_is_what_compute_needs_without_links() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        let missing = libraries(Some(dir.path())).unwrap_err().to_string();
        assert!(missing.contains("libcuda.so.1") && missing.contains(dir.path().to_str().unwrap()), "{missing}");
        // Not a library of this machine.
        fs::write(file("libcuda.so.1"), "#!/bin/sh").unwrap();
        assert!(libraries(Some(dir.path())).is_err());
        fs::remove_file(file("libcuda.so.1")).unwrap();

        fs::copy("/proc/self/exe", file("libcuda.so.550.54")).unwrap();
        for (link, to) in [("libcuda.so.1", "libcuda.so.550.54"), ("libnvidia-ml.so.1", "gone"), ("libcuda.so", "x")] {
            std::os::unix::fs::symlink(to, file(link)).unwrap();
        }
        for name in ["libnvidia-nvvm.so.4", "libnvidia-encode.so.1", "libGLX_nvidia.so.0", "libc.so.6"] {
            fs::write(file(name), "").unwrap();
        }
        let dir = fs::canonicalize(dir.path()).unwrap();
        let mut found = libraries(Some(&dir)).unwrap();
        found.sort();
        let expected = [
            ("libcuda.so.1", "libcuda.so.550.54"),
            ("libcuda.so.550.54", "libcuda.so.550.54"),
            ("libnvidia-nvvm.so.4", "libnvidia-nvvm.so.4"),
        ];
        assert_eq!(found, expected.map(|(name, path)| (name.to_owned(), dir.join(path))));
    }

    #[test]
    fn only_what_a_sandbox_shows_is_exposed() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("libcuda.so.1"), "").unwrap();
        let exposed = exposed(Some(dir.path())).unwrap();
        assert!(exposed.iter().all(|path| path.starts_with("/usr") || path.starts_with("/lib")), "{exposed:?}");
    }
}
