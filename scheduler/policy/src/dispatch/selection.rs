//! Which instance gets a request: the one with the lowest load, or the home of the request's session.
//!
//! A session's home is found by rendezvous hashing: each enabled route has a weight for each session, and the heaviest
//! wins. When a route is added, only the sessions that it wins move; when one is removed, only its own. The weight
//! depends on the instance's name, not its number: a scheduler that adopts instances numbers them anew, and each
//! session stays.

use super::route::Route;
use crate::InstanceNumber;
use std::num::NonZeroU64;

/// Index of the route for a request; `None` when no route that may be sent to has room. A session's home comes first
/// while it has room, requests sent ahead included; a session never waits for it. Among equals the oldest instance
/// comes first, so that under light load the others become idle and can stop.
pub(super) fn select(
    routes: &[Route],
    session: Option<NonZeroU64>,
    may_send: impl Fn(InstanceNumber) -> bool,
) -> Option<usize> {
    let takes = |route: &Route| route.has_room() && may_send(route.instance);
    if let [only] = routes {
        return takes(only).then_some(0);
    }
    if let Some(home) = session.and_then(|session| home(routes, session))
        && routes.get(home).is_some_and(takes)
    {
        return Some(home);
    }
    let mut least_loaded: Option<(usize, &Route)> = None;
    for (at, route) in routes.iter().enumerate() {
        if least_loaded.is_none_or(|(_, least_loaded)| route.is_less_loaded_than(least_loaded)) && takes(route) {
            least_loaded = Some((at, route));
        }
    }
    least_loaded.map(|(at, _)| at)
}

/// Returns whether a request may join a batch of this route: its session has no other home that has room.
pub(super) fn may_join(
    routes: &[Route],
    at: usize,
    session: Option<NonZeroU64>,
    may_send: impl Fn(InstanceNumber) -> bool,
) -> bool {
    let Some(session) = session.filter(|_| routes.len() > 1) else { return true };
    let home = home(routes, session).filter(|home| *home != at).and_then(|home| routes.get(home));
    home.is_none_or(|home| !(home.has_room() && may_send(home.instance)))
}

/// Index of the enabled route that is the session's home.
fn home(routes: &[Route], session: NonZeroU64) -> Option<usize> {
    let open = routes.iter().enumerate().filter(|(_, route)| route.enabled);
    open.max_by_key(|(_, route)| weight(session, route.name)).map(|(at, _)| at)
}

/// Deterministic weight, uniform like a random number: two rounds of the finalizer of SplitMix64.
fn weight(session: NonZeroU64, name: u64) -> u64 {
    mix(session.get() ^ mix(name))
}

/// FNV-1a hash of the name of a session or an instance. Independent of the build, so that the next scheduler sends a
/// session to the same instance.
#[must_use]
pub fn hash_name(name: &[u8]) -> u64 {
    name.iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash_name, byte| (hash_name ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
