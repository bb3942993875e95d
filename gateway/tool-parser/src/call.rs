//! A call that is decided as a whole.

/// A call whose whole text is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WholeCall {
    pub(crate) name: String,
    pub(crate) id: Option<String>,
    /// JSON, or the text of a string in which the model has put it.
    pub(crate) arguments: String,
}
