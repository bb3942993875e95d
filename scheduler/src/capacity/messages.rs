//! Refusals in words. Pure.

use super::settings::shown;
use crate::policy::capacity::Shortage;

/// A full node in words: what is free, what idle instances could give up, and why the other idle ones stay.
pub(super) fn shortage(describe_need: &str, shortage: &Shortage) -> String {
    let Shortage { resource, free, idle, kept, recent, .. } = *shortage;
    let from = match idle {
        0 => "no instance is idle that could make from".to_owned(),
        _ => format!("the idle instances that could make from have only {}", shown(resource, idle)),
    };
    format!(
        "the node is full: {describe_need}, {} are free, and {from}{}",
        shown(resource, free),
        retained(kept, recent)
    )
}

/// Why idle instances do not make room, in brackets; nothing where there are none.
pub fn retained(kept: usize, recent: usize) -> String {
    let kept = (kept > 0).then(|| format!("{kept} idle kept by `min-instances`"));
    let recent = (recent > 0).then(|| format!("{recent} in use a moment ago"));
    let stay: Vec<String> = kept.into_iter().chain(recent).collect();
    if stay.is_empty() { String::new() } else { format!(" ({})", stay.join(", ")) }
}
