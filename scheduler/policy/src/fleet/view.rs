//! What others see of a fleet, and when time matters next. Nothing is decided here.

use super::generation::StartState;
use super::instance::{Instance, Phase, StopCause};
use super::{Action, StopReason};
use super::{Fleet, Target};
use crate::capacity::MIN_IDLE;
use crate::{Generation, InstanceNumber, Moment};

/// State of a model, or of a generation without instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelState {
    /// The environment is being built.
    Preparing,
    /// An instance is starting.
    Starting,
    /// An instance takes requests.
    Ready,
    /// The last instances finish their requests and stop.
    Draining,
    /// No instance; the next request starts one, unless the model is held.
    Stopped,
    /// Nothing can be started now.
    Failed,
}

impl Fleet {
    /// The generation that takes the traffic, though it may be cold.
    #[must_use]
    pub fn serving(&self) -> Option<Generation> {
        self.serving
    }

    /// The generation that is to take the traffic when it is ready, or that failed to.
    #[must_use]
    pub fn candidate(&self) -> Option<Generation> {
        self.candidate.map(|candidate| candidate.generation)
    }

    /// All instances, in the order of their starts.
    pub fn instances(&self) -> impl Iterator<Item = (InstanceNumber, Generation, &Phase)> {
        self.instances.iter().map(|(number, instance)| (*number, instance.generation, &instance.phase))
    }

    /// Where an instance is; `None` once it is gone.
    #[must_use]
    pub fn phase(&self, instance: InstanceNumber) -> Option<&Phase> {
        self.instances.get(&instance).map(|instance| &instance.phase)
    }

    /// Whether a generation may be started; `None` for one that is not known.
    #[must_use]
    pub fn start_state(&self, generation: Generation) -> Option<StartState> {
        self.generations.get(&generation).map(|record| record.start_state)
    }

    /// Whether it served and was ready once.
    #[must_use]
    pub fn was_ready(&self, generation: Generation) -> bool {
        self.generations.get(&generation).is_some_and(|record| record.was_ready)
    }

    /// Whether a person stopped the model.
    #[must_use]
    pub fn held(&self) -> bool {
        self.held
    }

    /// Deaths of instances so far.
    #[must_use]
    pub fn deaths(&self) -> u64 {
        self.deaths
    }

    /// Deaths since this policy began of what took the traffic, without those for stuck handlers.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// Whether an end of the instance is the node's doing, for handlers that ignore their cancellation.
    #[must_use]
    pub fn stops_for_stuck_handlers(&self, instance: InstanceNumber) -> bool {
        matches!(self.phase(instance), Some(Phase::Stopping { end: StopCause::StuckHandlers, .. }))
    }

    /// Whether what is started of the serving generation is another try, which nothing has asked for.
    #[must_use]
    pub fn is_unsolicited_retry(&self) -> bool {
        self.unasked
    }

    /// Whether an end of the instance is what this node asked for, whatever its cause.
    #[must_use]
    pub fn stop_was_requested(&self, instance: InstanceNumber) -> bool {
        matches!(self.phase(instance), Some(Phase::Stopping { end: StopCause::Requested, .. }))
    }

    /// Whether a request that comes now would have to be refused: nothing takes it, and nothing can soon.
    #[must_use]
    pub fn refuses_requests(&self) -> bool {
        self.held
            || self.serving.is_none_or(|serving| {
                self.up(serving) == 0
                    && !self.start_state(serving).is_some_and(StartState::is_coming)
                    && !self.candidate_is_coming()
            })
    }

    /// Whether it serves nothing for want of a place, and if so, whether that is hopeless.
    #[must_use]
    pub fn lacks_capacity(&self) -> Option<bool> {
        let serving = self.serving.filter(|serving| !self.held && self.up(*serving) == 0)?;
        match self.start_state(serving)? {
            StartState::NoCapacity { retry_at } => Some(retry_at.is_none()),
            StartState::Unprepared
            | StartState::Preparing
            | StartState::Prepared
            | StartState::BackingOff { .. }
            | StartState::Refused => None,
        }
    }

