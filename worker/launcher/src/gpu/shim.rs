//! The shim and its proxy: copied from beside the launcher's program into `<state-dir>/gpu/<digest>`, root's.
//!
//! Running models have the copies mapped: an upgrade that writes over the originals changes nothing for them, and all
//! models that one launcher starts have the same. A node without the two files serves models without a GPU.

use sha2::{Digest, Sha256};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Beside the launcher's program, and in the copy.
const SHIM: &str = "libomni_cuda.so";
const PROXY: &str = "libomni_cuda_proxy.so";

/// The copies of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shim {
    dir: PathBuf,
}

impl Shim {
    /// Copies the files from `program_dir` below `gpu`, unless they are there; `None` when one is missing. With `alone`,
    /// no model runs with another version, and what others left is removed.
    pub(super) fn install(program_dir: &Path, gpu: &Path, alone: bool) -> io::Result<Option<Self>> {
        let mut files = Vec::new();
        for name in [SHIM, PROXY] {
            match fs::read(program_dir.join(name)) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                content => files.push((name, content?)),
            }
        }
        fs::create_dir_all(gpu)?;
        let digest = digest(&files);
        let dir = gpu.join(&digest);
        for entry in fs::read_dir(gpu)? {
            let other = entry?;
            if other.file_name() != *digest && (alone || other.file_name() == *".new") {
                fs::remove_dir_all(other.path())?;
            }
        }
        if !dir.exists() {
            let new = gpu.join(".new");
            fs::create_dir(&new)?;
            for (name, content) in files {
                fs::write(new.join(name), content)?;
            }
            fs::rename(&new, &dir)?;
        }
        Ok(Some(Self { dir }))
    }

    /// The library that is preloaded.
    pub(super) fn library(&self) -> PathBuf {
        self.dir.join(SHIM)
    }

    /// The `libcuda.so.1` that needs the shim first and the driver second.
    pub(super) fn proxy(&self) -> PathBuf {
        self.dir.join(PROXY)
    }
}

/// Tests that both files are in a directory.
pub(super) fn is_in(program_dir: &Path) -> bool {
    [SHIM, PROXY].iter().all(|name| program_dir.join(name).is_file())
}

fn digest(files: &[(&str, Vec<u8>)]) -> String {
    let mut hasher = Sha256::new();
    for (_, content) in files {
        hasher.update((content.len() as u64).to_le_bytes());
        hasher.update(content);
    }
    hasher.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upgrade_leaves_the_copies_of_running_models() {
        let dir = tempfile::tempdir().unwrap();
        let (programs, gpu) = (dir.path().join("bin"), dir.path().join("gpu"));
        fs::create_dir(&programs).unwrap();
        fs::write(programs.join(SHIM), "shim 1").unwrap();
        assert_eq!(Shim::install(&programs, &gpu, true).unwrap(), None, "without its proxy it is of no use");
        fs::write(programs.join(PROXY), "proxy").unwrap();
        let first = Shim::install(&programs, &gpu, true).unwrap().unwrap();
        assert_eq!(Shim::install(&programs, &gpu, false).unwrap(), Some(first.clone()));
        fs::create_dir(gpu.join(".new")).unwrap();
        fs::write(programs.join(SHIM), "shim 2").unwrap();
        let second = Shim::install(&programs, &gpu, false).unwrap().unwrap();
        assert_eq!(fs::read(first.library()).unwrap(), b"shim 1");
        assert_eq!(fs::read(second.library()).unwrap(), b"shim 2");
        assert_eq!(fs::read(second.proxy()).unwrap(), b"proxy");
        Shim::install(&programs, &gpu, true).unwrap();
        assert!(!first.library().exists() && second.library().exists());
    }
}
