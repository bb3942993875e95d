//! A node in modelled time: models that get requests, links that move memory, and everything that can go wrong there.
//!
//! It obeys the policy to the letter and checks, at every action and after every event, what the policy promises. All
//! chance comes from one seed.

mod room;

use super::*;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// From `End` to `Departing`.
pub(super) const KILL: Duration = Duration::from_millis(100);

/// Faults, each with its chance per occasion.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Faults {
    /// A command is never answered.
    pub(super) unanswered: f64,
    /// An eviction moves nothing.
    pub(super) disobey: f64,
    /// A request allocates more, a part of it unmovable.
    pub(super) grow: f64,
    /// A request kills its instance.
    pub(super) crash: f64,
    /// Clients cancel the requests that wait for an instance.
    pub(super) cancel: f64,
    /// A foreign process takes or gives back a part of a card.
    pub(super) others: f64,
}

/// A model, with or without an instance.
#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) limit: u64,
    /// Allocation in `setup`.
    pub(super) size: u64,
    pub(super) mode: GpuMode,
    pub(super) key: Option<InstanceKey>,
    waiting: VecDeque<(Moment, Duration)>,
}

#[derive(Debug, Clone, Default)]
struct Fake {
    model: usize,
    card: Option<CardIndex>,
    ready: bool,
    managed: u64,
    resident: u64,
    device: u64,
    granted: bool,
    busy: bool,
    yielding: bool,
    wanted_since: Option<Moment>,
    command: Option<(u64, Command)>,
    ended: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Later {
    Arrive { model: usize, service: Duration },
    Done { key: InstanceKey },
    Answer { key: InstanceKey, number: u64 },
    SetUp { key: InstanceKey },
    UsageSampled { key: InstanceKey },
    Dead { key: InstanceKey },
    RetryPlacement { key: InstanceKey },
}

pub(super) struct World {
    pub(super) policy: Residency,
    pub(super) now: Moment,
    pub(super) models: Vec<Model>,
    fakes: BTreeMap<InstanceKey, Fake>,
    later: BinaryHeap<Reverse<(Moment, u64, Later)>>,
    count: u64,
    feed: VecDeque<Event>,
    /// When each card's link is free again: to the host, to the card.
    links: Vec<[Moment; 2]>,
    /// Bytes in a second, each way.
    bandwidth: f64,
    faults: Faults,
    /// Idle instances leave for those that start.
    pub(super) makes_room: bool,
    rng: fastrand::Rng,
    pub(super) log: Vec<(Moment, Action)>,
    pub(super) moved: u64,
    /// From arrival to the beginning of its work, for each request that got so far.
    pub(super) waits: Vec<Duration>,
    /// From want to grant, for each grant.
    pub(super) longest_want: Duration,
    pub(super) lost: usize,
}

impl World {
    pub(super) fn new(settings: Settings, bandwidth: f64, faults: Faults, seed: u64) -> Self {
        let links = vec![[Moment::ZERO; 2]; settings.cards.len()];
        Self {
            policy: Residency::new(settings),
            now: Moment::ZERO,
            models: Vec::new(),
            fakes: BTreeMap::new(),
            later: BinaryHeap::new(),
            count: 0,
            feed: VecDeque::new(),
            links,
            bandwidth,
            faults,
            makes_room: false,
            rng: fastrand::Rng::with_seed(seed),
            log: Vec::new(),
            moved: 0,
            waits: Vec::new(),
            longest_want: Duration::ZERO,
            lost: 0,
        }
    }

    pub(super) fn model(&mut self, limit: u64, size: u64, mode: GpuMode) {
        self.models.push(Model { limit, size, mode, key: None, waiting: VecDeque::new() });
    }

    pub(super) fn request(&mut self, at: Moment, model: usize, service: Duration) {
        self.at(at, Later::Arrive { model, service });
    }

    /// Bytes on the card, of each model.
    pub(super) fn resident(&self) -> Vec<u64> {
        let fake = |model: &Model| model.key.and_then(|key| self.fakes.get(&key));
        self.models.iter().map(|model| fake(model).map_or(0, |fake| fake.resident + fake.device)).collect()
    }

    /// Requests that still wait.
    pub(super) fn left(&self) -> usize {
        self.models.iter().map(|model| model.waiting.len()).sum()
    }

    /// Runs until nothing is left to happen.
    pub(super) fn run(&mut self) {
        loop {
            let next = self.later.peek().map(|Reverse((at, _, _))| *at);
            let wake = self.policy.wake_at().map(|wake| wake.max(self.now));
            match (next, wake) {
                (None, None) => return,
                (next, Some(wake)) if next.is_none_or(|next| wake <= next) => {
                    self.now = wake;
                    self.pump(Event::Tick);
                    assert!(self.policy.wake_at().is_none_or(|wake| wake > self.now), "a wake that changes nothing");
                }
                _ => {
                    let Some(Reverse((at, _, later))) = self.later.pop() else { return };
                    self.now = at;
                    self.happen(later);
                }
            }
        }
    }

