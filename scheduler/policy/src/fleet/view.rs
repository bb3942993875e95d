//! Status derived from a fleet's state: counts, the model's state, whether requests are refused, the time of the next
//! tick.

use super::generation::StartState;
use super::instance::{Instance, Phase, StopCause};
use super::model_state::ModelState;
use super::{Fleet, Target};
use crate::{Generation, InstanceNumber, Moment};

impl Fleet {
    /// Generation that takes the traffic; it may have no instance.
    #[must_use]
    pub fn serving(&self) -> Option<Generation> {
        self.serving
    }

    /// Generation that takes the traffic once it is ready, or that failed to become ready.
    #[must_use]
    pub fn candidate(&self) -> Option<Generation> {
        self.candidate.map(|candidate| candidate.generation)
    }

    /// All instances with their generations and phases, in the order of their starts.
    pub fn instances(&self) -> impl Iterator<Item = (InstanceNumber, Generation, &Phase)> {
        self.instances.iter().map(|(number, instance)| (*number, instance.generation, &instance.phase))
    }

    /// Phase of an instance; `None` once it is gone.
    #[must_use]
    pub fn phase(&self, instance: InstanceNumber) -> Option<&Phase> {
        self.instances.get(&instance).map(|instance| &instance.phase)
    }

    /// Start state of a generation; `None` if it is unknown.
    #[must_use]
    pub fn start_state(&self, generation: Generation) -> Option<StartState> {
        self.generations.get(&generation).map(|record| record.start_state)
    }

    /// Returns whether a generation served and was ready once.
    #[must_use]
    pub fn was_ready(&self, generation: Generation) -> bool {
        self.generations.get(&generation).is_some_and(|record| record.was_ready)
    }

    /// Returns whether a command stopped the model.
    #[must_use]
    pub fn held(&self) -> bool {
        self.held
    }

    /// Number of deaths so far.
    #[must_use]
    pub fn deaths(&self) -> u64 {
        self.deaths
    }

    /// Number of deaths of serving generations since this policy began, without those for stuck handlers.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// Returns whether the node is stopping the instance for its stuck handlers.
    #[must_use]
    pub fn stops_for_stuck_handlers(&self, instance: InstanceNumber) -> bool {
        matches!(self.phase(instance), Some(Phase::Stopping { end: StopCause::StuckHandlers, .. }))
    }

    /// Returns whether a start of the serving generation now would be a retry that nothing has asked for.
    #[must_use]
    pub fn is_unsolicited_retry(&self) -> bool {
        self.failed_unrequested
    }

    /// Returns whether the instance was asked to stop, so that its end is no death.
    #[must_use]
    pub fn stop_was_requested(&self, instance: InstanceNumber) -> bool {
        matches!(self.phase(instance), Some(Phase::Stopping { end: StopCause::Requested, .. }))
    }

    /// Returns whether a new request has to be refused: no instance takes it, and none can soon.
    #[must_use]
    pub fn refuses_requests(&self) -> bool {
        self.held
            || self.serving.is_none_or(|serving| {
                self.up(serving) == 0
                    && !self.start_state(serving).is_some_and(StartState::is_coming)
                    && !self.candidate_is_coming()
            })
    }

    /// Returns whether the model serves nothing for lack of capacity: `Some(true)` if for good, `Some(false)` if for
    /// now.
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

    /// State of the model: of the serving generation, or of the candidate while nothing serves.
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

    /// Time of the next [`Event::Tick`](super::Event::Tick).
    #[must_use]
    pub fn wake_at(&self) -> Option<Moment> {
        let instances = self.instances.values().filter_map(Instance::deadline);
        let generations = self.generations.values().filter_map(|record| record.start_state.retry_at());
        instances.chain(generations).chain(self.next_idle_stop().map(|(at, _)| at)).min()
    }

    /// Returns whether the candidate may serve soon; without capacity it may not.
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

    /// Number of starting or ready instances.
    pub(super) fn up(&self, generation: Generation) -> u32 {
        self.count(|instance| instance.generation == generation && instance.is_up())
    }

    pub(super) fn ready(&self, generation: Generation) -> u32 {
        self.count(|instance| instance.generation == generation && instance.is_ready())
    }

    /// Number of instances in any phase.
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
}
