//! Which request goes to which instance when: one queue, and a lane for each instance.
//!
//! The model's task owns a [`Dispatch`] and carries out what it says. What always holds:
//! - requests are sent in the order of their virtual arrival ([`queue`]): exactly as they came within a priority, and
//!   nothing starves behind higher ones;
//! - a request goes to the instance with least in flight, or to its session's ([`route`]);
//! - an instance has at most its `concurrency` of requests at once, those of another scheduler included, and what lies
//!   ahead ([`lane`]);
//! - a request is taken only while those that wait and those that open lanes have are less than `places + queue`: what
//!   an instance on its way out has to finish keeps nobody from the one after it, nor does a request that was written
//!   off;
//! - a request is sent once, and again only if the instance it was sent to has certainly not begun it;
//! - after a death only requests that may have begun fail; the others wait again, in their old order.
//!
//! A serial handler takes requests in the order of its connection, so one that lies in its socket has not begun before
//! the one ahead of it is answered. Fast handlers are therefore sent a few requests ahead, as many as fit into
//! [`AHEAD_TIME`] of their usual work: this hides the round trip, and costs nothing when the instance dies.

mod queue;
mod route;
mod selection;

pub use queue::HIGHEST_PRIORITY;
pub use selection::hash_name;

use super::{InstanceNumber, Moment};
use queue::Queue;
use route::Route;
use std::time::Duration;

/// Work that may lie ahead in the socket of a serial handler.
pub const AHEAD_TIME: Duration = Duration::from_millis(1);
/// The most requests that may lie ahead.
pub const AHEAD_LIMIT: u32 = 32;

/// Id of a request, unique for the life of the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// What dispatch knows of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// Which request.
    pub id: RequestId,
    /// What it may claim, at most [`HIGHEST_PRIORITY`].
    pub priority: u8,
    /// The [`hash`] of its session's name: the session's requests would like to meet at one instance.
    pub session: Option<u64>,
}

/// How many requests an instance's handler runs at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandlerMode {
    /// One request after the other, in the order of the data connection.
    Serial,
    /// Up to `concurrency` requests at once, finished in any order.
    Concurrent,
}

/// What became of a new request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It waits for its turn; ask [`Dispatch::next`].
    Queued,
    /// The queue is full: refuse it.
    Full,
}

/// What a cancelled request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It had not been sent: it is forgotten.
    Dequeued,
    /// This instance has it: tell the model; its last frame is still to come.
    InFlight(InstanceNumber),
    /// It is finished already.
    Unknown,
}

/// What handlers that ignore their cancellation leave of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StuckHandlers {
    /// Other requests run in it.
    pub other_requests: bool,
    /// It can run further ones.
    pub free_slots: bool,
}

/// Requests of an instance that is gone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lost {
    /// They may have begun: they fail.
    pub failed: Vec<RequestId>,
    /// Cancelled ones among the rest; nobody waits for them.
    pub dropped: Vec<RequestId>,
}

/// The queue of a model and the requests its instances have. The default has no instance and no room.
#[derive(Debug, Default)]
pub struct Dispatch {
    queue: Queue,
    /// By number, so that the oldest comes first.
    routes: Vec<Route>,
    in_flight: usize,
    /// The most requests that are taken: waiting, and sent to those who take further ones.
    most: usize,
    /// Of the instances that are gone.
    average_time: Option<Duration>,
}

impl Dispatch {
    /// New bounds, from a changed manifest: requests that may wait, and `places` for those that run, the concurrency of
    /// all instances that there may be. Nothing that waits is thrown out.
    pub fn set_bounds(&mut self, queue: u32, places: u32) {
        self.most = queue as usize + places as usize;
    }

    /// An instance takes requests from now on, `concurrency` at once if it is concurrent. `name`: its [`hash`].
    pub fn enable(&mut self, instance: InstanceNumber, name: u64, mode: HandlerMode, concurrency: u32) {
        let at = self.find(instance).unwrap_or_else(|at| {
            self.routes.insert(at, Route::new(instance, name));
            at
        });
        if let Some(route) = self.routes.get_mut(at) {
            route.enable(mode, concurrency);
        }
    }

    /// So many requests of another scheduler the instance has.
    pub fn set_external_requests(&mut self, instance: InstanceNumber, requests: u32) {
        if let Some(route) = self.find(instance).ok().and_then(|at| self.routes.get_mut(at)) {
            route.external_requests = requests;
        }
    }

    /// The instance takes no further requests; those it has go on.
    pub fn disable(&mut self, instance: InstanceNumber) {
        if let Some(route) = self.find(instance).ok().and_then(|at| self.routes.get_mut(at)) {
            route.enabled = false;
        }
    }

    /// A request came.
    pub fn submit(&mut self, ticket: Ticket, now: Moment) -> Admission {
        let open = self.routes.iter().filter(|route| route.enabled).map(Route::counted);
        if self.queue.len() + open.sum::<usize>() >= self.most {
            return Admission::Full;
        }
        self.queue.push(ticket, now);
        Admission::Queued
    }