    fn at(&mut self, at: Moment, later: Later) {
        self.count += 1;
        self.later.push(Reverse((at, self.count, later)));
    }

    fn chance(&mut self, of: f64) -> bool {
        of > 0.0 && self.rng.f64() < of
    }

    fn happen(&mut self, later: Later) {
        match later {
            Later::Arrive { model, service } => {
                if self.chance(self.faults.others) {
                    let card = self.rng.usize(..self.links.len());
                    let bytes = self.rng.u64(..=self.policy.settings().cards[card].total);
                    self.pump(Event::CardMeasured { card: CardIndex(card), bytes });
                }
                self.models[model].waiting.push_back((self.now, service));
                self.push_on(model);
            }
            Later::Done { key } => self.done(key),
            Later::Answer { key, number } => self.answer(key, number),
            Later::SetUp { key } => {
                if let Some(fake) = self.fakes.get_mut(&key).filter(|fake| !fake.ended) {
                    (fake.ready, fake.granted) = (true, true);
                    let model = fake.model;
                    self.pump(Event::Ready { instance: key });
                    self.push_on(model);
                }
            }
            Later::UsageSampled { key } => {
                if let Some(fake) = self.fakes.get(&key).filter(|fake| !fake.ended) {
                    self.pump(Event::UsageSampled { instance: key, usage: fake.usage() });
                }
            }
            Later::RetryPlacement { key } => {
                if let Some(fake) = self.fakes.get(&key) {
                    let others = self.others(fake.model);
                    self.pump(Event::RetryPlacement { instance: key, others });
                    self.look_later(key);
                }
            }
            Later::Dead { key } => {
                if let Some(fake) = self.fakes.remove(&key) {
                    self.models[fake.model].key = None;
                    self.pump(Event::Gone { instance: key });
                    self.push_on(fake.model);
                }
            }
        }
    }

    /// Steps a model can take about its waiting requests.
    fn push_on(&mut self, index: usize) {
        let model = &self.models[index];
        if model.waiting.is_empty() {
            return;
        }
        let Some(key) = model.key else {
            self.count += 1;
            let (limit, mode, key) = (model.limit, model.mode, self.count);
            self.models[index].key = Some(InstanceKey(key));
            self.fakes.insert(InstanceKey(key), Fake { model: index, ..Fake::default() });
            let others = self.others(index);
            self.pump(Event::Place { instance: InstanceKey(key), limit, mode, others });
            return self.look_later(InstanceKey(key));
        };
        let now = self.now;
        let fake = self.fakes.get_mut(&key).expect("a model knows its instance");
        if !fake.ready || fake.busy || fake.ended || fake.yielding {
            return;
        }
        if !fake.granted {
            if fake.wanted_since.is_none() {
                fake.wanted_since = Some(now);
                self.pump(Event::Wanted { instance: key });
            } else if self.chance(self.faults.cancel) {
                self.lost += std::mem::take(&mut self.models[index].waiting).len();
                if let Some(fake) = self.fakes.get_mut(&key) {
                    fake.wanted_since = None;
                }
                self.pump(Event::Unwanted { instance: key });
            }
            return;
        }
        fake.busy = true;
        let (arrived, service) = self.models[index].waiting.pop_front().expect("it waits");
        self.waits.push(now - arrived);
        self.at(now + service, Later::Done { key });
        self.pump(Event::Busy { instance: key });
    }

    fn done(&mut self, key: InstanceKey) {
        let (crashes, grows, share) = (self.chance(self.faults.crash), self.chance(self.faults.grow), self.rng.f64());
        let Some(fake) = self.fakes.get_mut(&key).filter(|fake| !fake.ended) else { return };
        let model = fake.model;
        fake.busy = false;
        if crashes {
            fake.ended = true;
            self.at(self.now, Later::Dead { key });
            return;
        }
        if grows {
            let free = self.models[model].limit - fake.managed - fake.device;
            let more = (free as f64 * share) as u64;
            fake.managed += more - more / 8;
            fake.resident += more - more / 8;
            fake.device += more / 8;
            self.at(self.now + SECOND, Later::UsageSampled { key });
        }
        let fake = self.fakes.get_mut(&key).expect("it is there");
        if fake.yielding {
            (fake.yielding, fake.granted) = (false, false);
            self.feed.push_back(Event::Idle { instance: key });
            self.pump(Event::Yielded { instance: key });
        } else if self.models[model].waiting.is_empty() {
            self.pump(Event::Idle { instance: key });
        }
        self.push_on(model);
    }

