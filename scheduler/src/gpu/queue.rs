//! Where models' tasks and the GPU task meet: a handle for all, a seat for each instance.
//!
//! What an instance says waits here until the GPU task takes it. That is bounded by the instances that exist, so that
//! nothing is ever refused for want of room: an instance says each thing once until it is answered, and of being busy
//! and idle by turns the last two words are enough. What the GPU task says goes into the model's inbox.

use super::view::View;
use crate::model::Message;
use crate::policy::capacity::{Cause, SeatKey};
use crate::policy::residency::{Command, InstanceKey};
use omni_control_api as api;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::instance::{GpuReport, GpuUse};
use omni_node_protocol::launcher::{GpuMode, GpuSpec};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, mpsc, watch};

/// What a model's task is told of its instance's GPU memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// Start it, with this.
    Placed(GpuSpec),
    /// Do not start it.
    Refused {
        /// Trying again cannot help before somebody changes the model or the node.
        hopeless: bool,
        /// There would be room in place of the model's instances that serve.
        in_place: bool,
        /// Why, for people on the node; names no other model.
        message: String,
    },
    /// Its memory is on the card: send requests until [`Told::Yield`].
    Granted,
    /// Send no more requests, and say so ([`Seat::yielded`]) when nothing is in flight.
    Yield,
    /// Send the worker this order; its report goes back with [`Seat::moved`].
    Order {
        /// Comes back in the report.
        number: u64,
        /// What to do.
        order: Command,
    },
    /// Ask the worker what it uses; the answer goes back with [`Seat::used`].
    Report,
    /// End the instance.
    End {
        /// It did nothing wrong: another one needs its place, and its next request starts it again.
        displaced: bool,
        /// Why, for people on the node; names no other model.
        message: String,
    },
}

/// Who asks for a place.
#[derive(Debug)]
pub struct Applicant {
    /// The model's name.
    pub model: String,
    /// The instance.
    pub instance: InstanceId,
    /// Its limit, in bytes.
    pub limit: u64,
    /// Whether its memory can be moved.
    pub mode: GpuMode,
    /// Its share of the node.
    pub seat: SeatKey,
    /// Why an instance is asked for.
    pub cause: Cause,
    /// Where the answers go.
    pub inbox: mpsc::Sender<Message>,
}

/// What an instance says.
#[derive(Debug)]
pub(super) enum Word {
    Place(Box<Applicant>),
    Adopted { applicant: Box<Applicant>, uuid: String, ready: bool },
    Ready,
    Want,
    Unwanted,
    Busy,
    Idle,
    Yielded,
    Used(GpuUse),
    Moved(Box<GpuReport>),
    Gone,
}

impl Word {
    /// Whether it changes where the instance's memory is or goes. The others are said again and again: they are shown a
    /// little later, and there is nothing in them that a look at the card could contradict.
    pub(super) fn is_news(&self) -> bool {
        match self {
            Self::Busy | Self::Idle | Self::Used(_) => false,
            Self::Place(_)
            | Self::Adopted { .. }
            | Self::Ready
            | Self::Want
            | Self::Unwanted
            | Self::Yielded
            | Self::Moved(_)
            | Self::Gone => true,
        }
    }
}

#[derive(Debug, Default)]
struct Desk {
    words: Mutex<Vec<(InstanceKey, Word)>>,
    notify: Notify,
    keys: AtomicU64,
}

impl Desk {
    fn words(&self) -> MutexGuard<'_, Vec<(InstanceKey, Word)>> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, key: InstanceKey, word: Word) {
        let mut words = self.words();
        match word {
            Word::Busy | Word::Idle if turns_back(&mut words, key, &word) => {}
            Word::Place(_)
            | Word::Adopted { .. }
            | Word::Ready
            | Word::Want
            | Word::Unwanted
            | Word::Busy
            | Word::Idle
            | Word::Yielded
            | Word::Used(_)
            | Word::Moved(_)
            | Word::Gone => words.push((key, word)),
        }
        drop(words);
        self.notify.notify_one();
    }
}

/// Whether the instance said this already and then the opposite, and nothing else since: the opposite is taken back.
fn turns_back(words: &mut Vec<(InstanceKey, Word)>, key: InstanceKey, word: &Word) -> bool {
    let mut own = words.iter().enumerate().rev().filter(|(_, (whose, _))| *whose == key);
    let (Some((last, (_, opposite))), Some((_, (_, same)))) = (own.next(), own.next()) else { return false };
    let back =
        matches!((same, opposite, word), (Word::Busy, Word::Idle, Word::Busy) | (Word::Idle, Word::Busy, Word::Idle));
    if back {
        words.remove(last);
    }
    back
}

/// For models' tasks and for who wants to see the cards.
#[derive(Debug, Clone)]
pub struct GpuHandle {
    desk: Arc<Desk>,
    view: watch::Receiver<View>,
}

