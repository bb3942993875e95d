//! Which of an author's large files had which content: `<store>/.sources/<model>`, of the model's last snapshot.
//!
//! So a file that has not changed is neither read nor hashed again, also by the next launcher. It is known by device,
//! inode, size and both times ([`Identity`]), and only if its last change was long enough ago when it was read that another
//! one would show. A model's list is used for this model alone, and no list outlasts a boot: a file system that says of its
//! files what it likes can mislead about the model only that is on it.

use crate::digest::hex;
use crate::tree::Identity;
use omni_node_protocol::id::SnapshotDigest;
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// From this size on, the launcher remembers which file had which content, and looks before it copies.
pub(crate) const LARGE: u64 = 1 << 20;

/// Known files of one model.
#[derive(Debug)]
pub(crate) struct Sources {
    file: PathBuf,
    known: HashMap<Identity, [u8; 32]>,
    /// Files found by this look.
    seen: HashMap<Identity, [u8; 32]>,
}

impl Sources {
    /// Reads the list of the model at this path; one that cannot be read is as good as none.
    pub(crate) fn read(dir: &Path, model: &Path) -> Self {
        let file = dir.join(hex(&Sha256::digest(model.as_os_str().as_bytes())));
        let text = fs::read_to_string(&file).unwrap_or_default();
        Self { file, known: text.lines().skip(1).filter_map(parse).collect(), seen: HashMap::new() }
    }

    pub(crate) fn known(&mut self, of: &Identity) -> Option<[u8; 32]> {
        let sha256 = *self.known.get(of)?;
        self.seen.insert(*of, sha256);
        Some(sha256)
    }

    pub(crate) fn learn(&mut self, of: Identity, sha256: [u8; 32]) {
        if of.size >= LARGE {
            self.seen.insert(of, sha256);
        }
    }

    /// Tests that a file need not be read.
    pub(crate) fn has(&self, of: &Identity) -> bool {
        self.known.contains_key(of)
    }

    /// Writes the list of what was seen, for the snapshot that was made of it. It is not flushed: it ends with this boot.
    pub(crate) fn write(&self, snapshot: &SnapshotDigest) -> io::Result<()> {
        if self.seen.is_empty() {
            return match fs::remove_file(&self.file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                Ok(()) | Err(_) => Ok(()),
            };
        }
        let mut text = format!("{snapshot}\n");
        for (Identity { device, inode, size, mtime, ctime }, sha256) in &self.seen {
            let (m, c) = (format!("{} {}", mtime.0, mtime.1), format!("{} {}", ctime.0, ctime.1));
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{device} {inode} {size} {m} {c} {}", hex(sha256));
        }
        fs::create_dir_all(self.file.parent().unwrap_or(&self.file))?;
        let fresh = self.file.with_extension("fresh");
        fs::write(&fresh, text)?;
        fs::rename(&fresh, &self.file)
    }
}

/// Removes the lists of snapshots that are gone.
pub(crate) fn forget(dir: &Path, gone: &[SnapshotDigest]) -> io::Result<()> {
    let gone: BTreeSet<&str> = gone.iter().map(SnapshotDigest::as_str).collect();
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        let mut first = String::new();
        match fs::File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue, // the next one has taken its place
            file => file?.take(64).read_to_string(&mut first)?,
        };
        if gone.contains(first.as_str()) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

fn parse(line: &str) -> Option<(Identity, [u8; 32])> {
    let mut words = line.split(' ');
    let mut unsigned = || words.next()?.parse::<u64>().ok();
    let (device, inode, size) = (unsigned()?, unsigned()?, unsigned()?);
    let mut signed = || words.next()?.parse::<i64>().ok();
    let (mtime, ctime) = ((signed()?, signed()?), (signed()?, signed()?));
    let sha256 = words.next().filter(|hex| hex.len() == 64)?;
    let mut bytes = [0; 32];
    for (number, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(sha256.get(number * 2..number * 2 + 2)?, 16).ok()?;
    }
    Some((Identity { device, inode, size, mtime, ctime }, bytes))
}
