//! Names in a store's directory beside those of its snapshots, which are their digests.

/// Beginning of the names of what no process has completed: it goes when the store is next opened.
pub(crate) const TEMPORARY: &str = ".tmp-";
/// Beginning of the names of snapshots that are being removed.
pub(crate) const RETIRED: &str = ".tmp-retired-";
/// Beginning of the names of copies that are being made, of all processes.
pub(crate) const COPY: &str = ".tmp-copy-";
/// The boot in which the store was last opened.
pub(crate) const BOOT: &str = ".boot";
/// Folder of the files of all snapshots.
pub(crate) const FILES: &str = ".files";
/// Folder of the lists of authors' files that were read in this boot.
pub(crate) const SOURCES: &str = ".sources";