impl GpuHandle {
    /// Asks for a place for an instance that is to be started: [`Told::Placed`] or [`Told::Refused`] follows.
    #[must_use]
    pub fn place(&self, applicant: Applicant) -> Seat {
        self.seat(Word::Place(Box::new(applicant)))
    }

    /// An instance of an earlier scheduler, on the card with this uuid. It is not granted.
    #[must_use]
    pub fn adopt(&self, applicant: Applicant, uuid: &str, ready: bool) -> Seat {
        self.seat(Word::Adopted { applicant: Box::new(applicant), uuid: uuid.to_owned(), ready })
    }

    fn seat(&self, word: Word) -> Seat {
        let key = self.desk.keys.fetch_add(1, Ordering::Relaxed);
        self.desk.say(key, word);
        Seat { key, desk: Arc::clone(&self.desk) }
    }

    /// The cards and who is on them.
    #[must_use]
    pub fn view(&self) -> api::Gpus {
        self.view.borrow().now()
    }

    /// The instances whose memory is not, or not all, on their card.
    #[must_use]
    pub fn away(&self) -> HashSet<String> {
        self.view.borrow().away()
    }
}

/// An instance's place in the ledger. Dropped when the instance is gone, which frees what it had.
#[derive(Debug)]
pub struct Seat {
    key: InstanceKey,
    desk: Arc<Desk>,
}

impl Seat {
    /// Which instance the answers are for.
    #[must_use]
    pub fn key(&self) -> InstanceKey {
        self.key
    }

    /// Its engine is ready: it is granted from now on.
    pub fn ready(&self) {
        self.desk.say(self.key, Word::Ready);
    }

    /// A request waits, and the instance is ready and not granted.
    pub fn want(&self) {
        self.desk.say(self.key, Word::Want);
    }

    /// No request waits any more.
    pub fn unwanted(&self) {
        self.desk.say(self.key, Word::Unwanted);
    }

    /// Something is in flight now, or nothing is any more.
    pub fn busy(&self, busy: bool) {
        self.desk.say(self.key, if busy { Word::Busy } else { Word::Idle });
    }

    /// The answer to [`Told::Yield`]: nothing is in flight, and nothing will be until it is granted again.
    pub fn yielded(&self) {
        self.desk.say(self.key, Word::Yielded);
    }

    /// What its accounting says.
    pub fn used(&self, usage: GpuUse) {
        self.desk.say(self.key, Word::Used(usage));
    }

    /// What came of an order.
    pub fn moved(&self, report: GpuReport) {
        self.desk.say(self.key, Word::Moved(Box::new(report)));
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.desk.say(self.key, Word::Gone);
    }
}

/// The ends that stay with the GPU task.
#[derive(Debug)]
pub(super) struct Ends {
    desk: Arc<Desk>,
    pub(super) view: watch::Sender<View>,
}

impl Ends {
    /// What was said since the last look, in order.
    pub(super) fn take(&self) -> Vec<(InstanceKey, Word)> {
        std::mem::take(&mut *self.desk.words())
    }

    /// Waits until something was said.
    pub(super) async fn changed(&self) {
        self.desk.notify.notified().await;
    }
}

/// A desk, seen from both sides.
pub(super) fn new() -> (GpuHandle, Ends) {
    let (sender, view) = watch::channel(View::asking());
    let desk = Arc::new(Desk::default());
    (GpuHandle { desk: Arc::clone(&desk), view }, Ends { desk, view: sender })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::testing::applicant;

    fn seats() -> ([Seat; 2], Ends) {
        let (handle, ends) = new();
        let seats = [0, 1].map(|_| handle.place(applicant()));
        assert_eq!(ends.take().len(), 2);
        (seats, ends)
    }

    fn said(ends: &Ends) -> String {
        let words = ends.take();
        words.iter().map(|(key, word)| format!("{key} {word:?}")).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn work_that_begins_and_ends_takes_two_words_at_most() {
        let ([one, two], ends) = seats();
        for round in 0..1000 {
            one.busy(true);
            two.busy(round % 2 == 0);
            one.busy(false);
        }
        assert_eq!(said(&ends), "0 Busy, 1 Busy, 1 Idle, 0 Idle");
        one.busy(true);
        one.busy(false);
        one.busy(true);
        assert_eq!(said(&ends), "0 Busy");
    }

    #[test]
    fn what_was_said_in_between_keeps_its_place() {
        let ([one, _two], ends) = seats();
        one.busy(true);
        one.busy(false);
        one.yielded();
        one.want();
        one.busy(true);
        assert_eq!(said(&ends), "0 Busy, 0 Idle, 0 Yielded, 0 Want, 0 Busy");
    }

    #[test]
    fn a_dropped_seat_says_that_the_instance_is_gone() {
        let ([one, two], ends) = seats();
        drop(two);
        one.want();
        assert_eq!(said(&ends), "1 Gone, 0 Want");
    }

    #[tokio::test]
    async fn a_word_wakes_the_task_also_when_it_came_first() {
        let ([one, _two], ends) = seats();
        one.want();
        ends.changed().await;
        assert_eq!(said(&ends), "0 Want");
    }
}
