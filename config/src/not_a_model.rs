//! Files by which a directory is a model, and reasons why one with such a file is not: once for the node and for `omnictl`.

use crate::name::NameError;

/// Files by which a directory is a model's: its program, or the manifest, which is enough for a server that a command starts.
pub const MODEL_FILES: [&str; 2] = ["model.py", "omni.toml"];

/// A directory that is not served for its place or its name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAModel {
    /// Path that is no name.
    #[error("the directory's path cannot be a model's name: {0}")]
    Name(NameError),
    /// Link to a directory.
    #[error("the model's directory is a symbolic link: put the directory itself here, by renaming it into place")]
    Link,
    /// Directory inside another model.
    #[error("it is inside the model `{0}` and part of it: move it out to have it served by itself")]
    Inside(String),
    /// Path with more parts than a name has.
    #[error("its path has more than four parts, which a model's name cannot have: move it up")]
    Deep,
}
