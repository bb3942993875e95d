//! Which request goes to which instance when: one queue, and a route for each instance.
//!
//! The model's actor owns a [`Dispatch`] and carries out its decisions.
//!
//! ```text
//!   submit ──▶ queued ──next──▶ in flight ──finish──▶ (done)
//!                ▲                  │ requeue: not one byte was sent, or it had certainly not begun
//!                └──────────────────┘
//! ```
//!
//! Invariants:
//! - requests are sent in the order of their virtual arrival ([`queue`]): exactly as they came within a priority, and
//!   nothing starves behind higher priorities;
//! - a request goes to the instance with the lowest load, or to its session's ([`selection`]);
//! - an instance has at most its `concurrency` of requests at once, those of another scheduler included, plus those
//!   sent ahead ([`route`]), or one batch;
//! - a request is accepted only while the queued requests and those on enabled routes are fewer than `places + queue`:
//!   requests on an instance that is draining do not count, nor do requests that were written off;
//! - a request is sent once, and again only if the instance it was sent to has certainly not begun it;
//! - after a death only requests that may have begun fail; the others are queued again, in their old order.
//!
//! A serial handler takes requests in the order of its connection, so a request that lies in its socket has not begun
//! before the one ahead of it is answered. Fast handlers are therefore sent a few requests ahead, as many as fit into
//! [`AHEAD_TIME`] of their average work: this hides the round trip, and costs nothing when the instance dies.
//!
//! A handler of batches gets one batch at a time: the first requests of the queue, when the instance's
//! [`Batcher`](crate::batching::Batcher) says so. Within a batch there is no order, and its free seats go to lower priorities; no
//! higher one ever waits for a seat behind them. A request whose session has a home with room elsewhere is passed over.

mod queue;
mod route;
mod selection;

pub use queue::HIGHEST_PRIORITY;
pub use selection::hash_name;

use super::{InstanceNumber, Moment};
use crate::batching::{BatchBounds, BatchDecision, Candidate};
use queue::{Queue, Waiting};
use route::Route;
use std::time::Duration;

/// Amount of work that may be sent ahead to a serial handler.
pub const AHEAD_TIME: Duration = Duration::from_millis(1);
/// Most requests that may be sent ahead.
pub const AHEAD_LIMIT: u32 = 32;

/// Id of a request, unique for the life of the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Properties of a request that dispatch depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// Id of the request.
    pub id: RequestId,
    /// Priority, at most [`HIGHEST_PRIORITY`].
    pub priority: u8,
    /// [`hash_name`] of the session: requests of a session prefer the same instance.
    pub session: Option<u64>,
    /// Properties as a member of a batch; `None`: it is handled alone.
    pub candidate: Option<Candidate>,
}

/// How many requests an instance's handler runs at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandlerMode {
    /// Sequentially: one request after the other, in the order of the data connection.
    Serial,
    /// Up to `concurrency` requests at once, finished in any order.
    Concurrent,
    /// Batches, one after the other; the members of a batch finish in any order.
    Batches(BatchBounds),
}

/// Requests to send to an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dispatched {
    /// Instance.
    pub instance: InstanceNumber,
    /// Requests.
    pub requests: Members,
}

/// Requests that are sent together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Members {
    /// A request by itself.
    One(RequestId),
    /// At least two requests, handled by one call.
    Batch(Vec<RequestId>),
}

/// Result of submitting a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Accepted; [`Dispatch::next`] returns it in its turn.
    Queued,
    /// The queue is full: the request has to be refused.
    Full,
}

/// Where a cancelled request was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// In the queue: it is removed.
    Dequeued,
    /// On this instance, which has to be notified; its last frame is still to come.
    InFlight(InstanceNumber),
    /// Nowhere: it has finished.
    Unknown,
}

/// State of an instance with handlers that ignore their cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StuckHandlers {
    /// Other requests run in the instance.
    pub other_requests: bool,
    /// The instance can run further requests.
    pub free_slots: bool,
}

/// Requests of an instance that is gone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lost {
    /// Requests that may have begun: they fail.
    pub failed: Vec<RequestId>,
    /// Cancelled requests that had not begun; no client waits for them.
    pub dropped: Vec<RequestId>,
}

/// Queue of a model and the requests its instances have. The default has no instance and no room.
#[derive(Debug, Default)]
pub struct Dispatch {
    queue: Queue,
    /// Sorted by instance number: the oldest instance comes first.
    routes: Vec<Route>,
    in_flight: usize,
    /// Most requests that are accepted: queued, and on enabled routes.
    most: usize,
    /// Average time at the last instance that is gone.
    average_time: Option<Duration>,
    /// End of a batch's wait for further requests, as [`Dispatch::next`] decided last.
    wakes_at: Option<Moment>,
}

impl Dispatch {
    /// Sets the bounds of a manifest: requests that may be queued, and `places` for those that run, which is the
    /// concurrency of all instances allowed. Queued requests stay.
    pub fn set_bounds(&mut self, queue: u32, places: u32) {
        self.most = queue as usize + places as usize;
    }

