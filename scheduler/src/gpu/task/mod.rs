//! The task that owns all cards: events in, the policy's actions out.
//!
//! Events come from the desk (what instances say), from the driver's thread, and from time. The task waits for nobody:
//! models' inboxes are emptied by tasks that never wait for this one, and a stuck driver only makes its figures old.

use super::messages::{self, Refused};
use super::nvml::NvmlError;
use super::placed::Seated;
use super::probe::{Card, EVERY, Probe, Reading};
use super::queue::{Applicant, Ends, Told, Word};
use super::settings::settings;
use super::view::{self, View};
use super::wire;
use crate::capacity::CapacityHandle;
use crate::machine;
use crate::metrics::GpuMetrics;
use crate::model::Message;
use crate::policy::Moment;
use crate::policy::residency::{Action, CardIndex, Command, Event, InstanceKey, Residency};
use crate::watchdog::Pulse;
use omni_config::node::Gpu;
use omni_control_api as api;
use omni_node_protocol::instance::GpuReport;
use omni_node_protocol::launcher::{GpuMode, GpuSpec};
use std::collections::HashMap;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// For the driver to say what cards there are; each takes seconds to wake up on some machines.
const FOUND_WITHIN: Duration = Duration::from_secs(120);
/// A driver that has not answered for so long is said to be stuck.
const STUCK_AFTER: Duration = Duration::from_secs(15);
/// Who has done nothing since he said what he has is asked at every so many polls only.
const IDLE_POLLS: u32 = 15;
/// Requests that begin and end are published no more often than this.
const CALM: Duration = Duration::from_millis(100);
/// Between two looks at who is idle, while somebody hopes for it.
const LOOK: Duration = Duration::from_millis(20);

pub(super) struct GpuTask {
    cards: Vec<Card>,
    /// Why there are no cards.
    none: Option<String>,
    pub(super) policy: Residency,
    pub(super) seated: HashMap<InstanceKey, Seated>,
    /// When the driver's newest look began.
    looked: std::time::Instant,
    /// What each card's last look complained of, to be logged once.
    complaints: Vec<Option<NvmlError>>,
    pub(super) ends: Ends,
    pub(super) capacity: CapacityHandle,
    metrics: GpuMetrics,
    look: SyncSender<()>,
    /// The moment zero of the policy.
    began: Instant,
    publish_at: Option<Instant>,
    polls: u32,
}

/// Finds the cards, then serves for as long as the scheduler lives.
pub(super) async fn run(
    config: Gpu,
    probe: Probe,
    ends: Ends,
    (capacity, metrics): (CapacityHandle, GpuMetrics),
    pulse: Pulse,
) {
    let Probe { cards, readings, look } = probe;
    let cards = match pulse.during(tokio::time::timeout(FOUND_WITHIN, cards)).await {
        Ok(Ok(cards)) => cards.and_then(usable),
        Ok(Err(_)) => Err("no thread for the driver could be started".to_owned()),
        Err(_) => Err(format!("the driver did not say what cards there are within {FOUND_WITHIN:?}")),
    };
    match &cards {
        Ok(cards) => {
            for card in cards {
                tracing::info!(gpu = card.index, uuid = %card.uuid, name = card.name, bytes = card.total_bytes, "GPU");
            }
        }
        Err(message) => tracing::info!("no GPU for models: {message}"),
    }
    let (cards, none) = cards.map_or_else(|message| (Vec::new(), Some(message)), |cards| (cards, None));
    let policy = Residency::new(settings(&config, &cards, machine::memory().unwrap_or(0)));
    let complaints = vec![None; cards.len()];
    let looked = std::time::Instant::now();
    let (began, seated, publish_at, polls) = (Instant::now(), HashMap::new(), None, 0);
    let task = GpuTask {
        cards,
        none,
        policy,
        seated,
        looked,
        complaints,
        ends,
        capacity,
        metrics,
        look,
        began,
        publish_at,
        polls,
    };
    task.serve(readings, &pulse).await;
}

