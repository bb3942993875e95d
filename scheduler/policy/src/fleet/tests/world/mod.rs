//! A model's world in modelled time: a launcher, a node with room for some, instances that get ready or do not, people,
//! contents and requests.
//!
//! It obeys the policy to the letter, and checks at every action and after every step what the policy promises. All
//! chance comes from one seed. It knows nothing of how the policy decides.

mod checks;
mod instances;

use super::*;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

/// Nature of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::fleet::tests) enum Nature {
    Works,
    /// The environment cannot be made.
    NoEnvironment,
    /// The import fails.
    NoImport,
    /// Never ready.
    Hangs,
    /// Dies in `setup`.
    Crashes,
}

/// Faults of a content that works, each with its chance per occasion.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::fleet::tests) struct Faults {
    /// An environment, this time.
    pub(in crate::fleet::tests) prepare: f64,
    /// A start: no process, a death, or a hang.
    pub(in crate::fleet::tests) start: f64,
    /// A request kills its instance, or makes it hang.
    pub(in crate::fleet::tests) request: f64,
    /// A stop or a kill has no effect the first time.
    pub(in crate::fleet::tests) stop: f64,
}

#[derive(Debug, Clone, Copy)]
pub(in crate::fleet::tests) enum Happening {
    Content(usize),
    Bad,
    Requests(usize),
    LauncherLost,
    Displace,
    Start,
    Stop,
    Restart,
    Pull,
    RollBack(usize),
    Seats(u32),
}

#[derive(Debug, Clone)]
pub(in crate::fleet::tests) struct Fake {
    pub(in crate::fleet::tests) generation: Generation,
    content: usize,
    /// Capacity is granted; until then there is no process.
    placed: bool,
    ready: bool,
    pub(in crate::fleet::tests) routed: bool,
    /// The number of its request.
    busy: Option<u64>,
    /// The request was cancelled, and runs on.
    stuck: bool,
    deaf: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Later {
    Happen(usize),
    Prepared { generation: Generation, asked: u64 },
    Place { instance: InstanceNumber },
    Outcome { instance: InstanceNumber },
    Done { instance: InstanceNumber, request: u64 },
    Alone { instance: InstanceNumber },
    Recovered { instance: InstanceNumber },
    Gone { instance: InstanceNumber },
}

pub(in crate::fleet::tests) struct World {
    pub(in crate::fleet::tests) fleet: Fleet,
    pub(in crate::fleet::tests) now: Moment,
    contents: Vec<(Nature, Settings)>,
    pub(in crate::fleet::tests) faults: Faults,
    /// How many instances the node has room for.
    seats: u32,
    pub(in crate::fleet::tests) directory: Option<usize>,
    pub(in crate::fleet::tests) numbers: BTreeMap<Generation, usize>,
    given: u32,
    /// Contents that served and were ready, as the lasting state has it.
    was_ready: BTreeSet<usize>,
    /// Contents that were ready once.
    ready_once: BTreeSet<usize>,
    announced: Option<usize>,
    pub(in crate::fleet::tests) fakes: BTreeMap<InstanceNumber, Fake>,
    adopted: bool,
    preparing: BTreeMap<Generation, u64>,
    waiting: VecDeque<u64>,
    told_wanted: u32,
    script: Vec<Happening>,
    later: BinaryHeap<Reverse<(Moment, u64, Later)>>,
    feed: VecDeque<Event>,
    count: u64,
    rng: fastrand::Rng,
    pub(in crate::fleet::tests) answered: BTreeMap<u64, usize>,
    pub(in crate::fleet::tests) refused: usize,
    pub(in crate::fleet::tests) ended: bool,
    pub(in crate::fleet::tests) log: Vec<(Moment, Event, Vec<Action>)>,
}

impl World {
    pub(in crate::fleet::tests) fn new(
        contents: Vec<(Nature, Settings)>,
        seats: u32,
        faults: Faults,
        seed: u64,
    ) -> Self {
        Self {
            fleet: Fleet::new(false, 0),
            now: Moment::ZERO,
            contents,
            faults,
            seats,
            directory: None,
            numbers: BTreeMap::new(),
            given: 0,
            was_ready: BTreeSet::new(),
            ready_once: BTreeSet::new(),
            announced: None,
            fakes: BTreeMap::new(),
            adopted: false,
            preparing: BTreeMap::new(),
            waiting: VecDeque::new(),
            told_wanted: 0,
            script: Vec::new(),
            later: BinaryHeap::new(),
            feed: VecDeque::new(),
            count: 0,
            rng: fastrand::Rng::with_seed(seed),
            answered: BTreeMap::new(),
            refused: 0,
            ended: false,
            log: Vec::new(),
        }
    }

