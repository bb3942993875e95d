//! `[cache]`: the lasting cache directories of models.

use crate::kind::size;
use crate::reader::Section;
use crate::size::ByteSize;
use serde::Serialize;

/// `[cache]`: the lasting cache directories of models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Cache {
    /// The largest `[limits] cache` that a manifest may ask for.
    pub per_model: ByteSize,
}

impl Default for Cache {
    fn default() -> Self {
        Self { per_model: ByteSize::from_gib(64 << 10) }
    }
}

impl Cache {
    /// Not less than the manifest's own default, so that a manifest which says nothing is never refused for it.
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let per_model = size(ByteSize::from_gib(1)..=ByteSize::from_gib(64 << 10));
        Self { per_model: section.get("per-model", per_model, Self::default().per_model) }
    }
}