/// Cards of which some can move memory and others cannot: only the first are used, or a model would be able to start on
/// one card and not on the next.
fn usable(cards: Vec<Card>) -> Result<Vec<Card>, String> {
    if cards.iter().all(|card| card.unified.is_err()) {
        return Ok(cards);
    }
    let (able, unable): (Vec<_>, Vec<_>) = cards.into_iter().partition(|card| card.unified.is_ok());
    for Card { index, unified, .. } in unable {
        tracing::warn!(gpu = index, reason = unified.err(), "not used: its memory cannot be moved, as others' can");
    }
    Ok(able)
}

impl GpuTask {
    async fn serve(mut self, mut readings: watch::Receiver<Reading>, pulse: &Pulse) {
        let mut polls = tokio::time::interval(EVERY);
        polls.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut driver_lives = !self.cards.is_empty();
        self.publish();
        loop {
            let wake = self.policy.wake_at().map(|at| self.began + at);
            let hopes = (!self.policy.hoping().is_empty()).then(|| Instant::now() + LOOK);
            pulse.turn();
            tokio::select! {
                () = pulse.asked() => {}
                () = self.ends.changed() => {
                    for (key, word) in self.ends.take() {
                        self.take(key, word).await;
                    }
                }
                changed = readings.changed(), if driver_lives => match changed {
                    Ok(()) => {
                        let reading = readings.borrow_and_update().clone();
                        self.seen(reading).await;
                    }
                    Err(_) => driver_lives = false,
                },
                _ = polls.tick(), if !self.cards.is_empty() => self.poll().await,
                () = sleep_until(wake) => self.step(Event::Tick).await,
                () = sleep_until(hopes) => self.look_for_room().await,
                () = sleep_until(self.publish_at) => self.publish(),
            }
        }
    }

    pub(super) fn now(&self) -> Moment {
        self.began.elapsed()
    }

    async fn take(&mut self, key: InstanceKey, word: Word) {
        if word.is_news() {
            self.publish_at = Some(Instant::now());
        } else {
            self.publish_at.get_or_insert_with(|| Instant::now() + CALM);
        }
        if let Some(seated) = self.seated.get_mut(&key) {
            seated.hear(&word);
        }
        let instance = key;
        let event = match word {
            Word::Place(applicant) => return self.place(key, *applicant).await,
            Word::Adopted { applicant, uuid, ready } => return self.adopt(key, *applicant, &uuid, ready).await,
            Word::Moved(report) => return self.moved(key, &report).await,
            Word::Gone => {
                if let Some(seated) = self.seated.remove(&key) {
                    self.metrics.gone(&seated.applicant.model);
                }
                Event::Gone { instance }
            }
            Word::Ready => Event::Ready { instance },
            Word::Want => Event::Want { instance },
            Word::Unwanted => Event::Unwanted { instance },
            Word::Busy => Event::Busy { instance },
            Word::Idle => Event::Idle { instance },
            Word::Yielded => Event::Yielded { instance },
            Word::Used(usage) => Event::Used { instance, usage: wire::usage(usage) },
        };
        self.step(event).await;
    }

    async fn place(&mut self, key: InstanceKey, applicant: Applicant) {
        let (limit, mode) = (applicant.limit, applicant.mode);
        self.seat(key, applicant, None, true);
        let cannot = self.cards.iter().find_map(|card| card.unified.as_ref().err());
        if let (GpuMode::Unified, Some(why)) = (mode, cannot) {
            return self.refuse(key, messages::not_movable(why)).await;
        }
        // Those that hope already asked earlier.
        self.look_for_room().await;
        let mode = wire::mode(mode);
        self.ask_for_room(key, |others| Event::Place { instance: key, limit, mode, others }).await;
    }

