//! GPU memory of an instance: its place on a card, and the grant to use it.
//!
//! ```text
//!   Unplaced ──▶ Starting ──▶ Granted ◀──▶ Away
//! ```
//!
//! Invariant: each change is reported to the residency queue once and in order.

use omni_gpu::Placement;
use omni_policy::Moment;

/// An instance's place on a card and its grant.
#[derive(Debug)]
pub(in crate::model::actor) struct GpuLease {
    placement: Placement,
    state: LeaseState,
    /// Last wait of requests for the grant.
    swap: Option<SwapWait>,
    /// The residency policy had the instance ended.
    pub(in crate::model::actor) is_ended: bool,
}

/// Wait of requests for an instance's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::model::actor) struct SwapWait {
    /// First request that waited.
    pub(in crate::model::actor) from: Moment,
    /// The grant.
    pub(in crate::model::actor) until: Moment,
}

#[derive(Debug, PartialEq, Eq)]
enum LeaseState {
    /// Waits for a place: there is no process.
    Unplaced,
    /// Being started. The place has room for all that the instance may allocate.
    Starting,
    /// Requests may be sent.
    Granted {
        /// Requests are in flight.
        busy: bool,
        /// Asked to yield; it does when nothing is in flight.
        yields: bool,
    },
    /// The memory may be away from the card.
    Away {
        /// Since when requests wait for it.
        wanted_since: Option<Moment>,
    },
}

impl GpuLease {
    pub(in crate::model::actor) fn unplaced(placement: Placement) -> Self {
        Self { placement, state: LeaseState::Unplaced, swap: None, is_ended: false }
    }

    /// The lease of an adopted instance; grants of the previous scheduler are void.
    pub(in crate::model::actor) fn adopted(placement: Placement, ready: bool) -> Self {
        let state = if ready { LeaseState::Away { wanted_since: None } } else { LeaseState::Starting };
        Self { placement, state, swap: None, is_ended: false }
    }

    /// A place was found.
    pub(in crate::model::actor) fn on_placed(&mut self) {
        self.state = LeaseState::Starting;
    }

    /// The engine is ready.
    pub(in crate::model::actor) fn on_ready(&mut self) {
        if self.state == LeaseState::Starting {
            self.placement.ready();
            self.state = LeaseState::Granted { busy: false, yields: false };
        }
    }

    /// Returns whether requests may be sent.
    pub(in crate::model::actor) fn is_granted(&self) -> bool {
        matches!(self.state, LeaseState::Granted { yields: false, .. })
    }

    /// Last wait of requests for the grant.
    pub(in crate::model::actor) fn swap(&self) -> Option<SwapWait> {
        self.swap
    }

    pub(in crate::model::actor) fn on_granted(&mut self, now: Moment) {
        if let LeaseState::Away { wanted_since } = self.state {
            self.swap = wanted_since.map(|from| SwapWait { from, until: now });
            self.state = LeaseState::Granted { busy: false, yields: false };
        }
    }

    pub(in crate::model::actor) fn on_yield(&mut self) {
        if let LeaseState::Granted { yields, .. } = &mut self.state {
            *yields = true;
        }
    }

    /// Reports changes since the last call: whether requests are in flight, and whether some wait for the grant.
    pub(in crate::model::actor) fn sync(&mut self, in_flight: bool, waits: bool, now: Moment) {
        if let LeaseState::Granted { busy, yields } = &mut self.state {
            if *busy != in_flight {
                *busy = in_flight;
                self.placement.busy(in_flight);
            }
            if *yields && !in_flight {
                self.placement.yielded();
                self.state = LeaseState::Away { wanted_since: None };
            }
        }
        if let LeaseState::Away { wanted_since } = &mut self.state {
            match (waits, *wanted_since) {
                (true, None) => {
                    *wanted_since = Some(now);
                    self.placement.request_grant();
                }
                (false, Some(_)) => {
                    *wanted_since = None;
                    self.placement.withdraw_request();
                }
                (true, Some(_)) | (false, None) => {}
            }
        }
    }

    /// The place in the residency queue.
    pub(in crate::model::actor) fn placement(&self) -> &Placement {
        &self.placement
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_gpu::testing::{Listener, listener, request};

    fn lease(ready: bool) -> (GpuLease, Listener) {
        let (handle, listener) = listener();
        let reservation = handle.adopt(request(), "GPU-0", ready);
        listener.heard();
        (GpuLease::adopted(reservation, ready), listener)
    }

    fn sync(lease: &mut GpuLease, in_flight: bool, waits: bool) {
        lease.sync(in_flight, waits, Moment::ZERO);
    }

    #[test]
    fn a_started_instance_is_granted_until_it_is_asked_to_yield() {
        let (mut lease, listener) = lease(false);
        sync(&mut lease, false, true);
        assert!(!lease.is_granted() && listener.heard().is_empty(), "not ready");
        lease.on_ready();
        assert!(lease.is_granted());
        sync(&mut lease, true, false);
        sync(&mut lease, true, true);
        lease.on_yield();
        assert!(!lease.is_granted());
        sync(&mut lease, true, true);
        assert_eq!(listener.heard(), ["Ready", "Busy"], "requests in flight are finished");
        sync(&mut lease, false, true);
        assert_eq!(listener.heard(), ["Idle", "Yielded", "Want"]);
        sync(&mut lease, false, true);
        assert!(listener.heard().is_empty(), "each change once");
        lease.on_granted(Moment::from_secs(1));
        assert!(lease.is_granted() && lease.swap().is_some());
    }

    #[test]
    fn a_grant_that_is_no_longer_wanted_is_yielded_on_request() {
        let (mut lease, listener) = lease(true);
        sync(&mut lease, false, true);
        sync(&mut lease, false, false);
        assert_eq!(listener.heard(), ["Want", "Unwanted"]);
        // Both were on their way.
        lease.on_granted(Moment::from_secs(1));
        assert!(lease.is_granted() && lease.swap().is_none());
        lease.on_yield();
        sync(&mut lease, false, false);
        assert_eq!(listener.heard(), ["Yielded"]);
    }

    #[test]
    fn a_swap_lasts_from_the_first_request_to_the_grant() {
        let (mut lease, _listener) = lease(true);
        let at = Moment::from_secs;
        lease.sync(false, true, at(1));
        lease.sync(false, true, at(2));
        lease.on_granted(at(4));
        assert_eq!(lease.swap(), Some(SwapWait { from: at(1), until: at(4) }));
    }
}
