//! Sets of weights that go when there is no room for others: the least recently used first, never one in use. Pure.

use crate::digest::Digest;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A complete set of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSet {
    /// Name of the set.
    pub id: Digest,
    /// Contents and sizes of its files; equal contents once.
    pub files: BTreeMap<Digest, u64>,
    /// Time of its last use, since any moment that is the same for all.
    pub used: Duration,
    /// An instance runs with it, or is about to.
    pub in_use: bool,
}

/// There is no room, whatever goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the weights need {needed} bytes, and the node's cache of weights has {free} of {most} that are not in use: raise \
     `cache` in [weights] of the node's configuration, or stop other models with weights"
)]
pub struct Shortage {
    /// Bytes that are needed.
    pub needed: u64,
    /// Bytes that no set in use has.
    pub free: u64,
    /// Size of the cache.
    pub most: u64,
}

/// Chooses the sets that go, so that `needed` further bytes fit into `most`. A content that a set which stays has too takes
/// no room again and frees none.
pub(crate) fn evict(mut sets: Vec<StoredSet>, needed: u64, most: u64) -> Result<Vec<Digest>, Shortage> {
    let mut evicted = Vec::new();
    while bytes(&sets).saturating_add(needed) > most {
        let idle = sets.iter().enumerate().filter(|(_, set)| !set.in_use);
        let Some((oldest, _)) = idle.min_by(|(_, one), (_, other)| (one.used, &one.id).cmp(&(other.used, &other.id)))
        else {
            return Err(Shortage { needed, free: most.saturating_sub(bytes(&sets)), most });
        };
        evicted.push(sets.swap_remove(oldest).id);
    }
    Ok(evicted)
}

/// Bytes of all contents, each once.
pub(crate) fn bytes(sets: &[StoredSet]) -> u64 {
    let mut seen = BTreeSet::new();
    let all = sets.iter().flat_map(|set| &set.files);
    all.filter(|(content, _)| seen.insert(*content)).map(|(_, size)| *size).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn digest(number: u64) -> Digest {
        Digest::parse(&format!("{number:064x}")).unwrap()
    }

    fn set(id: u64, used: u64, in_use: bool, files: &[(u64, u64)]) -> StoredSet {
        let files = files.iter().map(|(content, size)| (digest(*content), *size)).collect();
        StoredSet { id: digest(id), files, used: Duration::from_secs(used), in_use }
    }

    #[test]
    #[allow(clippy::type_complexity, reason = "a table: needed, most, what goes or how much is free")]
    fn the_least_recently_used_go_first_and_none_in_use() {
        let sets = || {
            vec![
                set(1, 30, false, &[(10, 40)]),
                set(2, 10, true, &[(11, 30)]),
                set(3, 20, false, &[(12, 20)]),
                set(4, 40, false, &[(13, 10)]),
            ]
        };
        let table: &[(u64, u64, Result<&[u64], u64>)] = &[
            (0, 100, Ok(&[])),
            (10, 100, Ok(&[3])),
            (20, 100, Ok(&[3])),
            (21, 100, Ok(&[3, 1])),
            (70, 100, Ok(&[3, 1, 4])),
            (71, 100, Err(70)),
            (u64::MAX, 100, Err(70)),
            (0, 20, Err(0)),
        ];
        for (needed, most, expected) in table {
            let result = evict(sets(), *needed, *most);
            let expected = match expected {
                Ok(ids) => Ok(ids.iter().copied().map(digest).collect()),
                Err(free) => Err(Shortage { needed: *needed, free: *free, most: *most }),
            };
            assert_eq!(result, expected, "{needed} of {most}");
        }
    }

    #[test]
    fn a_shared_content_counts_once_and_is_freed_with_its_last_set() {
        let shared = vec![
            set(1, 1, false, &[(10, 50), (11, 1)]),
            set(2, 2, false, &[(10, 50), (12, 1)]),
            set(3, 3, true, &[(13, 10)]),
        ];
        assert_eq!(bytes(&shared), 62);
        assert_eq!(evict(shared.clone(), 38, 100), Ok(vec![]));
        assert_eq!(evict(shared.clone(), 39, 100), Ok(vec![digest(1)]));
        assert_eq!(evict(shared, 40, 100), Ok(vec![digest(1), digest(2)]));
    }

    proptest! {
        #[test]
        fn what_is_needed_fits_afterwards_and_nothing_in_use_goes(
            sets in proptest::collection::vec(
                (any::<bool>(), 0_u64..5, proptest::collection::vec((0_u64..6, 1_u64..2), 0..4)), 0..8),
            needed in 0_u64..12,
            most in 0_u64..12,
        ) {
            let sets: Vec<_> = sets.into_iter().enumerate()
                .map(|(id, (in_use, used, files))| set(id as u64, used, in_use, &files)).collect();
            let stays = |evicted: &[Digest]| -> Vec<StoredSet> {
                sets.iter().filter(|set| !evicted.contains(&set.id)).cloned().collect()
            };
            match evict(sets.clone(), needed, most) {
                Ok(evicted) => {
                    prop_assert!(bytes(&stays(&evicted)) + needed <= most);
                    prop_assert!(sets.iter().all(|set| !set.in_use || !evicted.contains(&set.id)));
                }
                Err(_) => {
                    let used: Vec<_> = sets.iter().filter(|set| set.in_use).cloned().collect();
                    prop_assert!(bytes(&used) + needed > most);
                }
            }
        }
    }
}