    pub(in crate::fleet::tests) fn plan(&mut self, at: Moment, what: Happening) {
        self.script.push(what);
        self.at(at, Later::Happen(self.script.len() - 1));
    }

    pub(in crate::fleet::tests) fn nature(&self, content: usize) -> Nature {
        self.contents[content].0
    }

    /// State of an earlier scheduler.
    pub(in crate::fleet::tests) fn served(&mut self, content: usize) {
        self.was_ready.insert(content);
        self.ready_once.insert(content);
        let generation = self.number(content);
        self.pump(Event::LastServed { generation, settings: self.contents[content].1 });
    }

    /// An instance of an earlier scheduler.
    pub(in crate::fleet::tests) fn adopt(&mut self, content: usize, ready: bool) {
        let (instance, generation) = (self.fleet.next_number(), self.number(content));
        let (routed, busy) = (false, None);
        self.fakes.insert(
            instance,
            Fake { generation, content, placed: true, ready, routed, busy, stuck: false, deaf: false },
        );
        self.adopted = true;
        if ready {
            self.ready_once.insert(content);
        } else {
            self.at(self.now + SECOND, Later::Outcome { instance });
        }
        let (settings, was_ready) = (self.contents[content].1, self.was_ready.contains(&content));
        self.pump(Event::Adopted { instance, generation, settings, ready, was_ready });
    }

    pub(in crate::fleet::tests) fn remove(&mut self) {
        self.directory = None;
        self.announced = None;
        self.pump(Event::Removed);
    }

    /// Runs until then, or until nothing is left to happen.
    pub(in crate::fleet::tests) fn run(&mut self, until: Moment) {
        while !self.ended {
            let next = self.later.peek().map(|Reverse((at, _, _))| *at);
            let wake = self.fleet.wake_at().map(|wake| wake.max(self.now));
            let first = next.into_iter().chain(wake).min();
            let Some(at) = first.filter(|at| *at <= until) else { break };
            self.now = at;
            if wake == Some(at) {
                self.overdue_for_a_place();
                self.pump(Event::Tick);
            } else if let Some(Reverse((_, _, later))) = self.later.pop() {
                self.happen(later);
            }
        }
        self.now = until.max(self.now);
    }

    fn at(&mut self, at: Moment, later: Later) {
        self.count += 1;
        self.later.push(Reverse((at, self.count, later)));
    }

    fn soon(&mut self, most_ms: u64, later: Later) {
        let delay = Duration::from_millis(self.rng.u64(1..=most_ms));
        self.at(self.now + delay, later);
    }

    fn chance(&mut self, of: f64) -> bool {
        of > 0.0 && self.rng.f64() < of
    }

    /// The number of a content; a new one when the policy has forgotten it.
    fn number(&mut self, content: usize) -> Generation {
        if let Some((generation, _)) = self.numbers.iter().find(|(_, known)| **known == content) {
            return *generation;
        }
        self.given += 1;
        self.numbers.insert(Generation(self.given), content);
        Generation(self.given)
    }

