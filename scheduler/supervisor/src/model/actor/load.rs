//! How many instances the requests of a model call for: input and output of the scaling policy ([`Demand`]).

use super::ModelActor;
use crate::model::content::Content;
use omni_capacity::need;
use omni_control_api as api;
use omni_policy::capacity::Amounts;
use omni_policy::fleet::{Event, Phase};
use omni_policy::scaling::{Bounds, DOWN, Demand, ScalingReason, UP};
use omni_policy::{Generation, InstanceNumber, Moment};

/// Bounds that are explained for a model that serves nothing.
const NO_BOUNDS: Bounds = Bounds { min: 0, max: 0, concurrency: 1 };

/// The load of a model, and the number of instances that it calls for.
#[derive(Debug, Default)]
pub(super) struct LoadMonitor {
    demand: Demand,
    /// Requests in flight and waiting, as last observed.
    load: u32,
    /// Instances, as last reported to the fleet.
    desired: u32,
}

impl LoadMonitor {
    /// Observes the load. Returns the number of instances that it calls for, if that has changed.
    pub(super) fn observe(&mut self, load: usize, now: Moment, bounds: Bounds) -> Option<u32> {
        let load = u32::try_from(load).unwrap_or(u32::MAX);
        if load != self.load {
            self.load = load;
            self.demand.observe(load, now);
        }
        // A model of one instance is started by its first request and stopped by its idle time.
        let desired = if bounds.max > 1 { self.demand.wanted(now, bounds) } else { 0 };
        let is_new = desired != self.desired;
        self.desired = desired;
        is_new.then_some(desired)
    }

    /// When another number may be desired though the load stays.
    pub(super) fn wakes_at(&self, now: Moment, bounds: Bounds) -> Option<Moment> {
        if bounds.max > 1 { self.demand.wake_at(now, bounds) } else { None }
    }
}

/// Bounds of the number of instances of a content.
pub(super) fn bounds(content: &Content) -> Bounds {
    let scaling = &content.manifest.scaling;
    Bounds {
        min: scaling.min_instances,
        max: scaling.max_instances,
        concurrency: content.manifest.requests_per_instance(),
    }
}

impl ModelActor {
    /// Reports the load to the scaling policy, and a new number of instances to the fleet.
    pub(super) fn watch_load(&mut self) {
        let Some(bounds) = self.versions.serving().map(bounds) else { return };
        let load = self.requests.dispatch.load();
        if let Some(desired) = self.load.observe(load, self.now, bounds) {
            self.event(Event::DesiredInstances(desired));
        }
    }

    pub(super) fn load_wakes_at(&self) -> Option<Moment> {
        self.load.wakes_at(self.now, self.versions.serving().map(bounds)?)
    }

    /// Explains the number of instances.
    pub(super) fn explain(&self) -> api::Explain {
        let fleet = &self.lifecycle.fleet;
        let bounds = self.versions.serving().map_or(NO_BOUNDS, bounds);
        let why = self.load.demand.explain(self.now, bounds);
        let phases = || fleet.instances().map(|(_, _, phase)| phase);
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let held = fleet.held();
        let because = match why.reason {
            _ if held => api::Because::Held,
            ScalingReason::Min => api::Because::Min,
            ScalingReason::Load => api::Because::Load,
            ScalingReason::RecentLoad => api::Because::RecentLoad,
            ScalingReason::Max => api::Because::Max,
        };
        api::Explain {
            name: self.model.name.as_str().to_owned(),
            state: self.status.state(),
            ready: count(phases().filter(|phase| matches!(phase, Phase::Ready { .. })).count()),
            instances: count(phases().count()),
            wanted: if held { 0 } else { why.wanted },
            because,
            min: bounds.min,
            max: bounds.max,
            concurrency: bounds.concurrency,
            load: why.load,
            average: why.average,
            average_seconds: UP.as_secs_f64(),
            greatest: why.greatest,
            greatest_seconds: DOWN.as_secs_f64(),
            message: self.why_fewer(why.wanted),
            last_stop: self.status.last_stop.clone(),
            budgets: self.budgets(),
        }
    }

    /// Message about fewer instances than desired, or none that is ready. A further instance for which there is no room is
    /// mentioned only here.
    fn why_fewer(&self, desired: u32) -> Option<String> {
        let fleet = &self.lifecycle.fleet;
        let is_up = |(_, generation, phase): &(InstanceNumber, Generation, &Phase)| match phase {
            Phase::Starting { .. } | Phase::Ready { .. } => fleet.serving() == Some(*generation),
            Phase::Draining { .. } | Phase::Stopping { .. } => false,
        };
        let up = fleet.instances().filter(is_up).count();
        let serving = fleet.serving().and_then(|serving| self.generations.get(serving));
        let shortage = serving.filter(|_| (1..desired as usize).contains(&up)).and_then(|info| info.shortage.clone());
        let messages: Vec<String> = self.message().into_iter().chain(shortage).collect();
        (!messages.is_empty()).then(|| messages.join("\n"))
    }

    fn budgets(&self) -> api::Budgets {
        let view = self.services.capacity.view();
        let need = self.versions.serving().map(|content| need(&content.manifest.resources)).unwrap_or_default();
        let budget = |of: fn(&Amounts) -> u64| api::Budget {
            instance: of(&need),
            committed: of(&view.committed),
            limit: Some(of(&view.budget)).filter(|limit| *limit < u64::MAX),
        };
        api::Budgets {
            memory_bytes: budget(|amounts| amounts.memory),
            cpu_millis: budget(|amounts| amounts.millicpus),
            processes: budget(|amounts| amounts.processes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_the_desired_number_is_reported_once() {
        let bounds = Bounds { min: 0, max: 4, concurrency: 1 };
        let mut load = LoadMonitor::default();
        let later = Moment::from_secs(3600);
        assert_eq!(load.observe(0, Moment::ZERO, bounds), None);
        let _ = load.observe(3, Moment::ZERO, bounds);
        let after_a_while = load.observe(3, later, bounds);
        assert_eq!(load.observe(3, later, bounds), None, "no change since {after_a_while:?}");
        assert_eq!(load.desired, 3);
    }

    #[test]
    fn a_model_of_one_instance_is_not_scaled() {
        let bounds = Bounds { min: 0, max: 1, concurrency: 1 };
        let mut load = LoadMonitor::default();
        assert_eq!(load.observe(9, Moment::from_secs(3600), bounds), None);
        assert_eq!(load.wakes_at(Moment::ZERO, bounds), None);
    }
}
