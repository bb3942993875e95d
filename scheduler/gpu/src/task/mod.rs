//! Task that owns all cards: events in, the policy's actions out.
//!
//! Events come from the queue, from the driver's thread, and from time. The task waits for no other: models' mailboxes
//! are emptied by tasks that never wait for this one, and a stuck driver only makes its figures old.

use super::messages::{self, Refused};
use super::nvml::NvmlError;
use super::placed::PlacedInstance;
use super::probe::{Card, EVERY, Probe, Reading};
use super::queue::{Decision, InstanceEvent, PlacementRequest, QueueReceiver};
use super::settings::settings;
use super::view::{self, View};
use super::wire;
use crate::metrics::GpuMetrics;
use omni_capacity::CapacityHandle;
use omni_config::node::Gpu;
use omni_control_api as api;
use omni_machine as machine;
use omni_node_protocol::instance::ResidencyReport;
use omni_node_protocol::launcher::{GpuMode, GpuSpec};
use omni_policy::Moment;
use omni_policy::residency::{Action, CardIndex, Command, Event, InstanceKey, Residency};
use omni_task::Heartbeat;
use std::collections::HashMap;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Time the driver gets to list the cards; each takes seconds to wake up on some machines.
const FOUND_WITHIN: Duration = Duration::from_secs(120);
/// Silence after which the driver is reported as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(15);
/// Idle instances that have already reported usage are polled only once in this many rounds.
const IDLE_POLLS: u32 = 15;
/// Shortest interval of publications for requests that begin and end.
const CALM: Duration = Duration::from_millis(100);
/// Interval of polls for idle instances while a request for a place is pending.
const LOOK: Duration = Duration::from_millis(20);

pub(super) struct GpuTask {
    cards: Vec<Card>,
    /// Why there are no cards.
    none: Option<String>,
    pub(super) policy: Residency,
    pub(super) placed: HashMap<InstanceKey, PlacedInstance>,
    /// Start of the driver's newest measurement.
    looked: std::time::Instant,
    /// Error of each card's last measurement, to be logged once.
    complaints: Vec<Option<NvmlError>>,
    pub(super) receiver: QueueReceiver,
    pub(super) capacity: CapacityHandle,
    metrics: GpuMetrics,
    look: SyncSender<()>,
    /// Time zero of the policy.
    began: Instant,
    publish_at: Option<Instant>,
    polls: u32,
}

