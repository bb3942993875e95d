//! Number of items that may be in flight now: batch jobs run when nobody else needs the model or its card. Pure.
//!
//! | load of the model and its card | items |
//! | --- | --- |
//! | an interactive request waits | none: what is in flight ends, so a card is free within one request |
//! | interactive requests in flight, none waits | the seats that these leave to items |
//! | nothing for a time shorter than [`Settings::idle`] | none: the next request of a conversation is expected |
//! | nothing for longer | all seats |
//!
//! *Ageing* keeps the window of a batch. As long as all seats could finish it in half of the time that is left, it only
//! takes what is free. Then it has as many seats as it needs to finish at an even pace, at the priority of ordinary
//! requests, whatever the load. The last eighth of the window is a reserve for wrong estimates: a batch that gets there
//! has all seats.
//!
//! Seats are shared out one by one, the batch that expires first being served first: aged batches before others.

#[cfg(test)]
mod tests;

use std::time::Duration;

/// Part of the window that is kept in reserve.
const RESERVE: u32 = 8;
/// Part of the window after which a batch whose items were never timed gets one seat, to time them.
const PROBE: u32 = 4;

/// Settings of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Time without interactive requests after which jobs have all seats.
    pub idle: Duration,
}

/// Load of a model and of the card that it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Interactive requests that wait for the model, or for its card.
    pub waiting: u32,
    /// Interactive requests in flight on the model or its card.
    pub in_flight: u32,
    /// Time since the last interactive request ended; not looked at while there is one.
    pub idle_for: Duration,
    /// Requests that the model's instances can have in flight.
    pub seats: u32,
    /// Seats that interactive requests in flight leave to items.
    pub free_seats: u32,
}

/// Items of one batch for the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Items that wait.
    pub pending: u64,
    /// Items that are in flight.
    pub in_flight: u32,
    /// Time from the creation of the batch until it expires.
    pub window: Duration,
    /// Time that is left of it.
    pub left: Duration,
    /// Mean time of an item; `None` before the first has ended.
    pub item_time: Option<Duration>,
}

/// Seats of one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Grant {
    /// Items that may be in flight. Fewer than are in flight now: those end, and no other follows.
    pub seats: u32,
    /// Number of these that have the priority of ordinary requests, because the window would not be kept otherwise.
    pub aged: u32,
}

/// Shares out a model's seats among the batches that want them; a grant for each demand, in the same order.
#[must_use]
pub fn plan(load: &Load, demands: &[Demand], settings: &Settings) -> Vec<Grant> {
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by_key(|index| demands[*index].left);
    let mut grants = vec![Grant::default(); demands.len()];

    let mut left = load.seats;
    let aged: Vec<u32> = demands.iter().map(|demand| aged(demand, load.seats)).collect();
    share(&order, &mut left, |index| {
        let grant = &mut grants[index];
        let wants = grant.aged < aged[index];
        grant.seats += u32::from(wants);
        grant.aged += u32::from(wants);
        wants
    });
    let mut left = left.min(free(load, settings));
    share(&order, &mut left, |index| {
        let grant = &mut grants[index];
        let wants = u64::from(grant.seats) < open(&demands[index]);
        grant.seats += u32::from(wants);
        wants
    });
    grants
}

/// Hands out what is left, one each in a round, until nobody wants more.
fn share(order: &[usize], left: &mut u32, mut take: impl FnMut(usize) -> bool) {
    let mut wanted = true;
    while *left > 0 && wanted {
        wanted = false;
        for index in order {
            if *left > 0 && take(*index) {
                *left -= 1;
                wanted = true;
            }
        }
    }
}

/// Seats that no interactive request needs.
fn free(load: &Load, settings: &Settings) -> u32 {
    match load {
        Load { waiting: 1.., .. } => 0,
        Load { in_flight: 1.., .. } => load.free_seats,
        _ if load.idle_for < settings.idle => 0,
        _ => load.seats,
    }
}

/// Items that have no result yet.
fn open(demand: &Demand) -> u64 {
    demand.pending.saturating_add(u64::from(demand.in_flight))
}

/// Seats that a batch needs to keep its window.
fn aged(demand: &Demand, seats: u32) -> u32 {
    let most = u32::try_from(open(demand)).unwrap_or(u32::MAX).min(seats);
    let effective = demand.left.saturating_sub(demand.window / RESERVE);
    if effective.is_zero() {
        return most;
    }
    let Some(item_time) = demand.item_time else {
        let probe = demand.left <= demand.window - demand.window / PROBE;
        return most.min(u32::from(probe));
    };
    // Seats needed from now on, in nanoseconds of work for each nanosecond of time.
    let work = u128::from(open(demand)) * item_time.as_nanos();
    let needed = u32::try_from(work.div_ceil(effective.as_nanos())).unwrap_or(u32::MAX);
    let half_of_the_time = work * 2 >= effective.as_nanos() * u128::from(seats);
    if half_of_the_time { needed.min(most) } else { 0 }
}
