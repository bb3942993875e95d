//! Where models' tasks and the ledger meet: a handle for all, a seat for each instance.
//!
//! Seats ask and tell without waiting. What they are told goes into a box that one task empties into their inboxes; it
//! is bounded by the seats, since each is answered once and displaced once.

use super::messages;
use super::settings::{need, shown};
use super::waiters::Refused;
use crate::launcher::LauncherHandle;
use crate::metrics::CapacityMetrics;
use crate::model::Message;
use crate::policy::Moment;
use crate::policy::capacity::{
    Action, Amounts, Cause, Event, Ledger, Purpose, Refusal, Resource, SeatKey, View, Zygote,
};
use crate::watchdog::Pulse;
use omni_config::manifest::Resources;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};

/// What a model's task is told of its instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// Start it.
    Granted,
    /// Do not start it.
    Refused {
        /// Trying again cannot help before somebody changes the model or the node.
        hopeless: bool,
        /// There would be room in place of the model's instances that serve.
        in_place: bool,
        /// Why, for people on the node; names no other model.
        message: String,
    },
    /// It did nothing wrong: another one needs its room. Let it go; its next request starts it again.
    Displaced {
        /// The model that needs the room.
        by: Arc<str>,
        /// What for.
        purpose: Purpose,
        /// What of it is needed.
        room: Room,
    },
}

/// Room that an instance gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Its share of the node.
    Node,
    /// Its place on a card.
    Card,
}

/// Who asks for a seat.
#[derive(Debug)]
pub struct Applicant<'a> {
    /// The model's name.
    pub model: &'a str,
    /// What an instance may use.
    pub resources: &'a Resources,
    /// The zygote that it comes from, if it comes from one.
    pub zygote: Option<Zygote>,
    /// The model's `min-instances`.
    pub min: u32,
    /// Why an instance is asked for.
    pub cause: Cause,
    /// Where the answers go.
    pub inbox: mpsc::Sender<Message>,
}

/// Between two looks at who is idle, while somebody hopes for it.
const LOOK: Duration = Duration::from_millis(20);
/// The value of [`Seated::idle_since`] while there is a request, or while no request can be there.
const BUSY: u64 = u64::MAX;

/// A seat as the ledger's side sees it.
#[derive(Debug)]
struct Seated {
    need: Amounts,
    zygote: Option<Zygote>,
    inbox: mpsc::Sender<Message>,
    /// In nanoseconds since the scheduler started; [`BUSY`] at other times.
    idle_since: Arc<AtomicU64>,
    serves: bool,
    /// There may be processes of it: its end makes room.
    starts: bool,
}

impl Seated {
    /// What it asks for, to be read on.
    fn wants(&self, resource: Resource) -> String {
        let need = shown(resource, self.need.of(resource));
        match self.zygote.map(|zygote| zygote.need.of(resource)) {
            None | Some(0) => format!("it may use {need}"),
            Some(zygote) => format!("it may use {need} and its zygote {}", shown(resource, zygote)),
        }
    }
}

#[derive(Debug)]
pub(super) struct Book {
    pub(super) ledger: Ledger,
    seated: BTreeMap<SeatKey, Seated>,
    next_key: SeatKey,
    /// What is to be told, in order.
    pub(super) told: Vec<(SeatKey, Told)>,
    /// Who ends zygotes, once it is known.
    launcher: Option<LauncherHandle>,
    pub(super) refused: Refused,
    pub(super) metrics: CapacityMetrics,
}

#[derive(Debug)]
pub(super) struct Desk {
    book: Mutex<Book>,
    pub(super) notify: Notify,
    /// When the scheduler started.
    pub(super) started: Instant,
}

impl Desk {
    pub(super) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, event: &Event) {
        self.book().step(event);
        self.notify.notify_one();
    }
}

impl Book {
    pub(super) fn step(&mut self, event: &Event) {
        for action in self.ledger.step(event) {
            match action {
                Action::Grant(seat) => self.told.push((seat, Told::Granted)),
                Action::Refuse { seat, why } => {
                    let refused = self.refused(seat, why);
                    self.told.push((seat, refused));
                }
                Action::Displace { seat, by, purpose } => {
                    self.metrics.displaced();
                    self.told.push((seat, Told::Displaced { by, purpose, room: Room::Node }));
                }
                // Said before who has their room can be started.
                Action::EndZygotes(model) => {
                    if let Some(launcher) = &self.launcher {
                        launcher.end_zygotes(&model);
                    }
                }
            }
        }
        self.metrics.set(&self.ledger.view());
    }

