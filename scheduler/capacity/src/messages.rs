//! Texts of refusals. Pure.

use super::settings::shown;
use omni_policy::capacity::Shortage;

/// Text for a full node: what is free, what idle instances could give up, why the other idle ones stay.
pub(super) fn shortage(need: &str, shortage: &Shortage) -> String {
    let Shortage { resource, free, idle, kept, recent, .. } = *shortage;
    let room = match idle {
        0 => "no instance is idle that could make room".to_owned(),
        _ => format!("the idle instances that could make room have only {}", shown(resource, idle)),
    };
    format!("the node is full: {need}, {} are free, and {room}{}", shown(resource, free), retained(kept, recent))
}

/// Reason why idle instances are kept, in brackets; empty where there are none.
pub fn retained(kept: usize, recent: usize) -> String {
    let kept = (kept > 0).then(|| format!("{kept} idle kept by `min-instances`"));
    let recent = (recent > 0).then(|| format!("{recent} in use a moment ago"));
    let stay: Vec<String> = kept.into_iter().chain(recent).collect();
    if stay.is_empty() { String::new() } else { format!(" ({})", stay.join(", ")) }
}
