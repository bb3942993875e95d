//! `[batching]`: requests that one call of the handler serves together.
//!
//! Read by [`super::Manifest::parse`]; applied by the scheduler.

use serde::Serialize;

use crate::kind::{boolean, choice, number};
use crate::reader::Section;

/// Largest batch.
const MOST: u32 = 1 << 20;
/// Most requests of a batch, however little they cost.
const MOST_REQUESTS: u32 = 1024;

/// `[batching]`: how large batches are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Batching {
    /// Largest batch, in units of `cost`; 1: the handler gets single requests.
    pub max: u32,
    /// Unit of a batch's size.
    pub cost: Cost,
    /// A batch whose handler raised is divided and tried again, so that the request at fault fails alone.
    pub isolate: bool,
}

impl Default for Batching {
    fn default() -> Self {
        Self { max: 1, cost: Cost::Requests, isolate: false }
    }
}

impl Batching {
    /// Largest batch as `(requests, cost)`; `None`: the handler gets single requests.
    #[must_use]
    pub fn bounds(&self) -> Option<(u32, u64)> {
        (self.max > 1).then(|| (self.max.min(MOST_REQUESTS), self.max.into())) // a request costs 1 at least
    }

    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let default = Self::default();
        let costs = [("requests", Cost::Requests), ("inputs", Cost::Inputs), ("tokens", Cost::Tokens)];
        Self {
            max: section.get("max", number(1..=MOST), default.max),
            cost: section.get("cost", choice(&costs), default.cost),
            isolate: section.get("isolate", boolean, default.isolate),
        }
    }
}

/// Unit of a batch's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cost {
    /// Requests.
    #[default]
    Requests,
    /// Inputs of a request: texts to embed, documents to rank.
    Inputs,
    /// Tokens of the input; of text, one for four bytes.
    Tokens,
}
