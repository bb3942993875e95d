//! Models whose directories were removed: their versions can be come back to for a while, should the directory come back.
//!
//! A directory that is moved away and put back, or replaced by `rm` and `cp`, is a removal to whoever watches the folder.
//! What counts is time in which a scheduler ran: the time of day jumps, and a jump would erase what somebody is about to
//! come back to.

use super::Lasting;
use omni_config::name::ModelName;
use std::collections::BTreeMap;
use std::time::Duration;

/// So long after its removal a model is remembered.
const FOR: Duration = Duration::from_hours(24);
/// How often its age is written down. A scheduler that ends before forgets what is less, and the model is kept for longer.
const WRITTEN: Duration = Duration::from_hours(1);
/// So many at most: those that were removed last.
const MOST: usize = 100;

/// Those that were removed grow older. Returns those whose age is to be written down. Pure.
#[must_use]
pub fn age(known: &mut BTreeMap<ModelName, Lasting>, passed: Duration) -> Vec<ModelName> {
    let passed = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
    let hours = |ms: u64| Duration::from_millis(ms).as_secs() / WRITTEN.as_secs();
    let mut to_write = Vec::new();
    for (name, lasting) in known {
        let Some(before) = lasting.removed_for_ms else { continue };
        let now = before.saturating_add(passed);
        lasting.removed_for_ms = Some(now);
        if hours(now) > hours(before) {
            to_write.push(name.clone());
        }
    }
    to_write
}

/// Those of `known` that need not be remembered any longer. Pure.
#[must_use]
pub fn expired(known: &BTreeMap<ModelName, Lasting>) -> Vec<ModelName> {
    let removed = known.iter().filter_map(|(name, lasting)| Some((lasting.removed_for_ms?, name)));
    let mut newest_first: Vec<_> = removed.collect();
    newest_first.sort_by_key(|(age, _)| *age);
    let ranked = newest_first.into_iter().enumerate();
    let is_over = |rank: usize, age: u64| rank >= MOST || Duration::from_millis(age) >= FOR;
    ranked.filter(|(rank, (age, _))| is_over(*rank, *age)).map(|(_, (_, name))| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(removed: &[(&str, Option<u64>)]) -> BTreeMap<ModelName, Lasting> {
        let lasting = |age: &Option<u64>| Lasting { removed_for_ms: *age, ..Lasting::default() };
        removed.iter().map(|(name, age)| (name.parse().unwrap(), lasting(age))).collect()
    }

    #[test]
    fn who_was_removed_a_day_ago_is_forgotten() {
        let mut known = known(&[("lives", None), ("old", Some(1)), ("young", Some(0))]);
        let _ = age(&mut known, FOR - Duration::from_millis(2));
        assert!(expired(&known).is_empty());
        let _ = age(&mut known, Duration::from_millis(1));
        assert_eq!(expired(&known), ["old".parse().unwrap()]);
        let _ = age(&mut known, Duration::from_millis(1));
        assert_eq!(expired(&known).len(), 2);
        let _ = age(&mut known, Duration::MAX);
        assert_eq!(expired(&known).len(), 2, "who lives does not age");
    }

    #[test]
    fn an_age_is_written_down_every_hour() {
        let mut known = known(&[("a", Some(0)), ("b", Some(60_000)), ("lives", None)]);
        assert!(age(&mut known, Duration::from_mins(58)).is_empty());
        assert_eq!(age(&mut known, Duration::from_mins(1)), ["b".parse().unwrap()]);
        assert_eq!(age(&mut known, Duration::from_mins(1)), ["a".parse().unwrap()]);
        assert_eq!(age(&mut known, Duration::from_mins(120)).len(), 2);
    }

    #[test]
    fn only_so_many_are_remembered() {
        let names: Vec<_> = (0..MOST + 2).map(|number| format!("m{number}")).collect();
        let removed: Vec<_> = names.iter().zip(1..).map(|(name, age)| (name.as_str(), Some(1000 - age))).collect();
        let mut expired = expired(&known(&removed));
        expired.sort();
        assert_eq!(expired, ["m0".parse().unwrap(), "m1".parse().unwrap()], "those that were removed first");
    }

    #[test]
    fn what_an_earlier_release_wrote_is_removed_anew() {
        let text = r#"{"removed_unix_ms": 1, "history": [{"snapshot": "SNAPSHOT", "first_ready_unix_ms": 1}]}"#;
        let lasting: Lasting = serde_json::from_str(&text.replace("SNAPSHOT", &"0".repeat(64))).unwrap();
        let removed = lasting.removed().unwrap();
        assert_eq!((removed.removed_for_ms, removed.history.len()), (Some(0), 1));
        assert_eq!(Lasting { removed_for_ms: Some(7), ..removed }.removed().unwrap().removed_for_ms, Some(7));
    }
}