    async fn adopt(&mut self, key: InstanceKey, applicant: Applicant, uuid: &str, ready: bool) {
        let card = self.cards.iter().position(|card| card.uuid.as_str() == uuid);
        let (limit, mode) = (applicant.limit, wire::mode(applicant.mode));
        self.seat(key, applicant, card, !ready);
        self.step(Event::Adopted { instance: key, card, limit, mode, ready }).await;
    }

    fn seat(&mut self, key: InstanceKey, applicant: Applicant, card: Option<CardIndex>, works: bool) {
        self.seated.insert(key, Seated::new(applicant, card, works));
    }

    /// The answer to an order. One that was not given, or is answered already, is none.
    async fn moved(&mut self, key: InstanceKey, report: &GpuReport) {
        let Some(seated) = self.seated.get_mut(&key) else { return };
        let Some((_, order)) = seated.order.filter(|(number, _)| *number == report.number) else { return };
        seated.order = None;
        // More than it may have, it cannot have moved.
        let moved = report.moved_bytes.min(seated.applicant.limit);
        match order {
            Command::Evict { .. } => {
                self.metrics.moved_out.inc_by(moved);
                let _ = self.look.try_send(()); // a look that is asked for already is as good
            }
            Command::Restore => drop(self.metrics.moved_in.inc_by(moved)),
            Command::Report => {}
        }
        self.step(Event::Reported { instance: key, report: wire::report(report) }).await;
    }

    pub(super) async fn step(&mut self, event: Event) {
        for action in self.policy.step(&event, self.now()) {
            self.act(action).await;
        }
    }

    pub(super) async fn act(&mut self, action: Action) {
        self.publish_at = Some(Instant::now());
        match action {
            Action::Placed { instance, card } => {
                let Some(seated) = self.seated.get_mut(&instance) else { return };
                let Some(found) = self.cards.get(card) else { return };
                seated.card = Some(card);
                let (limit_bytes, mode) = (seated.applicant.limit, seated.applicant.mode);
                let spec = GpuSpec { uuid: found.uuid.to_string(), minor: found.minor, limit_bytes, mode };
                self.tell(instance, Told::Placed(spec)).await;
            }
            // Its model is told by the node's capacity, before who has its place can be started.
            Action::Displace { .. } => {}
            Action::Refused { instance, why, in_place, stay } => {
                let limit = self.seated.get(&instance).map_or(0, |seated| seated.applicant.limit);
                let refused = messages::refused(why, limit, (in_place, stay), self.none.as_deref());
                self.refuse(instance, refused).await;
            }
            Action::Grant { instance, swap } => {
                if let Some(seated) = self.seated.get(&instance) {
                    self.metrics.swapped_in(&seated.applicant.model, swap);
                }
                self.tell(instance, Told::Granted).await;
            }
            Action::Yield { instance } => self.tell(instance, Told::Yield).await,
            Action::Order { instance, number, order } => {
                if let Some(seated) = self.seated.get_mut(&instance) {
                    seated.order = Some((number, order));
                }
                self.tell(instance, Told::Order { number, order }).await;
            }
            Action::End { instance, why } => {
                let ended = messages::ended(why);
                self.metrics.ended(ended.reason);
                let (displaced, message) = (ended.displaced, ended.message);
                self.tell(instance, Told::End { displaced, message }).await;
            }
        }
    }

    /// The seat stays until the model's task drops it; the policy knows nothing of it any more.
    async fn refuse(&mut self, key: InstanceKey, refused: Refused) {
        self.metrics.refused(refused.reason);
        let Refused { hopeless, in_place, message, .. } = refused;
        self.tell(key, Told::Refused { hopeless, in_place, message }).await;
    }

    async fn tell(&self, key: InstanceKey, told: Told) {
        if let Some(seated) = self.seated.get(&key) {
            let _ = seated.applicant.inbox.send(Message::Gpu(key, told)).await; // its end is on its way to us
        }
    }

