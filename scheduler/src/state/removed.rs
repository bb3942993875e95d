//! Models whose directories were removed: their versions can be come back to for a while, should the directory come back.
//!
//! A directory that is moved away and put back, or replaced by `rm` and `cp`, is a removal to whoever watches the folder.

use super::Lasting;
use omni_config::name::ModelName;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

/// So long after its removal a model is remembered.
const FOR: Duration = Duration::from_hours(24);
/// So many at most: those that were removed last.
const MOST: usize = 100;

/// Those of `known` that need not be remembered any longer. Pure.
#[must_use]
pub fn expired(known: &BTreeMap<ModelName, Lasting>, unix_ms: u64) -> Vec<ModelName> {
    let removed = known.iter().filter_map(|(name, lasting)| Some((lasting.removed_unix_ms?, name)));
    let mut newest_first: Vec<_> = removed.collect();
    newest_first.sort_by_key(|(at, _)| Reverse(*at));
    let is_old = |at: u64| Duration::from_millis(unix_ms.saturating_sub(at)) >= FOR;
    let ranked = newest_first.into_iter().enumerate();
    ranked.filter(|(rank, (at, _))| *rank >= MOST || is_old(*at)).map(|(_, (_, name))| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(removed: &[(&str, Option<u64>)]) -> BTreeMap<ModelName, Lasting> {
        let lasting = |at: &Option<u64>| Lasting { removed_unix_ms: *at, ..Lasting::default() };
        removed.iter().map(|(name, at)| (name.parse().unwrap(), lasting(at))).collect()
    }

    #[test]
    fn who_was_removed_a_day_ago_is_forgotten() {
        let day = 24 * 60 * 60 * 1000;
        let known = known(&[("lives", None), ("old", Some(1)), ("young", Some(2))]);
        assert!(expired(&known, day).is_empty());
        assert_eq!(expired(&known, day + 1), ["old".parse().unwrap()]);
        assert_eq!(expired(&known, day + 2).len(), 2);
        assert!(expired(&known, 0).is_empty(), "a clock that was set back forgets nobody");
    }

    #[test]
    fn only_so_many_are_remembered() {
        let names: Vec<_> = (0..MOST + 2).map(|number| format!("m{number}")).collect();
        let removed: Vec<_> = names.iter().zip(1..).map(|(name, at)| (name.as_str(), Some(at))).collect();
        let mut expired = expired(&known(&removed), 1000);
        expired.sort();
        assert_eq!(expired, ["m0".parse().unwrap(), "m1".parse().unwrap()], "those that were removed first");
    }
}
