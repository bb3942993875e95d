//! Number of items that may be in flight now: batch jobs run when nobody else needs the model or its cards. Pure.
//!
//! | load of the model and its cards | items |
//! | --- | --- |
//! | an interactive request waits | none: what is in flight ends, so a card is free within one request |
//! | interactive requests in flight, none waits | the seats that these leave to items |
//! | nothing for a time shorter than [`Settings::idle`] | none: the next request of a conversation is expected |
//! | nothing for longer | all seats; not those of a further instance while another card is in use |
//!
//! *Ageing* keeps the window of a batch. As long as all seats could finish it in half of the time that is left, it only
//! takes what is free. Then it has as many seats as it needs to finish at an even pace, at the priority of ordinary
//! requests, whatever the load. The last eighth of the window is a reserve for wrong estimates: a batch that gets there
//! has all seats.
//!
//! Of the seats that instances have, one stays free for ordinary requests however old batches are, unless there is only one.
//!
//! Seats are shared out one by one, to aged batches before others: to the owner with the fewest, among these to that which
//! has asked longest ago, and of its batches to that with the fewest, or that expires first. An item in flight keeps its
//! seat until it ends.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
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

/// Load of a model and of the cards that it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Interactive requests that wait for the model.
    pub waiting: u32,
    /// Interactive requests in flight on the model, and all those to other models on its cards.
    pub in_flight: u32,
    /// Time since the last interactive request ended; not looked at while there is one.
    pub idle_for: Duration,
    /// Requests that the model's instances can have in flight.
    pub seats: u32,
    /// Number of these that instances have which are ready.
    pub ready_seats: u32,
    /// Seats that items may have while there is no interactive request.
    pub idle_seats: u32,
    /// Seats that interactive requests in flight leave to items.
    pub free_seats: u32,
}

/// Items of one batch for the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Number of its owner: equal for batches of one.
    pub owner: u64,
    /// Number of the owner's last claim on the model, the greatest being the newest; 0 before the first.
    pub asked: u64,
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
    let mut grants = vec![Grant::default(); demands.len()];

    let most = most_aged(load);
    let mut left = most;
    let aged: Vec<u64> = demands.iter().map(|demand| u64::from(aged(demand, most))).collect();
    share(demands, &aged, &mut grants, &mut left);
    grants.iter_mut().for_each(|grant| grant.aged = grant.seats);

    // Aged items are among those that a load leaves room for.
    let taken = most - left;
    let mut left = free(load, settings).saturating_sub(taken).min(load.seats - taken);
    let open: Vec<u64> = demands.iter().map(open).collect();
    share(demands, &open, &mut grants, &mut left);
    grants
}

/// Batches of one owner that want seats.
#[derive(Debug, Default)]
struct Wanting {
    /// Seats of all batches of the owner.
    seats: u32,
    asked: u64,
    /// Batches by their seats and the time that is left, each with its place among the demands.
    batches: BinaryHeap<Reverse<(u32, Duration, usize)>>,
}

/// Hands out what is left until nobody wants more: first to items that are in flight already, then one by one, each to
/// the owner with the fewest.
fn share(demands: &[Demand], wants: &[u64], grants: &mut [Grant], left: &mut u32) {
    let mut owners: HashMap<u64, Wanting> = HashMap::new();
    for (at, ((demand, want), grant)) in demands.iter().zip(wants).zip(grants.iter_mut()).enumerate() {
        let held = u64::from(demand.in_flight).min(*want).saturating_sub(u64::from(grant.seats));
        let held = u32::try_from(held).unwrap_or(u32::MAX).min(*left);
        grant.seats += held;
        *left -= held;
        let owner = owners.entry(demand.owner).or_default();
        owner.seats += grant.seats;
        owner.asked = demand.asked;
        if u64::from(grant.seats) < *want {
            owner.batches.push(Reverse((grant.seats, demand.left, at)));
        }
    }
    let turn = |(number, owner): (&u64, &Wanting)| Reverse((owner.seats, owner.asked, *number));
    let mut turns: BinaryHeap<_> = owners.iter().map(turn).collect();
    while *left > 0 {
        let Some(Reverse((of_owner, asked, number))) = turns.pop() else { break };
        let Some(owner) = owners.get_mut(&number) else { continue };
        let Some(Reverse((seats, time, at))) = owner.batches.pop() else { continue };
        grants[at].seats += 1;
        *left -= 1;
        if u64::from(grants[at].seats) < wants[at] {
            owner.batches.push(Reverse((seats + 1, time, at)));
        }
        turns.push(Reverse((of_owner + 1, asked, number)));
    }
}

/// Most seats at the priority of ordinary requests: one that an instance has stays free for others, if there is another.
fn most_aged(load: &Load) -> u32 {
    let seats = if load.ready_seats > 0 { load.ready_seats.min(load.seats) } else { load.seats };
    seats.saturating_sub(1).max(1).min(load.seats)
}

/// Seats that no interactive request needs.
fn free(load: &Load, settings: &Settings) -> u32 {
    match load {
        Load { waiting: 1.., .. } => 0,
        Load { in_flight: 1.., .. } => load.free_seats,
        _ if load.idle_for < settings.idle => 0,
        _ => load.idle_seats,
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