    /// Asks who has memory what it is: between orders nobody says so by himself. Asking wakes a worker, so that those
    /// who do nothing are mostly left alone.
    async fn poll(&mut self) {
        self.polls = self.polls.wrapping_add(1);
        let all = self.polls.is_multiple_of(IDLE_POLLS);
        let asked = |seated: &Seated| seated.card.is_some() && (all || seated.may_have_changed());
        let placed = self.seated.iter().filter(|(_, seated)| asked(seated));
        for key in placed.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.tell(key, Told::Report).await;
        }
        self.publish();
    }

    /// The driver has looked.
    async fn seen(&mut self, reading: Reading) {
        self.looked = reading.began;
        for (card, looked) in reading.cards.into_iter().enumerate() {
            let complaint = looked.as_ref().err().cloned();
            let was = self.complaints.get_mut(card).map(|last| std::mem::replace(last, complaint.clone()));
            let is_new = was.is_some_and(|was| was != complaint);
            let index = self.cards.get(card).map_or(0, |card| card.index);
            match looked {
                Ok(seen) => {
                    self.step(Event::CardUsed { card, bytes: seen.used_bytes }).await;
                    for (instance, bytes, processes) in self.owners(card, &seen.owned, reading.began) {
                        self.step(Event::Seen { instance, bytes, processes }).await;
                    }
                }
                Err(error @ NvmlError::Lost(_)) if is_new => {
                    tracing::error!(gpu = index, %error, "its instances end; it is not used again before a restart");
                    self.step(Event::CardLost { card }).await;
                }
                Err(error) if is_new => tracing::warn!(gpu = index, %error, "the driver does not say what is in use"),
                Err(_) => {}
            }
        }
        self.publish();
    }

    /// What the driver says of each instance on a card that has said nothing since the look began.
    fn owners(
        &self,
        card: CardIndex,
        owned: &[(omni_node_protocol::id::InstanceId, u64)],
        began: std::time::Instant,
    ) -> Vec<(InstanceKey, u64, u32)> {
        let settled = self.seated.iter().filter(|(_, seated)| seated.card == Some(card) && seated.said_at < began);
        let sums = settled.map(|(key, seated)| {
            let own = owned.iter().filter(|(instance, _)| *instance == seated.applicant.instance);
            let (bytes, processes) =
                own.fold((0_u64, 0), |(bytes, count), (_, more)| (bytes.saturating_add(*more), count + 1));
            (*key, bytes, processes)
        });
        sums.collect()
    }

    fn publish(&mut self) {
        self.publish_at = None;
        let now = self.now();
        let name = |key| {
            let Applicant { model, instance, .. } = &self.seated.get(&key)?.applicant;
            Some((model.clone(), instance.to_string()))
        };
        let views = self.policy.cards();
        let lost: Vec<bool> = views.iter().map(|view| view.lost).collect();
        let cards = self.cards.iter().zip(views);
        let gpus = api::Gpus {
            gpus: cards.map(|(card, view)| view::card(card, view, now, name)).collect(),
            host_committed_bytes: self.policy.host_committed(),
            host_budget_bytes: self.policy.settings().host_budget,
            message: self.trouble(&lost),
        };
        self.metrics.set(&gpus, &lost);
        self.ends.view.send_replace(View::new(gpus));
    }

    fn trouble(&self, lost: &[bool]) -> Option<String> {
        if let Some(none) = &self.none {
            return Some(none.clone());
        }
        let stuck = self.looked.elapsed();
        if stuck > STUCK_AFTER {
            return Some(format!("the driver has not answered for {} s: figures are old", stuck.as_secs()));
        }
        let lost = self.cards.iter().zip(lost).filter(|(_, lost)| **lost).map(|(card, _)| card.index.to_string());
        let lost: Vec<String> = lost.collect();
        (!lost.is_empty()).then(|| {
            format!("GPU {} does not answer any more: not used before the scheduler is restarted", lost.join(", "))
        })
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod poll_tests;
#[cfg(test)]
mod tests;
