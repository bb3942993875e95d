//! The files: `<dir>/<model>.json`, with the model's name as [`ModelName::as_file_name`] writes it.

use super::Lasting;
use omni_config::name::ModelName;
use omni_log::chain;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Version of the files' form. One of another is set aside.
const SCHEMA: u32 = 1;
/// The longest file that is read: a full history of the largest manifests, each byte of them escaped.
const MOST_BYTES: u64 = 8 << 20;
const ENDING: &str = ".json";
/// Of files that are being written; what is left of one is written over, or removed at the next start.
const UNFINISHED: &str = ".new";
/// Of files that could not be read.
const SPOILED: &str = ".spoiled";

#[derive(Serialize)]
struct Written<'a> {
    schema: u32,
    model: &'a ModelName,
    #[serde(flatten)]
    lasting: &'a Lasting,
}

#[derive(Deserialize)]
struct Found {
    schema: u32,
    model: ModelName,
    #[serde(flatten)]
    lasting: Lasting,
}

/// Why a file is set aside.
#[derive(Debug, thiserror::Error)]
enum Spoiled {
    #[error("it cannot be read")]
    Read(#[from] io::Error),
    #[error("it is no state of a model")]
    Form(#[from] serde_json::Error),
    #[error("it is of version {0} and this scheduler knows {SCHEMA}")]
    Schema(u32),
    #[error("it is that of model `{0}`")]
    Other(ModelName),
    #[error("it has more than {MOST_BYTES} bytes")]
    Long,
}

/// Reads all files; what is spoiled is set aside.
pub(super) fn read_all(dir: &Path) -> io::Result<BTreeMap<ModelName, Lasting>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if name.ends_with(UNFINISHED) {
            let _ = fs::remove_file(&path); // else it is written over
        }
        let Some(stem) = name.strip_suffix(ENDING) else { continue };
        match read(&path, stem) {
            Ok((model, lasting)) => drop(all.insert(model, lasting)),
            Err(spoiled) => set_aside(&path, &spoiled),
        }
    }
    Ok(all)
}

fn read(path: &Path, stem: &str) -> Result<(ModelName, Lasting), Spoiled> {
    let mut bytes = Vec::new();
    // Never a wait for the writer of a FIFO.
    let file = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(Spoiled::Long);
    }
    let Found { schema, model, lasting } = serde_json::from_slice(&bytes)?;
    if schema != SCHEMA {
        return Err(Spoiled::Schema(schema));
    }
    if model.as_file_name() != stem {
        return Err(Spoiled::Other(model));
    }
    Ok((model, lasting))
}

fn set_aside(path: &Path, spoiled: &Spoiled) {
    let aside = with_ending(path, SPOILED);
    let moved = fs::rename(path, &aside);
    tracing::error!(
        file = %path.display(),
        error = chain(spoiled),
        "what a model remembered is lost (stopped by hand, rollback, history); {}",
        match moved {
            Ok(()) => format!("the file is kept as {}", aside.display()),
            Err(error) => format!("the file is left: {error}"),
        }
    );
}

/// Replaces the file of a model, or removes it. It is there after a power failure once the folder is flushed, too.
pub(super) fn write(dir: &Path, model: &ModelName, lasting: Option<&Lasting>) -> io::Result<()> {
    let path = dir.join(format!("{}{ENDING}", model.as_file_name()));
    let Some(lasting) = lasting else {
        return match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        };
    };
    let fresh = with_ending(&path, UNFINISHED);
    let replaced = replace(&path, &fresh, &serde_json::to_vec(&Written { schema: SCHEMA, model, lasting })?);
    if replaced.is_err() {
        let _ = fs::remove_file(&fresh); // gives a full disk back what was written in vain
    }
    replaced
}

fn replace(path: &Path, fresh: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(fresh, path)
}

/// Makes renames and removals in the folder last.
pub(super) fn flush(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(ending);
    path.into()
}