/// Discovers the cards, then serves for as long as the scheduler lives.
pub(super) async fn run(
    config: Gpu,
    probe: Probe,
    receiver: QueueReceiver,
    (capacity, metrics): (CapacityHandle, GpuMetrics),
    heartbeat: Heartbeat,
) {
    let Probe { cards, readings, look } = probe;
    let cards = match heartbeat.during(tokio::time::timeout(FOUND_WITHIN, cards)).await {
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
    let (began, placed, publish_at, polls) = (Instant::now(), HashMap::new(), None, 0);
    let task = GpuTask {
        cards,
        none,
        policy,
        placed,
        looked,
        complaints,
        receiver,
        capacity,
        metrics,
        look,
        began,
        publish_at,
        polls,
    };
    task.serve(readings, &heartbeat).await;
}

/// Selects the usable cards: if some can move memory and others cannot, only the former, or a model would be able to
/// start on one card and not on the next.
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
    async fn serve(mut self, mut readings: watch::Receiver<Reading>, heartbeat: &Heartbeat) {
        let mut polls = tokio::time::interval(EVERY);
        polls.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut driver_lives = !self.cards.is_empty();
        self.publish();
        loop {
            let wake = self.policy.wake_at().map(|at| self.began + at);
            let retry = (!self.policy.pending_placements().is_empty()).then(|| Instant::now() + LOOK);
            heartbeat.turn();
            tokio::select! {
                () = heartbeat.asked() => {}
                () = self.receiver.changed() => {
                    for (key, event) in self.receiver.take() {
                        self.take(key, event).await;
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
                () = sleep_until(retry) => self.retry_placements().await,
                () = sleep_until(self.publish_at) => self.publish(),
            }
        }
    }

    pub(super) fn now(&self) -> Moment {
        self.began.elapsed()
    }

    async fn take(&mut self, key: InstanceKey, event: InstanceEvent) {
        if event.moves_memory() {
            self.publish_at = Some(Instant::now());
        } else {
            self.publish_at.get_or_insert_with(|| Instant::now() + CALM);
        }
        if let Some(placed) = self.placed.get_mut(&key) {
            placed.observe(&event);
        }
        let instance = key;
        let event = match event {
            InstanceEvent::Place(request) => return self.place(key, *request).await,
            InstanceEvent::Adopted { request, uuid, ready } => return self.adopt(key, *request, &uuid, ready).await,
            InstanceEvent::Moved(report) => return self.moved(key, &report).await,
            InstanceEvent::Gone => {
                if let Some(placed) = self.placed.remove(&key) {
                    self.metrics.gone(&placed.request.model);
                }
                Event::Gone { instance }
            }
            InstanceEvent::Ready => Event::Ready { instance },
            InstanceEvent::Want => Event::Wanted { instance },
            InstanceEvent::Unwanted => Event::Unwanted { instance },
            InstanceEvent::Busy => Event::Busy { instance },
            InstanceEvent::Idle => Event::Idle { instance },
            InstanceEvent::Yielded => Event::Yielded { instance },
            InstanceEvent::Used(usage) => {
                let Some(placed) = self.placed.get(&key) else { return };
                Event::UsageSampled { instance, usage: wire::usage(usage, placed.memory()) }
            }
        };
        self.step(event).await;
    }

    async fn place(&mut self, key: InstanceKey, request: PlacementRequest) {
        let (limit, mode) = (request.limit, request.mode);
        self.insert_placed(key, request, None, true);
        let cannot = self.cards.iter().find_map(|card| card.unified.as_ref().err());
        if let (GpuMode::Unified, Some(why)) = (mode, cannot) {
            return self.refuse(key, messages::not_movable(why)).await;
        }
        // Pending requests came earlier.
        self.retry_placements().await;
        let mode = wire::mode(mode);
        self.place_with(key, |others| Event::Place { instance: key, limit, mode, others }).await;
    }

    async fn adopt(&mut self, key: InstanceKey, request: PlacementRequest, uuid: &str, ready: bool) {
        let card = self.cards.iter().position(|card| card.uuid.as_str() == uuid).map(CardIndex);
        let (limit, mode) = (request.limit, wire::mode(request.mode));
        self.insert_placed(key, request, card, !ready);
        self.step(Event::Adopted { instance: key, card, limit, mode, ready }).await;
    }

    fn insert_placed(&mut self, key: InstanceKey, request: PlacementRequest, card: Option<CardIndex>, works: bool) {
        self.placed.insert(key, PlacedInstance::new(request, card, works));
    }

    /// Processes the report of a command; a report without a pending command is ignored.
    async fn moved(&mut self, key: InstanceKey, report: &ResidencyReport) {
        let Some(placed) = self.placed.get_mut(&key) else { return };
        let Some((_, command)) = placed.command.filter(|(number, _)| *number == report.number) else { return };
        placed.command = None;
        // Clamp: no instance can move more than its limit.
        let moved = report.moved_bytes.min(placed.request.limit);
        match command {
            Command::Evict { .. } => {
                placed.is_asleep = report.error == 0 && report.unanswered == 0;
                self.metrics.moved_out.inc_by(moved);
                placed.moves.evictions += u64::from(moved > 0);
                let _ = self.look.try_send(()); // a measurement that is already requested does as well
            }
            Command::Restore => {
                placed.is_asleep = false;
                self.metrics.moved_in.inc_by(moved);
                placed.moves.restores += u64::from(moved > 0);
            }
            Command::Report => {}
        }
        let memory = placed.memory();
        self.step(Event::Reported { instance: key, report: wire::report(report, memory) }).await;
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
                let Some(placed) = self.placed.get_mut(&instance) else { return };
                let Some(found) = self.cards.get(card.0) else { return };
                placed.card = Some(card);
                let (limit_bytes, mode) = (placed.request.limit, placed.request.mode);
                let spec = GpuSpec { uuid: found.uuid.to_string(), minor: found.minor, limit_bytes, mode };
                self.send(instance, Decision::Placed(spec)).await;
            }
            // The node's capacity notifies its model, before the instance that gets the place can be started.
            Action::Displace { .. } => {}
            Action::Refused { instance, reason, recreate_fits, retained } => {
                let limit = self.placed.get(&instance).map_or(0, |placed| placed.request.limit);
                let refused = messages::refused(reason, limit, (recreate_fits, retained), self.none.as_deref());
                self.refuse(instance, refused).await;
            }
            Action::Grant { instance, swap } => {
                if let Some(placed) = self.placed.get(&instance) {
                    self.metrics.swapped_in(&placed.request.model, swap);
                }
                self.send(instance, Decision::Granted).await;
            }
            Action::Yield { instance } => self.send(instance, Decision::Yield).await,
            Action::Command { instance, number, command } => {
                if let Some(placed) = self.placed.get_mut(&instance) {
                    placed.command = Some((number, command));
                }
                self.send(instance, Decision::Command { number, command: wire::command(command) }).await;
            }
            Action::End { instance, reason } => {
                let ended = messages::ended(reason);
                self.metrics.ended(ended.reason);
                let (displaced, message) = (ended.displaced, ended.message);
                self.send(instance, Decision::End { displaced, message }).await;
            }
        }
    }

    /// Refuses a place. The entry stays until the model's actor drops its placement; the policy has forgotten it.
    async fn refuse(&mut self, key: InstanceKey, refused: Refused) {
        self.metrics.refused(refused.reason);
        let Refused { permanent, recreate_fits, message, .. } = refused;
        self.send(key, Decision::Refused { permanent, recreate_fits, message }).await;
    }

    async fn send(&self, key: InstanceKey, decision: Decision) {
        if let Some(placed) = self.placed.get(&key) {
            placed.request.mailbox.send((key, decision)).await; // a model that has ended is about to report that
        }
    }

    /// Asks instances for their usage, which none reports by itself between commands. Asking wakes a worker, so idle
    /// instances are mostly left alone.
    async fn poll(&mut self) {
        self.polls = self.polls.wrapping_add(1);
        let all = self.polls.is_multiple_of(IDLE_POLLS);
        let asked = |placed: &PlacedInstance| placed.card.is_some() && (all || placed.may_have_changed());
        let placed = self.placed.iter().filter(|(_, placed)| asked(placed));
        for key in placed.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.send(key, Decision::SampleUsage).await;
        }
        self.publish();
    }

    /// Processes a measurement of the driver.
    async fn seen(&mut self, reading: Reading) {
        self.looked = reading.began;
        for (card, looked) in (0..).map(CardIndex).zip(reading.cards) {
            let complaint = looked.as_ref().err().cloned();
            let was = self.complaints.get_mut(card.0).map(|last| std::mem::replace(last, complaint.clone()));
            let is_new = was.is_some_and(|was| was != complaint);
            let index = self.cards.get(card.0).map_or(0, |card| card.index);
            match looked {
                Ok(seen) => {
                    self.step(Event::CardMeasured { card, bytes: seen.used_bytes }).await;
                    for (instance, bytes, processes) in self.owners(card, &seen.owned, reading.began) {
                        self.step(Event::Measured { instance, bytes, processes }).await;
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

    /// Measured memory of the instances on a card that sent no event since the measurement began.
    fn owners(
        &self,
        card: CardIndex,
        owned: &[(omni_node_protocol::id::InstanceId, u64)],
        began: std::time::Instant,
    ) -> Vec<(InstanceKey, u64, u32)> {
        let settled =
            self.placed.iter().filter(|(_, placed)| placed.card == Some(card) && placed.last_event_at < began);
        let sums = settled.map(|(key, placed)| {
            let own = owned.iter().filter(|(instance, _)| *instance == placed.request.instance);
            let (bytes, processes) =
                own.fold((0_u64, 0), |(bytes, count), (_, more)| (bytes.saturating_add(*more), count + 1));
            (*key, bytes, processes)
        });
        sums.collect()
    }

    fn publish(&mut self) {
        self.publish_at = None;
        let now = self.now();
        let facts = |key| {
            let PlacedInstance { request, moves, .. } = self.placed.get(&key)?;
            Some((request.model.clone(), request.instance.to_string(), *moves))
        };
        let views = self.policy.cards();
        let lost: Vec<bool> = views.iter().map(|view| view.lost).collect();
        let cards = self.cards.iter().zip(views);
        let gpus = api::Gpus {
            gpus: cards.map(|(card, view)| view::card(card, view, now, facts)).collect(),
            host_committed_bytes: self.policy.host_committed(),
            host_budget_bytes: self.policy.settings().host_budget,
            message: self.trouble(&lost),
        };
        self.metrics.set(&gpus, &lost);
        self.receiver.view.send_replace(View::new(gpus));
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
mod tests;
