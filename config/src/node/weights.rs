//! `[weights]` of the node's configuration: folders that models may have their weights in.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::kind::absolute_path;
use crate::reader::Section;

/// `[weights]`: folders that models may have their weights in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Weights {
    /// Absolute paths; each grants itself and what is beneath it.
    pub folders: Vec<PathBuf>,
}

impl Weights {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Self { folders: section.list("folders", absolute_path) }
    }

    /// The listed folder that `path` is in, and the rest of the path beneath it. Of several the outermost: what links in it
    /// lead to is granted too.
    #[must_use]
    pub fn granted<'a>(&'a self, path: &'a Path) -> Option<(&'a Path, &'a Path)> {
        let within = self.folders.iter().filter_map(|folder| Some((folder.as_path(), path.strip_prefix(folder).ok()?)));
        within.min_by_key(|(folder, _)| folder.components().count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listed_folder_grants_what_is_beneath_it_and_nothing_else() {
        let weights =
            Weights { folders: ["/srv/weights", "/mnt/models/inner", "/mnt/models/"].map(PathBuf::from).into() };
        let table = [
            ("/srv/weights", Some(("/srv/weights", ""))),
            ("/srv/weights/llama/8b", Some(("/srv/weights", "llama/8b"))),
            ("/mnt/models/x", Some(("/mnt/models/", "x"))),
            ("/mnt/models/inner/x", Some(("/mnt/models/", "inner/x"))),
            ("/srv/weights2", None),
            ("/srv", None),
            ("/", None),
        ];
        for (path, expected) in table {
            let granted = weights.granted(Path::new(path));
            assert_eq!(granted, expected.map(|(folder, rest)| (Path::new(folder), Path::new(rest))), "{path}");
        }
    }
}