    /// Adds an instance that takes requests from now on, `concurrency` at once if it is concurrent. `name`: its [`hash_name`].
    pub fn enable(&mut self, instance: InstanceNumber, name: u64, mode: HandlerMode, concurrency: u32) {
        let at = self.find(instance).unwrap_or_else(|at| {
            self.routes.insert(at, Route::new(instance, name));
            at
        });
        if let Some(route) = self.routes.get_mut(at) {
            route.enable(mode, concurrency);
        }
    }

    /// Sets the number of requests of another scheduler that the instance has.
    pub fn set_external_requests(&mut self, instance: InstanceNumber, requests: u32) {
        if let Some(route) = self.find(instance).ok().and_then(|at| self.routes.get_mut(at)) {
            route.external_requests = requests;
        }
    }

    /// Disables the route: the instance takes no further requests; those it has go on.
    pub fn disable(&mut self, instance: InstanceNumber) {
        if let Some(route) = self.find(instance).ok().and_then(|at| self.routes.get_mut(at)) {
            route.enabled = false;
        }
    }

    /// Submits a request.
    pub fn submit(&mut self, ticket: Ticket, now: Moment) -> Admission {
        let open = self.routes.iter().filter(|route| route.enabled).map(Route::counted);
        if self.queue.len() + open.sum::<usize>() >= self.most {
            return Admission::Full;
        }
        self.queue.push(ticket, now);
        if ticket.candidate.is_some() {
            route::note_arrival(&mut self.routes, now);
        }
        Admission::Queued
    }

    /// Next requests to send now, if there are any and an instance has room. `may_send`: whether an instance with an enabled
    /// route can take requests at this moment. While a batch waits for further requests there is nothing to send until
    /// [`Dispatch::wakes_at`].
    pub fn next(&mut self, now: Moment, may_send: impl Fn(InstanceNumber) -> bool) -> Option<Dispatched> {
        self.wakes_at = None;
        let first = *self.queue.first()?;
        let at = selection::select(&self.routes, first.session, &may_send)?;
        let mode = self.routes.get(at)?.mode();
        if let (HandlerMode::Batches(bounds), Some(_)) = (mode, first.candidate) {
            return self.next_batch(at, bounds, now, may_send);
        }
        let route = self.routes.get_mut(at)?;
        self.queue.remove_first(first);
        route.send(first, now);
        self.in_flight += 1;
        Some(Dispatched { instance: route.instance, requests: Members::One(first.id) })
    }

    fn next_batch(
        &mut self,
        at: usize,
        bounds: BatchBounds,
        now: Moment,
        may_send: impl Fn(InstanceNumber) -> bool,
    ) -> Option<Dispatched> {
        let joins = |waiting: &&Waiting| selection::may_join(&self.routes, at, waiting.session, &may_send);
        let seated = self.queue.iter().take_while(|waiting| waiting.candidate.is_some());
        let mut requests: Vec<Waiting> = seated.filter(joins).take(bounds.requests as usize).copied().collect();
        let route = self.routes.get_mut(at)?;
        let candidates = requests.iter().filter_map(|waiting| waiting.candidate);
        match route.batcher.decide(candidates, bounds, now) {
            BatchDecision::Idle => return None,
            BatchDecision::Wait(until) => {
                self.wakes_at = Some(until);
                return None;
            }
            BatchDecision::Send(count) => requests.truncate(count),
        }
        for request in &requests {
            self.queue.remove(request.id);
        }
        route.send_batch(&requests, now);
        self.in_flight += requests.len();
        let ids: Vec<_> = requests.iter().map(|request| request.id).collect();
        let requests = if let [id] = *ids { Members::One(id) } else { Members::Batch(ids) };
        Some(Dispatched { instance: route.instance, requests })
    }