    /// The next request to send now and the instance to send it to, if there is a request and an instance has room.
    /// `may_send`: whether an instance can take requests at this moment, though it is open.
    pub fn next(
        &mut self,
        now: Moment,
        may_send: impl Fn(InstanceNumber) -> bool,
    ) -> Option<(RequestId, InstanceNumber)> {
        let first = *self.queue.first()?;
        let at = selection::select(&self.routes, first.session, may_send)?;
        let route = self.routes.get_mut(at)?;
        self.queue.remove_first(first);
        route.send(first, now);
        self.in_flight += 1;
        Some((first.id, route.instance))
    }

    /// Not one byte of this request has reached the instance it was meant for: it waits again, in its old place.
    /// Returns whether it was sent, and nobody has cancelled it.
    pub fn requeue(&mut self, id: RequestId) -> bool {
        let is_it = |sent: &route::Sent| sent.id() == id && !sent.is_cancelled();
        for route in &mut self.routes {
            if let Some(sent) = route.sent.iter().position(is_it).and_then(|at| route.sent.remove(at)) {
                self.in_flight -= 1;
                self.queue.requeue(sent.request);
                return true;
            }
        }
        false
    }

    /// The last frame of a request came. Returns the instance that had it.
    pub fn finish(&mut self, id: RequestId, now: Moment) -> Option<InstanceNumber> {
        let route = self.routes.iter_mut().find_map(|route| route.finish(id, now).then_some(route.instance));
        self.in_flight -= usize::from(route.is_some());
        route
    }

    /// Nobody waits for this request any more.
    pub fn cancel(&mut self, id: RequestId, now: Moment) -> Cancelled {
        for route in &mut self.routes {
            if let Some(sent) = route.sent.iter_mut().find(|sent| sent.id() == id) {
                sent.cancel(now);
                return Cancelled::InFlight(route.instance);
            }
        }
        if self.queue.remove(id) { Cancelled::Dequeued } else { Cancelled::Unknown }
    }

    /// Since when a cancelled request has been running there, whose handler may be ignoring that, but for those that were
    /// written off.
    #[must_use]
    pub fn cancelled_since(&self, instance: InstanceNumber) -> Option<Moment> {
        self.route(instance)?.cancelled_since()
    }

    /// Writes off the requests there that have been running cancelled since then or longer: their slots are lost for as
    /// long as their handlers run. Returns them.
    pub fn write_off(&mut self, instance: InstanceNumber, since: Moment) -> Vec<RequestId> {
        let route = self.find(instance).ok().and_then(|at| self.routes.get_mut(at));
        route.map(|route| route.write_off(since)).unwrap_or_default()
    }

    /// What stuck handlers leave of an instance; `None` while it has none.
    #[must_use]
    pub fn stuck_handlers(&self, instance: InstanceNumber) -> Option<StuckHandlers> {
        self.route(instance)?.stuck_handlers()
    }

    /// Requests that are most likely what keeps an instance: those that were cancelled and run on, or else all that may
    /// have begun.
    #[must_use]
    pub fn suspects(&self, instance: InstanceNumber) -> Vec<RequestId> {
        let begun = || self.route(instance).into_iter().flat_map(|route| route.sent.iter().take(route.begun()));
        let cancelled: Vec<_> = begun().filter(|sent| sent.is_cancelled()).map(route::Sent::id).collect();
        if cancelled.is_empty() { begun().map(route::Sent::id).collect() } else { cancelled }
    }

    /// The instance is gone: requests that may have begun are lost, the others wait again.
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

    /// Takes everything that waits, to refuse it.
    pub fn drain_queue(&mut self) -> Vec<RequestId> {
        self.queue.drain()
    }

    /// All requests that the instance has.
    #[must_use]
    pub fn ids_in_flight(&self, instance: InstanceNumber) -> Vec<RequestId> {
        self.route(instance).into_iter().flat_map(|route| &route.sent).map(route::Sent::id).collect()
    }

    /// Requests that run or lie in the sockets of instances.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Requests that instances are wanted for: those that wait, and those that run where more are taken. What runs out
    /// elsewhere, in a version that is leaving, is nobody's load.
    #[must_use]
    pub fn load(&self) -> usize {
        let open = self.routes.iter().filter(|route| route.enabled);
        self.queue.len() + open.map(Route::counted).sum::<usize>()
    }

    /// Of them, those that this instance has.
    #[must_use]
    pub fn in_flight_of(&self, instance: InstanceNumber) -> usize {
        self.route(instance).map_or(0, |route| route.sent.len())
    }

    /// Requests that wait here.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Time the handler usually takes, once it is known: the average over the instances.
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

    /// Where its lane is, or where it would be.
    fn find(&self, instance: InstanceNumber) -> Result<usize, usize> {
        self.routes.binary_search_by_key(&instance, |route| route.instance)
    }
}

#[cfg(test)]
mod tests;
