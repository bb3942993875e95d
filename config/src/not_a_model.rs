//! Reasons why a directory with a `model.py` is not a model, worded once for the node and for `omnictl check`.

use crate::name::NameError;

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
