//! The models that a node serves, by its command line: those of a folder, or a single one.
//!
//! Called by the scheduler and by the launcher, which must agree. Invariant: the name of a single model's directory is
//! a valid model name.

use std::path::{Path, PathBuf};

use crate::name::{ModelName, NameError};

/// Which models a node serves. Paths are as they were given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Models {
    /// All below this folder, as they come and go.
    Folder(PathBuf),
    /// A single model, whose failure is the node's.
    Single(SingleModel),
}

/// The only model of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SingleModel {
    /// The model's directory.
    pub dir: PathBuf,
    /// The directory's name.
    pub name: ModelName,
}

/// A directory's name cannot be a model's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`--model {}`: the directory's name is the model's, and this one cannot be", dir.display())]
pub struct NoSingleModel {
    /// The directory.
    pub dir: PathBuf,
    /// Why not.
    pub source: NameError,
}

impl Models {
    /// The folder, or the only model's directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Folder(folder) => folder,
            Self::Single(single) => &single.dir,
        }
    }

    /// The only model, where there is only one.
    #[must_use]
    pub const fn single(&self) -> Option<&SingleModel> {
        match self {
            Self::Folder(_) => None,
            Self::Single(single) => Some(single),
        }
    }
}

impl SingleModel {
    /// The model in `dir`, an absolute path: `.` has no name.
    ///
    /// # Errors
    /// The directory's name is no model's.
    pub fn new(dir: PathBuf) -> Result<Self, NoSingleModel> {
        let name = Path::new(dir.file_name().unwrap_or_default());
        match ModelName::from_path(name) {
            Ok(name) => Ok(Self { dir, name }),
            Err(source) => Err(NoSingleModel { dir, source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_model_has_its_directorys_name() {
        for (dir, name) in [("/srv/models/cowsay", "cowsay"), ("/srv/@cf/meta/llama/", "llama"), ("/x/@cf", "@cf")] {
            assert_eq!(SingleModel::new(dir.into()).map(|single| single.name), Ok(name.parse().unwrap()), "{dir}");
        }
        for (dir, why) in [
            ("/", NameError::Empty),
            ("/srv/..", NameError::Empty),
            ("/srv/bad name", NameError::Character),
            ("/srv/.new", NameError::Dots),
        ] {
            assert_eq!(SingleModel::new(dir.into()).map_err(|error| error.source), Err(why), "{dir}");
        }
    }
}
