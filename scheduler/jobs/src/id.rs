//! Identifiers of files and batches: UUIDs of version 7, in the forms of the APIs.

use std::fmt;
use uuid::Uuid;

/// Identifier of a file: `file-` and 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(Uuid);

/// Identifier of a batch: `batch_` and 32 hexadecimal digits; as a Workers AI `request_id`, a UUID with hyphens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(Uuid);

impl FileId {
    pub(crate) fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// Reads the form that is displayed.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        simple(text.strip_prefix("file-")?).map(Self)
    }

    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    pub(crate) fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

impl BatchId {
    pub(crate) fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// Reads either form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let uuid = match text.strip_prefix("batch_") {
            Some(digits) => simple(digits),
            None if text.len() == 36 => Uuid::try_parse(text).ok(),
            None => None,
        };
        uuid.map(Self)
    }

    /// Form with hyphens, the `request_id` of Workers AI.
    #[must_use]
    pub fn request_id(&self) -> String {
        self.0.hyphenated().to_string()
    }

    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    pub(crate) fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file-{}", self.0.simple())
    }
}

impl fmt::Display for BatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "batch_{}", self.0.simple())
    }
}

/// Exactly 32 hexadecimal digits: the other forms that the library reads would give one file many names.
fn simple(digits: &str) -> Option<Uuid> {
    (digits.len() == 32).then(|| Uuid::try_parse(digits).ok()).flatten()
}

#[test]
fn both_forms_are_read_and_nothing_else() {
    let (file, batch) = (FileId::new(), BatchId::new());
    assert_eq!(FileId::parse(&file.to_string()), Some(file));
    assert_eq!(BatchId::parse(&batch.to_string()), Some(batch));
    assert_eq!(BatchId::parse(&batch.request_id()), Some(batch));
    let hyphens = batch.request_id();
    for bad in ["", "file-", "batch_", "file-../../etc/passwd", "file-{}", &format!("file-{hyphens}"), "batch_zz"] {
        assert_eq!((FileId::parse(bad), BatchId::parse(bad)), (None, None), "{bad}");
    }
}