    fn happen(&mut self, later: Later) {
        match later {
            Later::Happen(index) => self.happening(self.script[index]),
            Later::Prepared { generation, asked } => {
                if self.preparing.get(&generation) == Some(&asked) {
                    self.preparing.remove(&generation);
                    let content = self.numbers.get(&generation).copied();
                    let permanent = content.is_some_and(|content| self.nature(content) == Nature::NoEnvironment);
                    let fails = permanent || self.chance(self.faults.prepare);
                    let failed = Event::PrepareFailed { generation, permanent };
                    self.pump(if fails { failed } else { Event::Prepared(generation) });
                }
            }
            Later::Place { instance } => self.place(instance),
            Later::Outcome { instance } => self.outcome(instance),
            Later::Done { instance, request } => {
                let Some(fake) = self.fakes.get_mut(&instance).filter(|fake| fake.busy == Some(request)) else {
                    return;
                };
                if self.rng.f64() < self.faults.request {
                    match self.rng.u8(..3) {
                        0 => self.gone(instance, Event::Gone(instance)),
                        1 => self.pump(Event::Unresponsive(instance)),
                        _ => self.stick(instance),
                    }
                    return;
                }
                fake.busy = None;
                self.answered.insert(request, fake.content);
                self.pump(Event::Idle(instance));
            }
            Later::Alone { instance } => {
                if self.fakes.get(&instance).is_some_and(|fake| fake.stuck && fake.busy.is_some()) {
                    self.pump(Event::StuckHandlers { instance, other_requests: false, free_slots: false });
                }
            }
            Later::Recovered { instance } => {
                if let Some(fake) = self.fakes.get_mut(&instance).filter(|fake| fake.stuck && fake.busy.is_some()) {
                    fake.busy = None;
                    self.pump(Event::Recovered(instance));
                    self.pump(Event::Idle(instance));
                }
            }
            Later::Gone { instance } => self.gone(instance, Event::Gone(instance)),
        }
    }

    fn happening(&mut self, what: Happening) {
        match what {
            Happening::Content(content) if self.directory == Some(content) => {} // nothing changed
            Happening::Content(content) => {
                self.directory = Some(content);
                let (generation, was_ready) = (self.number(content), self.was_ready.contains(&content));
                self.pump(Event::Content { generation, settings: self.contents[content].1, was_ready });
            }
            Happening::Bad => {
                self.directory = None;
                self.pump(Event::UnservableContent);
            }
            Happening::Requests(count) => {
                for _ in 0..count {
                    self.count += 1;
                    self.waiting.push_back(self.count);
                    let has_lane = self.fakes.values().any(|fake| fake.routed);
                    self.pump(if has_lane { Event::DesiredInstances(self.told_wanted) } else { Event::Demand });
                }
            }
            Happening::LauncherLost => {
                self.preparing.clear();
                self.pump(Event::LauncherLost);
            }
            Happening::Displace => {
                let idle = self.fakes.iter().find(|(_, fake)| fake.ready && fake.busy.is_none());
                if let Some(instance) = idle.map(|(number, _)| *number) {
                    self.pump(Event::Displaced(instance));
                }
            }
            Happening::Start => self.pump(Event::Start),
            Happening::Stop => self.pump(Event::Stop),
            Happening::Restart => self.pump(Event::Restart),
            Happening::Pull => self.pump(Event::Pull),
            Happening::RollBack(content) => {
                if self.was_ready.contains(&content) {
                    let generation = self.number(content);
                    self.pump(Event::RollBack { generation, settings: self.contents[content].1 });
                }
            }
            Happening::Seats(seats) => self.seats = seats,
        }
    }

    /// Feeds an event, and all that the actions lead to at once.
    pub(in crate::fleet::tests) fn pump(&mut self, event: Event) {
        self.feed.push_back(event);
        while let Some(event) = self.feed.pop_front() {
            let before = self.refused;
            let actions = self.fleet.step(&event, self.now, 0.5);
            if event == Event::Tick {
                assert!(self.fleet.wake_at().is_none_or(|wake| wake > self.now), "a wake that changes nothing");
            }
            self.log.push((self.now, event, actions.clone()));
            for action in actions {
                self.act(action);
            }
            if event == Event::Demand && !self.fakes.values().any(|fake| fake.routed) && self.refused == before {
                assert!(!self.fleet.refuses_requests(), "a request waits for nothing");
            }
            self.check();
            self.send();
        }
    }

    fn send(&mut self) {
        while !self.waiting.is_empty() {
            let free = self.fakes.iter_mut().find(|(_, fake)| fake.routed && fake.busy.is_none());
            let Some((instance, fake)) = free else { break };
            let (instance, request) = (*instance, self.waiting.pop_front().expect("it waits"));
            fake.busy = Some(request);
            self.feed.push_back(Event::Busy(instance));
            self.soon(2000, Later::Done { instance, request });
        }
        let busy = self.fakes.values().filter(|fake| fake.routed && fake.busy.is_some()).count();
        let wanted = u32::try_from(busy + self.waiting.len()).expect("few");
        if wanted != self.told_wanted {
            self.told_wanted = wanted;
            self.feed.push_back(Event::DesiredInstances(wanted));
        }
    }
}