    /// End of a batch's wait for further requests: [`Dispatch::next`] decides anew then. Of the last call.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Moment> {
        self.wakes_at
    }

    /// Requests that are sent with this one, itself included: none of them begins before all of them are there.
    #[must_use]
    pub fn sent_with(&self, id: RequestId) -> Vec<RequestId> {
        let of = |route: &&Route| route.sent.iter().any(|sent| sent.id() == id);
        match self.routes.iter().find(of) {
            Some(route) if matches!(route.mode(), HandlerMode::Batches(_)) => {
                route.sent.iter().map(route::Sent::id).collect()
            }
            Some(_) | None => vec![id],
        }
    }

    /// Queues a request again, in its old place: not one byte of it has reached its instance. Returns whether it was in
    /// flight and not cancelled.
    pub fn requeue(&mut self, id: RequestId) -> bool {
        let unsent = self.take_back(id);
        let is_queued = unsent.is_some();
        unsent.into_iter().for_each(|sent| self.queue.requeue(sent.request));
        is_queued
    }

    /// Removes a request whose turn has come and that is not sent. It says nothing about the instance's pace.
    pub fn withdraw(&mut self, id: RequestId) {
        self.take_back(id);
    }

    fn take_back(&mut self, id: RequestId) -> Option<route::Sent> {
        let is_it = |sent: &route::Sent| sent.id() == id && !sent.is_cancelled();
        let take = |route: &mut Route| route.sent.iter().position(is_it).and_then(|at| route.sent.remove(at));
        let sent = self.routes.iter_mut().find_map(take)?;
        self.in_flight -= 1;
        Some(sent)
    }

    /// Removes a request whose last frame has arrived. Returns the instance that had it.
    pub fn finish(&mut self, id: RequestId, now: Moment) -> Option<InstanceNumber> {
        let route = self.routes.iter_mut().find_map(|route| route.finish(id, now).then_some(route.instance));
        self.in_flight -= usize::from(route.is_some());
        route
    }

    /// Cancels a request: its client does not wait for it any more.
    pub fn cancel(&mut self, id: RequestId, now: Moment) -> Cancelled {
        for route in &mut self.routes {
            if let Some(sent) = route.sent.iter_mut().find(|sent| sent.id() == id) {
                sent.cancel(now);
                return Cancelled::InFlight(route.instance);
            }
        }
        if self.queue.remove(id) { Cancelled::Dequeued } else { Cancelled::Unknown }
    }

    /// Start of the longest run of a cancelled request on the instance, without those written off: its handler may be
    /// ignoring the cancellation.
    #[must_use]
    pub fn cancelled_since(&self, instance: InstanceNumber) -> Option<Moment> {
        self.route(instance)?.cancelled_since()
    }

    /// Writes off and returns the instance's requests that have been running cancelled since `since` or longer: their
    /// slots are lost for as long as their handlers run.
    pub fn write_off(&mut self, instance: InstanceNumber, since: Moment) -> Vec<RequestId> {
        let route = self.find(instance).ok().and_then(|at| self.routes.get_mut(at));
        route.map(|route| route.write_off(since)).unwrap_or_default()
    }

    /// State of an instance with stuck handlers; `None` while it has none.
    #[must_use]
    pub fn stuck_handlers(&self, instance: InstanceNumber) -> Option<StuckHandlers> {
        self.route(instance)?.stuck_handlers()
    }

    /// Requests that most likely block an instance: those that run on after their cancellation, or else all that may
    /// have begun.
    #[must_use]
    pub fn suspects(&self, instance: InstanceNumber) -> Vec<RequestId> {
        let begun = || self.route(instance).into_iter().flat_map(|route| route.sent.iter().take(route.begun()));
        let cancelled: Vec<_> = begun().filter(|sent| sent.is_cancelled()).map(route::Sent::id).collect();
        if cancelled.is_empty() { begun().map(route::Sent::id).collect() } else { cancelled }
    }

    /// Removes an instance that is gone: requests that may have begun are lost, the others are queued again.
    pub fn remove_instance(&mut self, instance: InstanceNumber) -> Lost {
        let mut lost = Lost::default();
        let Ok(at) = self.find(instance) else { return lost };
        let route = self.routes.remove(at);
        self.in_flight -= route.sent.len();
        self.average_time = route.average_time().or(self.average_time);
        let begun = route.begun();
        for (place, sent) in route.sent.into_iter().enumerate() {
            if place < begun {
                lost.failed.push(sent.id());
            } else if sent.is_cancelled() {
                lost.dropped.push(sent.id());
            } else {
                self.queue.requeue(sent.request);
            }
        }
        lost
    }

    /// Removes and returns all queued requests.
    pub fn drain_queue(&mut self) -> Vec<RequestId> {
        self.queue.drain()
    }

    /// Ids of all requests the instance has.
    #[must_use]
    pub fn ids_in_flight(&self, instance: InstanceNumber) -> Vec<RequestId> {
        self.route(instance).into_iter().flat_map(|route| &route.sent).map(route::Sent::id).collect()
    }

    /// Number of requests that instances have, running or sent ahead.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Number of requests that call for instances: queued ones, and those on enabled routes. Requests that finish on an
    /// earlier version do not count.
    #[must_use]
    pub fn load(&self) -> usize {
        let open = self.routes.iter().filter(|route| route.enabled);
        self.queue.len() + open.map(Route::counted).sum::<usize>()
    }

    /// Number of requests this instance has.
    #[must_use]
    pub fn in_flight_of(&self, instance: InstanceNumber) -> usize {
        self.route(instance).map_or(0, |route| route.sent.len())
    }

    /// Number of queued requests.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Average time of the handler over all instances, once it is known.
    #[must_use]
    pub fn average_time(&self) -> Option<Duration> {
        let times = || self.routes.iter().filter_map(Route::average_time);
        match u32::try_from(times().count()) {
            Ok(0) | Err(_) => self.average_time,
            Ok(count) => Some(times().sum::<Duration>() / count),
        }
    }

    fn route(&self, instance: InstanceNumber) -> Option<&Route> {
        self.routes.get(self.find(instance).ok()?)
    }

    /// Index of an instance's route, or where it would be inserted.
    fn find(&self, instance: InstanceNumber) -> Result<usize, usize> {
        self.routes.binary_search_by_key(&instance, |route| route.instance)
    }
}

#[cfg(test)]
mod tests;
