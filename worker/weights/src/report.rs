//! Reports of the downloader: lines on its standard output, and the list of fetched files that it leaves.
//!
//! The downloader talks to foreign servers: the launcher bounds and checks all of it.

use crate::digest::Digest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::Path;

/// Name of the list of fetched files in the downloader's folder.
pub const FETCHED: &str = "fetched.json";
/// Files that one source may have. The downloader has two descriptors open for each, of 16,384.
pub const MOST_FILES: usize = 8_000;

/// Line of the downloader, JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "kebab-case")]
pub enum Report {
    /// The source has been asked what there is.
    Listed {
        /// Bytes of all files.
        total: u64,
        /// Bytes of those that the node does not have.
        missing: u64,
    },
    /// Progress, once a second at most.
    Fetched {
        /// Bytes of all files that are on the disk.
        done: u64,
    },
    /// Something for the model's log.
    Note {
        /// Text of one line.
        text: String,
    },
    /// The last line of a downloader that gives up.
    Failed {
        /// Message: the reason, and what to do.
        message: String,
        /// Trying again leads to the same.
        permanent: bool,
    },
}

impl Report {
    /// Reads a line; `None` for one that is no report.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }
}

/// Files of a source, all of them on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetched {
    /// The files.
    pub files: Vec<FetchedFile>,
}

/// File of a source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchedFile {
    /// Path below the folder of weights.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// Digest of the content.
    pub sha256: Digest,
    /// True if the digest was given beforehand, by the manifest or the hub, and the content has it.
    pub verified: bool,
    /// Validator of the server, where it gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// Number of the file in the downloader's folder; `None` for one that the node had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<u32>,
}

impl FetchedFile {
    /// Name of its file in the downloader's folder.
    #[must_use]
    pub fn part_name(part: u32) -> String {
        format!("{part}.part")
    }
}

/// Finds a path that is a folder of another one, and that other: no folder can have both.
#[must_use]
pub fn nested<'a>(paths: &BTreeSet<&'a str>) -> Option<(&'a str, &'a str)> {
    paths.iter().find_map(|path| {
        let mut folders = Path::new(path).ancestors().skip(1).filter_map(Path::to_str);
        folders.find_map(|folder| paths.get(folder)).map(|folder| (*folder, *path))
    })
}
