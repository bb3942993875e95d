//! Files of the store on the disk: written beside, flushed, renamed; named by their identifiers.
//!
//! A file is there before the commit that names it, and goes after the commit that forgets it. What a killed process
//! leaves between the two has no row, and is swept away when the store is opened.

use crate::error::JobError;
use crate::id::{BatchId, FileId};
use crate::permits::Permit;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const UNFINISHED: &str = ".part";

/// Folders of the store.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    root: Arc<Path>,
}

impl Folder {
    /// Creates what is missing. The database flushes the names of its own files.
    pub(crate) fn create(root: &Path) -> io::Result<Self> {
        let folder = Self { root: root.into() };
        for path in [root.to_owned(), folder.files(), folder.results()] {
            DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        }
        flush(root)?;
        if let Some(parent) = root.parent() {
            flush(parent)?;
        }
        Ok(folder)
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.root.join("jobs.db")
    }

    fn files(&self) -> PathBuf {
        self.root.join("files")
    }

    fn results(&self) -> PathBuf {
        self.root.join("results")
    }

    pub(crate) fn file(&self, id: FileId) -> PathBuf {
        self.files().join(id.to_string())
    }

    pub(crate) fn open(&self, id: FileId) -> Result<File, JobError> {
        File::open(self.file(id)).map_err(JobError::io("open the file"))
    }

    pub(crate) fn size(&self, id: FileId) -> io::Result<u64> {
        Ok(fs::metadata(self.file(id))?.len())
    }

    /// Opens a batch's file of results for writing. A new one is there after a power failure, too.
    pub(crate) fn open_results(&self, id: BatchId) -> io::Result<File> {
        let path = self.results().join(id.to_string());
        let is_new = !path.try_exists()?;
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        if is_new {
            flush(&self.results())?;
        }
        Ok(file)
    }

    /// Opens a batch's file of results for reading, if it has any.
    pub(crate) fn find_results(&self, id: BatchId) -> Result<Option<File>, JobError> {
        match File::open(self.results().join(id.to_string())) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(JobError::io("open the results of a batch")(error)),
        }
    }

    pub(crate) fn remove_file(&self, id: FileId) -> io::Result<()> {
        remove(&self.file(id))
    }

    pub(crate) fn remove_results(&self, id: BatchId) -> io::Result<()> {
        remove(&self.results().join(id.to_string()))
    }

    /// Removes every file that nothing refers to.
    pub(crate) fn sweep(
        &self,
        is_file: impl Fn(FileId) -> bool,
        has_results: impl Fn(BatchId) -> bool,
    ) -> io::Result<()> {
        for entry in fs::read_dir(self.files())? {
            let entry = entry?;
            if !entry.file_name().to_str().and_then(FileId::parse).is_some_and(&is_file) {
                remove(&entry.path())?;
            }
        }
        for entry in fs::read_dir(self.results())? {
            let entry = entry?;
            if !entry.file_name().to_str().and_then(BatchId::parse).is_some_and(&has_results) {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }
}

fn flush(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// A file that is gone already is no failure: a step that is repeated removes twice.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Content of a file, open to be read. It counts for its owner until it is dropped.
#[derive(Debug)]
pub struct Content {
    file: File,
    _permit: Permit,
}

impl Content {
    pub(crate) fn new(file: File, permit: Permit) -> Self {
        Self { file, _permit: permit }
    }
}

impl Read for Content {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read(buffer)
    }
}

/// File that is being written; removed if it is dropped before [`Part::keep`].
#[derive(Debug)]
pub(crate) struct Part {
    folder: Folder,
    id: FileId,
    file: File,
    kept: bool,
}

impl Part {
    pub(crate) fn create(folder: &Folder) -> Result<Self, JobError> {
        let id = FileId::new();
        let path = unfinished(folder, id);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(JobError::io("create a file"))?;
        Ok(Self { folder: folder.clone(), id, file, kept: false })
    }

    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    /// Puts the file on the disk under its name.
    pub(crate) fn keep(mut self) -> Result<(), JobError> {
        let put = || {
            self.file.sync_all()?;
            fs::rename(unfinished(&self.folder, self.id), self.folder.file(self.id))?;
            flush(&self.folder.files())
        };
        put().map_err(JobError::io("write a file"))?;
        self.kept = true;
        Ok(())
    }
}

impl Write for Part {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.kept {
            let _ = remove(&unfinished(&self.folder, self.id)); // else the next start sweeps it away
        }
    }
}

fn unfinished(folder: &Folder, id: FileId) -> PathBuf {
    folder.files().join(format!("{id}{UNFINISHED}"))
}

#[test]
fn unfinished_and_forgotten_files_go() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::create(&dir.path().join("a/jobs")).unwrap();
    let names = || {
        let entries = fs::read_dir(folder.files()).unwrap().chain(fs::read_dir(folder.results()).unwrap());
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    drop(Part::create(&folder).unwrap());
    assert_eq!(names(), [""; 0]);

    let (mut kept, forgotten, left) =
        (Part::create(&folder).unwrap(), Part::create(&folder).unwrap(), Part::create(&folder).unwrap());
    kept.write_all(b"text").unwrap();
    let id = kept.id();
    kept.keep().unwrap();
    forgotten.keep().unwrap();
    std::mem::forget(left);
    let batch = BatchId::new();
    folder.open_results(batch).unwrap();
    folder.open_results(BatchId::new()).unwrap();
    folder.sweep(|file| file == id, |results| results == batch).unwrap();
    assert_eq!(names(), [id.to_string(), batch.to_string()]);
    assert_eq!(fs::read(folder.file(id)).unwrap(), b"text");
    folder.remove_file(id).unwrap();
    folder.remove_file(id).unwrap();
}
