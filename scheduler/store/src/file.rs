//! State files: `<dir>/<model>.json`, named by [`ModelName::as_file_name`].

use super::PersistedState;
use omni_config::name::ModelName;
use omni_log::chain;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Schema version of the files. A file of another version is set aside.
const SCHEMA: u32 = 1;
/// Longest file that is read: a full history of the largest manifests, each byte of them escaped.
const MAX_BYTES: u64 = 8 << 20;
const ENDING: &str = ".json";
/// Suffix of files that are being written; a leftover is overwritten, or removed at the next start.
const UNFINISHED: &str = ".new";
/// Suffix of files that could not be read.
const SPOILED: &str = ".spoiled";

#[derive(Serialize)]
struct Written<'a> {
    schema: u32,
    model: &'a ModelName,
    #[serde(flatten)]
    state: &'a PersistedState,
}

#[derive(Deserialize)]
struct Found {
    schema: u32,
    model: ModelName,
    #[serde(flatten)]
    state: PersistedState,
}

/// Reason to set a file aside.
#[derive(Debug, thiserror::Error)]
enum Unreadable {
    #[error("it cannot be read")]
    Read(#[from] io::Error),
    #[error("it is not the state of a model")]
    Form(#[from] serde_json::Error),
    #[error("its schema is {0}, and this scheduler reads {SCHEMA}")]
    Schema(u32),
    #[error("it belongs to model `{0}`")]
    Other(ModelName),
    #[error("it is larger than {MAX_BYTES} bytes")]
    Long,
}

/// Reads all files; unreadable ones are set aside.
pub(super) fn read_all(dir: &Path) -> io::Result<BTreeMap<ModelName, PersistedState>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if name.ends_with(UNFINISHED) {
            let _ = fs::remove_file(&path); // else it is written over
        }
        let Some(stem) = name.strip_suffix(ENDING) else { continue };
        match read(&path, stem) {
            Ok((model, state)) => drop(all.insert(model, state)),
            Err(reason) => set_aside(&path, &reason),
        }
    }
    Ok(all)
}

fn read(path: &Path, stem: &str) -> Result<(ModelName, PersistedState), Unreadable> {
    let mut bytes = Vec::new();
    // A FIFO must not block the reader until it has a writer.
    let file = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Unreadable::Long);
    }
    let Found { schema, model, state } = serde_json::from_slice(&bytes)?;
    if schema != SCHEMA {
        return Err(Unreadable::Schema(schema));
    }
    if model.as_file_name() != stem {
        return Err(Unreadable::Other(model));
    }
    Ok((model, state))
}

fn set_aside(path: &Path, reason: &Unreadable) {
    let aside = with_ending(path, SPOILED);
    let moved = fs::rename(path, &aside);
    tracing::error!(
        file = %path.display(),
        error = chain(reason),
        "the stored state of a model is lost (hold, rollback, history); {}",
        match moved {
            Ok(()) => format!("the file is kept as {}", aside.display()),
            Err(error) => format!("the file is left: {error}"),
        }
    );
}

/// Replaces the file of a model, or removes it. The change survives a power failure once the folder is flushed, too.
pub(super) fn write(dir: &Path, model: &ModelName, state: Option<&PersistedState>) -> io::Result<()> {
    let path = dir.join(format!("{}{ENDING}", model.as_file_name()));
    let Some(state) = state else {
        return match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        };
    };
    let fresh = with_ending(&path, UNFINISHED);
    let replaced = replace(&path, &fresh, &serde_json::to_vec(&Written { schema: SCHEMA, model, state })?);
    if replaced.is_err() {
        let _ = fs::remove_file(&fresh); // returns its space to a full disk
    }
    replaced
}

fn replace(path: &Path, fresh: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(fresh, path)
}

/// Flushes renames and removals in the folder to the disk.
pub(super) fn flush(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(ending);
    path.into()
}
