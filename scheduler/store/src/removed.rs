//! Retention of removed models: their history is kept for a while, in case the directory comes back.
//!
//! A directory that is moved away and put back, or replaced by `rm` and `cp`, looks like a removal to the watcher of the
//! folder. Ages count the time in which a scheduler ran: the time of day jumps, and a jump would erase a history that is
//! about to be needed.

use super::PersistedState;
use omni_config::name::ModelName;
use std::collections::BTreeMap;
use std::time::Duration;

/// Retention after a removal.
const RETENTION: Duration = Duration::from_hours(24);
/// Interval at which ages are persisted. A scheduler that ends sooner loses the rest, and the model is kept for longer.
const PERSIST_EVERY: Duration = Duration::from_hours(1);
/// Most removed models that are kept: those that were removed last.
const MAX_REMOVED: usize = 100;

/// Advances the ages of removed models. Returns the models whose age is to be persisted. Pure.
#[must_use]
pub fn age_removed(known: &mut BTreeMap<ModelName, PersistedState>, passed: Duration) -> Vec<ModelName> {
    let passed = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
    let hours = |ms: u64| Duration::from_millis(ms).as_secs() / PERSIST_EVERY.as_secs();
    let mut to_write = Vec::new();
    for (name, state) in known {
        let Some(before) = state.removed_for_ms else { continue };
        let now = before.saturating_add(passed);
        state.removed_for_ms = Some(now);
        if hours(now) > hours(before) {
            to_write.push(name.clone());
        }
    }
    to_write
}

/// Removed models whose retention is over. Pure.
#[must_use]
pub fn expired(known: &BTreeMap<ModelName, PersistedState>) -> Vec<ModelName> {
    let removed = known.iter().filter_map(|(name, state)| Some((state.removed_for_ms?, name)));
    let mut newest_first: Vec<_> = removed.collect();
    newest_first.sort_by_key(|(age, _)| *age);
    let ranked = newest_first.into_iter().enumerate();
    let is_over = |rank: usize, age: u64| rank >= MAX_REMOVED || Duration::from_millis(age) >= RETENTION;
    ranked.filter(|(rank, (age, _))| is_over(*rank, *age)).map(|(_, (_, name))| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(removed: &[(&str, Option<u64>)]) -> BTreeMap<ModelName, PersistedState> {
        let state = |age: &Option<u64>| PersistedState { removed_for_ms: *age, ..PersistedState::default() };
        removed.iter().map(|(name, age)| (name.parse().unwrap(), state(age))).collect()
    }

    #[test]
    fn a_model_expires_a_day_after_its_removal() {
        let mut known = known(&[("lives", None), ("old", Some(1)), ("young", Some(0))]);
        let _ = age_removed(&mut known, RETENTION - Duration::from_millis(2));
        assert!(expired(&known).is_empty());
        let _ = age_removed(&mut known, Duration::from_millis(1));
        assert_eq!(expired(&known), ["old".parse().unwrap()]);
        let _ = age_removed(&mut known, Duration::from_millis(1));
        assert_eq!(expired(&known).len(), 2);
        let _ = age_removed(&mut known, Duration::MAX);
        assert_eq!(expired(&known).len(), 2, "existing models do not age");
    }

    #[test]
    fn an_age_is_persisted_every_hour() {
        let mut known = known(&[("a", Some(0)), ("b", Some(60_000)), ("lives", None)]);
        assert!(age_removed(&mut known, Duration::from_mins(58)).is_empty());
        assert_eq!(age_removed(&mut known, Duration::from_mins(1)), ["b".parse().unwrap()]);
        assert_eq!(age_removed(&mut known, Duration::from_mins(1)), ["a".parse().unwrap()]);
        assert_eq!(age_removed(&mut known, Duration::from_mins(120)).len(), 2);
    }

    #[test]
    fn the_number_of_removed_models_is_bounded() {
        let names: Vec<_> = (0..MAX_REMOVED + 2).map(|number| format!("m{number}")).collect();
        let removed: Vec<_> = names.iter().zip(1..).map(|(name, age)| (name.as_str(), Some(1000 - age))).collect();
        let mut expired = expired(&known(&removed));
        expired.sort();
        assert_eq!(expired, ["m0".parse().unwrap(), "m1".parse().unwrap()], "those that were removed first");
    }

    #[test]
    fn an_unknown_field_of_an_older_file_starts_the_age_anew() {
        let text = r#"{"removed_unix_ms": 1, "history": [{"snapshot": "SNAPSHOT", "first_ready_unix_ms": 1}]}"#;
        let state: PersistedState = serde_json::from_str(&text.replace("SNAPSHOT", &"0".repeat(64))).unwrap();
        let removed = state.after_removal().unwrap();
        assert_eq!((removed.removed_for_ms, removed.history.len()), (Some(0), 1));
        assert_eq!(
            PersistedState { removed_for_ms: Some(7), ..removed }.after_removal().unwrap().removed_for_ms,
            Some(7)
        );
    }
}
