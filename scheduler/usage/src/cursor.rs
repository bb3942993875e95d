//! Cursors: how far a sink has taken each file of the log, kept in a file beside them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const NAME: &str = "cursors.json";
const UNFINISHED: &str = "cursors.json.new";

/// Bytes of each file that a sink has acknowledged, by the file's name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Cursors(BTreeMap<String, u64>);

impl Cursors {
    /// The cursors of a log. Without a readable file everything is handed over again, which a sink tells by the ids.
    pub(crate) fn load(dir: &Path) -> Self {
        let found = fs::read(dir.join(NAME)).map(|bytes| serde_json::from_slice(&bytes));
        match found {
            Ok(Ok(cursors)) => cursors,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::default(),
            Ok(Err(_)) | Err(_) => {
                tracing::warn!(folder = %dir.display(), "the place of the usage sink is lost: it gets all records again");
                Self::default()
            }
        }
    }

    /// Replaces the file of the cursors, which forget files that are gone.
    pub(crate) fn save(&mut self, dir: &Path) -> io::Result<()> {
        self.0.retain(|name, _| dir.join(name).exists());
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(dir.join(UNFINISHED))?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_all()?;
        fs::rename(dir.join(UNFINISHED), dir.join(NAME))?;
        File::open(dir)?.sync_all()
    }

    /// Acknowledged bytes of a file.
    pub(crate) fn of(&self, path: &Path) -> u64 {
        name(path).and_then(|name| self.0.get(name)).copied().unwrap_or(0)
    }

    /// Moves the cursor of a file.
    pub(crate) fn advance(&mut self, path: &Path, to: u64) {
        if let Some(name) = name(path) {
            self.0.insert(name.to_owned(), to);
        }
    }
}

fn name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_outlive_their_process_and_forget_files_that_are_gone() {
        let dir = tempfile::tempdir().unwrap();
        let (kept, gone) = (dir.path().join("1.jsonl"), dir.path().join("0.jsonl"));
        fs::write(&kept, "x").unwrap();
        let mut cursors = Cursors::load(dir.path());
        cursors.advance(&kept, 7);
        cursors.advance(&gone, 9);
        cursors.save(dir.path()).unwrap();
        let found = Cursors::load(dir.path());
        assert_eq!((found.of(&kept), found.of(&gone)), (7, 0));
        fs::write(dir.path().join(NAME), "{").unwrap();
        assert_eq!(Cursors::load(dir.path()), Cursors::default());
    }
}