    fn refused(&self, seat: SeatKey, why: Refusal) -> Told {
        let wants = |resource| self.seated.get(&seat).map_or_else(String::new, |seated| seated.wants(resource));
        match why {
            Refusal::TooBig { resource, budget } => {
                self.metrics.refused(resource, "too-big");
                let (wants, budget) = (wants(resource), shown(resource, budget));
                let message = format!("{wants}, and [capacity] gives all instances of the node {budget}");
                Told::Refused { hopeless: true, in_place: false, message }
            }
            Refusal::Full(shortage) => {
                self.metrics.refused(shortage.resource, "full");
                let message = messages::shortage(&wants(shortage.resource), &shortage);
                Told::Refused { hopeless: false, in_place: shortage.in_place, message }
            }
        }
    }

    /// Tells the ledger who is idle since when.
    pub(super) fn look(&mut self) {
        for (key, seated) in self.seated.iter().filter(|(_, seated)| seated.serves) {
            let since = seated.idle_since.load(Ordering::Relaxed);
            let idle_since = (since != BUSY).then(|| Moment::from_nanos(since));
            self.ledger.step(&Event::Serves { seat: *key, idle_since });
        }
    }
}

/// For models' tasks and for who wants to see what there is.
#[derive(Debug, Clone)]
pub struct CapacityHandle(pub(super) Arc<Desk>);

impl CapacityHandle {
    /// Asks for an instance that is to be started: [`Told::Granted`] or [`Told::Refused`] follows. Dropped before that,
    /// the seat asks no more.
    #[must_use]
    pub fn ask(&self, applicant: Applicant<'_>) -> CapacitySeat {
        let now = self.0.started.elapsed();
        let cause = applicant.cause;
        self.seat(applicant, |seat, model, need, zygote, min| Event::Ask { seat, model, need, zygote, min, cause, now })
    }

    /// For an instance of an earlier scheduler, which is there already.
    #[must_use]
    pub fn adopt(&self, applicant: Applicant<'_>) -> CapacitySeat {
        let adopted = |seat, model, need, zygote, min| Event::Adopted { seat, model, need, zygote, min };
        let seat = self.seat(applicant, adopted);
        seat.starts();
        seat
    }

    fn seat(
        &self,
        applicant: Applicant<'_>,
        event: impl Fn(SeatKey, Arc<str>, Amounts, Option<Zygote>, u32) -> Event,
    ) -> CapacitySeat {
        let Applicant { model, resources, zygote, min, cause: _, inbox } = applicant;
        let (model, need): (Arc<str>, _) = (model.into(), need(resources));
        let idle_since = Arc::new(AtomicU64::new(BUSY));
        let mut book = self.0.book();
        book.look();
        let key = book.next_key;
        book.next_key += 1;
        book.seated.insert(
            key,
            Seated { need, zygote, inbox, idle_since: Arc::clone(&idle_since), serves: false, starts: false },
        );
        book.step(&event(key, Arc::clone(&model), need, zygote, min));
        drop(book);
        self.0.notify.notify_one();
        CapacitySeat { key, model, idle_since, desk: Arc::clone(&self.0) }
    }

    /// From now on this launcher is told of zygotes whose room is needed. Nothing has come from one before.
    pub fn speak_to(&self, launcher: LauncherHandle) {
        self.0.book().launcher = Some(launcher);
    }

    /// What there is, and what is promised of it.
    #[must_use]
    pub fn view(&self) -> View {
        self.0.book().ledger.view()
    }
}

/// An instance's share of the node. Dropped when the instance is gone, which frees it.
#[derive(Debug)]
pub struct CapacitySeat {
    key: SeatKey,
    model: Arc<str>,
    idle_since: Arc<AtomicU64>,
    desk: Arc<Desk>,
}

