//! Agreement on the version of a protocol.
//!
//! Workers, launcher and schedulers are upgraded one after the other, so for a while they are of two releases. A
//! release supports its own version of each protocol and that of the release before. The greeting names both; the other
//! side uses the newest that both support, and ends the connection when there is none.

/// Versions of a protocol that one side supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// The first one.
    pub oldest: u32,
    /// The last one.
    pub newest: u32,
}

impl Versions {
    /// Versions in a greeting: the newest, and the oldest if it names one.
    #[must_use]
    pub fn greeted(newest: u32, oldest: Option<u32>) -> Self {
        Self { oldest: oldest.unwrap_or(newest), newest }
    }

    /// Newest version that both support; `None` when there is none.
    #[must_use]
    pub fn common(self, other: Self) -> Option<u32> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest && newest >= other.oldest).then_some(newest)
    }

    /// Tests that this side supports a version.
    #[must_use]
    pub fn supports(self, version: u32) -> bool {
        (self.oldest..=self.newest).contains(&version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_version_is_agreed_on() {
        let ours = Versions { oldest: 3, newest: 4 };
        for (newest, oldest, common) in [
            (4, Some(3), Some(4)),
            (3, Some(2), Some(3)),
            (3, None, Some(3)),
            (5, Some(4), Some(4)),
            (2, None, None),
            (2, Some(1), None),
            (5, None, None),
            (6, Some(5), None),
            (4, Some(9), None),
        ] {
            let theirs = Versions::greeted(newest, oldest);
            assert_eq!((ours.common(theirs), theirs.common(ours)), (common, common), "{theirs:?}");
        }
        assert_eq!([2, 3, 4, 5].map(|version| ours.supports(version)), [false, true, true, false]);
    }
}
