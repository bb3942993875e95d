//! Load of a model and of the card that it shares, from what the supervisor publishes. Pure.

use omni_jobs::Load;
use std::time::Instant;

/// Models that use a card take turns on it, so the requests to one are the load of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ModelLoad {
    /// Interactive requests that wait or are in flight.
    pub(crate) interactive: u32,
    /// End of the last other interactive request.
    pub(crate) last_end: Option<Instant>,
    /// Requests that wait, of batches too.
    pub(crate) queued: u32,
    /// Requests that one instance can have in flight.
    pub(crate) per_instance: u32,
    /// Instances that are ready.
    pub(crate) ready: u32,
    /// Most instances.
    pub(crate) most: u32,
    /// Memory of a card is the model's.
    pub(crate) has_card: bool,
}

/// The load of the model at this position, among all models. `since`: the time from which requests are known of.
pub(crate) fn load(models: &[ModelLoad], at: usize, since: Instant, now: Instant) -> Option<Load> {
    let own = models.get(at)?;
    let of_card = |(other, load): &(usize, &ModelLoad)| *other != at && own.has_card && load.has_card;
    let others = models.iter().enumerate().filter(of_card).map(|(_, load)| load);
    let (mut elsewhere, mut last_end) = (0, own.last_end);
    for other in others {
        elsewhere += other.interactive;
        last_end = last_end.max(other.last_end);
    }
    // An instance beyond those that are ready: what waits for it lets the model grow.
    let seats = own.per_instance.saturating_mul((own.ready + 1).min(own.most.max(1)));
    let capacity = own.per_instance.saturating_mul(own.ready);
    let waiting = own.queued.min(own.interactive);
    Some(Load {
        waiting,
        in_flight: own.interactive - waiting + elsewhere,
        idle_for: now.saturating_duration_since(last_end.unwrap_or(since)),
        seats,
        free_seats: if elsewhere > 0 { 0 } else { capacity.saturating_sub(kept_free(own.interactive)) },
    })
}

/// Seats that items leave to interactive requests: those in use, as many for requests that come meanwhile, and one
/// more. With fewer, one request in a hundred would wait for an item.
fn kept_free(interactive: u32) -> u32 {
    interactive.saturating_mul(2).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn loads() {
        let (since, now) = (Instant::now(), Instant::now() + Duration::from_secs(60));
        let idle = ModelLoad {
            interactive: 0,
            last_end: None,
            queued: 0,
            per_instance: 4,
            ready: 1,
            most: 2,
            has_card: false,
        };
        let one = |own: ModelLoad, other: ModelLoad| {
            let load = load(&[own, other], 0, since, now).unwrap();
            (load.waiting, load.in_flight, load.seats, load.free_seats)
        };
        assert_eq!(one(idle, idle), (0, 0, 8, 3));
        assert_eq!(one(ModelLoad { ready: 0, ..idle }, idle), (0, 0, 4, 0), "its first instance");
        assert_eq!(one(ModelLoad { ready: 2, ..idle }, idle), (0, 0, 8, 7));
        assert_eq!(one(ModelLoad { interactive: 1, ..idle }, idle), (0, 1, 8, 1));
        assert_eq!(one(ModelLoad { interactive: 3, ..idle }, idle), (0, 3, 8, 0));
        assert_eq!(one(ModelLoad { interactive: 3, queued: 9, ..idle }, idle), (3, 0, 8, 0));
        assert_eq!(one(ModelLoad { queued: 9, ..idle }, idle), (0, 0, 8, 3), "items of batches wait");
        let busy = ModelLoad { interactive: 2, has_card: true, ..idle };
        assert_eq!(one(idle, busy), (0, 0, 8, 3), "not on the card");
        assert_eq!(one(ModelLoad { has_card: true, ..idle }, busy), (0, 2, 8, 0));
        assert_eq!(load(&[idle], 1, since, now), None);

        let ended = ModelLoad { last_end: Some(now - Duration::from_secs(5)), has_card: true, ..idle };
        let of_card = ModelLoad { has_card: true, ..idle };
        let idle_for = |own, other| load(&[own, other], 0, since, now).unwrap().idle_for.as_secs();
        assert_eq!((idle_for(idle, ended), idle_for(of_card, ended)), (59.max(idle_for(idle, idle)), 5));
    }
}