impl CapacitySeat {
    /// Which instance the answers are for.
    #[must_use]
    pub fn key(&self) -> SeatKey {
        self.key
    }

    /// The launcher is asked for it: from here on its end makes room.
    pub fn starts(&self) {
        if let Some(seated) = self.desk.book().seated.get_mut(&self.key) {
            seated.starts = true;
        }
    }

    /// It takes requests, and has none yet. Before this it is not displaced.
    pub fn serves(&self, now: Moment) {
        self.idle(now);
        let mut book = self.desk.book();
        if let Some(seated) = book.seated.get_mut(&self.key) {
            seated.serves = true;
        }
    }

    /// It has a request.
    pub fn busy(&self) {
        self.idle_since.store(BUSY, Ordering::Relaxed);
    }

    /// It has no request any more.
    pub fn idle(&self, now: Moment) {
        self.idle_since.store(u64::try_from(now.as_nanos()).unwrap_or(BUSY - 1), Ordering::Relaxed);
    }

    /// It is on its way out, for whatever reason: others may count on its room. There is no way back.
    pub fn leaves(&self) {
        self.desk.say(&Event::Leaves(self.key));
    }

    /// The model's `min-instances` is another one now.
    pub fn set_min(&self, min: u32) {
        self.desk.say(&Event::Min { model: Arc::clone(&self.model), min });
    }
}

impl Drop for CapacitySeat {
    fn drop(&mut self) {
        let now = self.desk.started.elapsed();
        let mut book = self.desk.book();
        if book.seated.remove(&self.key).is_some_and(|seated| seated.starts) {
            book.room_appeared();
        }
        book.step(&Event::Gone { seat: self.key, now });
        drop(book);
        self.desk.notify.notify_one();
    }
}

/// The end that stays with the task.
#[derive(Debug)]
pub(super) struct Answers(Arc<Desk>);

impl Answers {
    /// Carries what is told into the inboxes. Models' tasks empty theirs without ever waiting for this.
    pub(super) async fn carry(self, pulse: Pulse) {
        loop {
            pulse.during(self.news()).await;
            for (inbox, message) in self.take() {
                let _ = inbox.send(message).await; // a task that has ended needs no answer
            }
        }
    }

    /// Waits until there may be something to tell. That somebody became idle is nobody's word: while one hopes for it, all
    /// are looked at every now and then.
    async fn news(&self) {
        let look_in = self.look_in();
        tokio::select! {
            () = self.0.notify.notified() => {}
            () = tokio::time::sleep(look_in.unwrap_or_default()), if look_in.is_some() => self.look(),
        }
    }

    fn look_in(&self) -> Option<Duration> {
        let book = self.0.book();
        if book.ledger.has_hopes() {
            return Some(LOOK);
        }
        book.ledger.next_expiry().map(|expiry| expiry.saturating_sub(self.0.started.elapsed()))
    }

    fn look(&self) {
        let mut book = self.0.book();
        book.look();
        book.step(&Event::Look(self.0.started.elapsed()));
    }

    /// What those are to be told that still have their seat.
    fn take(&self) -> Vec<(mpsc::Sender<Message>, Message)> {
        let mut book = self.0.book();
        let told = std::mem::take(&mut book.told);
        let address = |(seat, told): (SeatKey, Told)| {
            let seated = book.seated.get(&seat)?;
            Some((seated.inbox.clone(), Message::Capacity(seat, told)))
        };
        let mut messages: Vec<_> = told.into_iter().filter_map(address).collect();
        messages.extend(book.refused.take().map(|inbox| (inbox, Message::Room)));
        messages
    }
}

/// A desk with nobody at it.
pub(super) fn new(budget: Amounts, metrics: CapacityMetrics, started: Instant) -> (CapacityHandle, Answers) {
    let ledger = Ledger::new(budget);
    metrics.set(&ledger.view());
    let (seated, told, refused) = (BTreeMap::new(), Vec::new(), Refused::default());
    let book = Book { ledger, seated, next_key: 0, told, launcher: None, refused, metrics };
    let desk = Arc::new(Desk { book: Mutex::new(book), notify: Notify::new(), started });
    (CapacityHandle(Arc::clone(&desk)), Answers(desk))
}

#[cfg(test)]
mod tests;