    /// The state of the whole model: of what serves, or of what is about to, if nothing does.
    #[must_use]
    pub fn state(&self) -> ModelState {
        if self.ready_of_serving() > 0 {
            return ModelState::Ready;
        }
        let serving = self.serving.filter(|_| !self.held);
        let candidate = self.candidate().filter(|_| !self.held);
        let rests = |generation| self.start_state(generation).map_or(ModelState::Stopped, StartState::resting_state);
        let coming = |generation| {
            if self.up(generation) > 0 {
                Some(ModelState::Starting)
            } else {
                Some(rests(generation)).filter(|state| *state == ModelState::Preparing)
            }
        };
        let resting_state = match (serving, self.target) {
            (Some(serving), _) if rests(serving) == ModelState::Failed => ModelState::Failed,
            (None, Target::Unservable) if !self.held => ModelState::Failed,
            (Some(_) | None, Target::Unknown | Target::Content(_) | Target::Unservable | Target::Removed) => {
                ModelState::Stopped
            }
        };
        let serving_leaves = serving.is_some_and(|serving| self.up(serving) == 0 && self.live(serving) > 0);
        let draining = self.count(|instance| !instance.is_up()).gt(&0).then_some(ModelState::Draining);
        let first = draining.filter(|_| serving_leaves);
        let state = first.or_else(|| serving.and_then(coming)).or_else(|| candidate.and_then(coming)).or(draining);
        state.unwrap_or(resting_state)
    }

    /// When the next [`Event::Tick`](super::Event::Tick) is due.
    #[must_use]
    pub fn wake_at(&self) -> Option<Moment> {
        let instances = self.instances.values().filter_map(Instance::deadline);
        let generations = self.generations.values().filter_map(|record| record.start_state.retry_at());
        instances.chain(generations).chain(self.next_idle_stop().map(|(at, _)| at)).min()
    }

    /// Who stops first for having nothing to do, if nothing changes, and when. What the load or `min` needs stays, except
    /// that the very last one needs `min`: it was idle all that time.
    pub(super) fn next_idle_stop(&self) -> Option<(Moment, InstanceNumber)> {
        let serving = self.serving.filter(|_| !self.held)?;
        let settings = self.generations.get(&serving)?.settings;
        let up = self.up(serving) - self.stuck(serving);
        let needed = if up == 1 { settings.min } else { settings.min.max(self.wanted) };
        if up <= needed {
            return None;
        }
        let is_sound = |instance: &Instance| instance.generation == serving && instance.overrun.is_none();
        let of_serving = self.instances.iter().filter(|(_, instance)| is_sound(instance));
        of_serving.filter_map(|(number, instance)| Some((instance.idle_stop_at(settings.idle_timeout)?, *number))).min()
    }

    /// Whether nobody asks for what serves, nor did for a while.
    pub(super) fn is_unused(&self, now: Moment) -> bool {
        let unused = |instance: &Instance| match instance.phase {
            Phase::Ready { idle_since: Some(since), .. } => since + MIN_IDLE <= now,
            Phase::Ready { idle_since: None, .. } | Phase::Starting { .. } | Phase::Draining { .. } => false,
            Phase::Stopping { .. } => true,
        };
        let mut of_serving = self.instances.values().filter(|instance| Some(instance.generation) == self.serving);
        !self.start_requested && of_serving.all(unused)
    }

    /// Whether the candidate may serve soon. Without a place it may not.
    pub(super) fn candidate_is_coming(&self) -> bool {
        let start_state = self.candidate().and_then(|candidate| self.start_state(candidate));
        let has_place = !matches!(start_state, Some(StartState::NoCapacity { .. }));
        !self.held && has_place && start_state.is_some_and(StartState::is_coming)
    }

    pub(super) fn max(&self, generation: Generation) -> u32 {
        self.generations.get(&generation).map_or(0, |record| record.settings.max.max(1))
    }

    pub(super) fn count(&self, which: impl Fn(&Instance) -> bool) -> u32 {
        let count = self.instances.values().filter(|instance| which(instance)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Starting or ready.
    pub(super) fn up(&self, generation: Generation) -> u32 {
        self.count(|instance| instance.generation == generation && instance.is_up())
    }

    pub(super) fn ready(&self, generation: Generation) -> u32 {
        self.count(|instance| instance.generation == generation && instance.is_ready())
    }

    /// In any phase.
    pub(super) fn live(&self, generation: Generation) -> u32 {
        self.count(|instance| instance.generation == generation)
    }

    pub(super) fn ready_of_serving(&self) -> u32 {
        self.serving.map_or(0, |serving| self.ready(serving))
    }

    pub(super) fn live_of_serving(&self) -> u32 {
        self.serving.map_or(0, |serving| self.live(serving))
    }

    pub(super) fn numbers(&self, generation: Generation) -> Vec<InstanceNumber> {
        let of_generation = self.instances.iter().filter(|(_, instance)| instance.generation == generation);
        of_generation.map(|(number, _)| *number).collect()
    }

    /// The instance's way down, with the drain time of its own manifest.
    pub(super) fn leave(&mut self, number: InstanceNumber, reason: StopReason, now: Moment, actions: &mut Vec<Action>) {
        let Some(instance) = self.instances.get_mut(&number) else { return };
        let Some(record) = self.generations.get(&instance.generation) else { return };
        if instance.is_up() {
            actions.push(Action::Leaving { instance: number, reason });
        }
        instance.leave(number, record.settings.drain, now, actions);
    }
}