    fn answer(&mut self, key: InstanceKey, number: u64) {
        let failed = self.chance(self.faults.disobey);
        let Some(fake) = self.fakes.get_mut(&key).filter(|fake| !fake.ended) else { return };
        let Some((_, command)) = fake.command.take_if(|(pending, _)| *pending == number) else { return };
        let before = fake.resident;
        match command {
            Command::Evict { bytes } if !failed => fake.resident -= bytes.min(fake.resident),
            Command::Restore => fake.resident = fake.managed,
            Command::Evict { .. } | Command::Report => {}
        }
        self.moved += before.abs_diff(fake.resident);
        let usage = fake.usage();
        self.pump(Event::Reported {
            instance: key,
            report: Report { number, usage, error: u32::from(failed), unanswered: 0 },
        });
    }

    /// Feeds an event, and all that the actions lead to at once.
    fn pump(&mut self, event: Event) {
        self.feed.push_back(event);
        while let Some(event) = self.feed.pop_front() {
            for action in self.policy.step(&event, self.now) {
                self.log.push((self.now, action));
                self.act(action);
            }
            self.check();
        }
    }

    fn act(&mut self, action: Action) {
        let (now, bandwidth) = (self.now, self.bandwidth);
        match action {
            Action::Placed { instance, card } => {
                let fake = self.fakes.get_mut(&instance).expect("placed: unknown");
                assert!(fake.card.is_none(), "placed twice");
                let model = &self.models[fake.model];
                (fake.card, fake.managed, fake.resident) = (Some(card), model.size, model.size);
                self.at(now + SECOND, Later::SetUp { key: instance });
            }
            Action::Refused { instance, .. } => {
                let fake = self.fakes.remove(&instance).expect("refused: unknown");
                assert!(fake.card.is_none(), "refused after it was placed");
                let model = &mut self.models[fake.model];
                model.key = None;
                self.lost += std::mem::take(&mut model.waiting).len();
            }
            Action::Grant { instance, .. } => {
                let fake = self.fakes.get_mut(&instance).expect("grant: unknown");
                assert!(fake.ready && !fake.granted && !fake.ended, "a grant to {fake:?}");
                fake.granted = true;
                let since = fake.wanted_since.take().expect("a grant that nobody wants");
                let model = fake.model;
                self.longest_want = self.longest_want.max(now - since);
                self.push_on_later(model);
            }
            Action::Yield { instance } => {
                let fake = self.fakes.get_mut(&instance).expect("yield: unknown");
                assert!(fake.granted && !fake.yielding && !fake.ended, "a yield to {fake:?}");
                if fake.busy {
                    fake.yielding = true;
                } else {
                    fake.granted = false;
                    let model = fake.model;
                    self.feed.push_back(Event::Yielded { instance });
                    if !self.models[model].waiting.is_empty() {
                        self.fakes.get_mut(&instance).expect("it is there").wanted_since = Some(now);
                        self.feed.push_back(Event::Wanted { instance });
                    }
                }
            }
            Action::Command { instance, number, command } => {
                let unanswered = self.chance(self.faults.unanswered);
                let fake = self.fakes.get_mut(&instance).expect("command: unknown");
                assert!(fake.command.is_none() && !fake.ended, "two commands, or one to an ended instance: {fake:?}");
                let (bytes, way) = match command {
                    Command::Evict { bytes } => (bytes.min(fake.resident), 0),
                    Command::Restore => (fake.managed - fake.resident, 1),
                    Command::Report => (0, 1),
                };
                assert!(command == Command::Report || (!fake.granted && !fake.busy), "moved under a request");
                fake.command = Some((number, command));
                if !unanswered {
                    let link = &mut self.links[fake.card.expect("placed").0][way];
                    let takes = Duration::from_secs_f64(bytes as f64 / bandwidth);
                    let until = now.max(*link) + takes;
                    if bytes > 0 {
                        *link = until;
                    }
                    self.at(if bytes > 0 { until } else { now }, Later::Answer { key: instance, number });
                }
            }
            Action::Displace { instance, by } => {
                assert!(self.fakes.contains_key(&by), "for nobody");
                let fake = self.fakes.get_mut(&instance).expect("displaced: unknown");
                assert!(fake.ready && !fake.busy && !fake.ended, "displaced: {fake:?}");
                fake.ended = true;
                self.at(now + KILL, Later::Dead { key: instance });
            }
            Action::End { instance, .. } => {
                let fake = self.fakes.get_mut(&instance).expect("end: unknown");
                fake.ended = true;
                self.at(now + KILL, Later::Dead { key: instance });
            }
        }
    }

    /// Requests of a model that was just granted begin after the other actions of the step.
    fn push_on_later(&mut self, model: usize) {
        let key = self.models[model].key.expect("it is granted");
        if self.models[model].waiting.is_empty() {
            return;
        }
        let (arrived, service) = self.models[model].waiting.pop_front().expect("it waits");
        self.waits.push(self.now - arrived);
        self.fakes.get_mut(&key).expect("it is granted").busy = true;
        self.at(self.now + service, Later::Done { key });
        self.feed.push_back(Event::Busy { instance: key });
    }
}
