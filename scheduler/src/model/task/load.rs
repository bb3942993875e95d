//! How many instances the requests want: what the model's [`Demand`](omni_policy::scaling::Demand) is told, and says.

use super::ModelTask;
use super::life::bounds;
use omni_capacity::need;
use omni_control_api as api;
use omni_policy::capacity::Amounts;
use omni_policy::fleet::{Event, Phase};
use omni_policy::scaling::{Bounds, DOWN, ScalingReason, UP};
use omni_policy::{Generation, InstanceNumber, Moment};

/// What is explained of a model that has nothing to serve.
const NOTHING: Bounds = Bounds { min: 0, max: 0, concurrency: 1 };

impl ModelTask {
    /// Tells the policy how many requests there are, and the fleet how many instances they want.
    pub(super) fn watch_load(&mut self, now: Moment) {
        let Some(bounds) = self.serving.as_deref().map(bounds) else { return };
        let load = u32::try_from(self.dispatch.load()).unwrap_or(u32::MAX);
        if load != self.load {
            self.load = load;
            self.demand.observe(load, now);
        }
        // A model of one instance is started by its first request and stopped by its idle time.
        let wanted = if bounds.max > 1 { self.demand.wanted(now, bounds) } else { 0 };
        if wanted != self.wanted {
            self.wanted = wanted;
            self.event(&Event::DesiredInstances(wanted));
        }
    }

    /// When another number may be wanted though no request comes or goes.
    pub(super) fn load_wakes_at(&self) -> Option<Moment> {
        let bounds = self.serving.as_deref().map(bounds).filter(|bounds| bounds.max > 1)?;
        self.demand.wake_at(self.now(), bounds)
    }

    /// Why there are as many instances as there are.
    pub(super) fn explain(&self) -> api::Explain {
        let bounds = self.serving.as_deref().map_or(NOTHING, bounds);
        let why = self.demand.explain(self.now(), bounds);
        let phases = || self.fleet.instances().map(|(_, _, phase)| phase);
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let held = self.fleet.held();
        let because = match why.reason {
            _ if held => api::Because::Held,
            ScalingReason::Min => api::Because::Min,
            ScalingReason::Load => api::Because::Load,
            ScalingReason::RecentLoad => api::Because::RecentLoad,
            ScalingReason::Max => api::Because::Max,
        };
        api::Explain {
            name: self.model.name.as_str().to_owned(),
            state: self.state,
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
            last_stop: self.last_stop.clone(),
            budgets: self.budgets(),
        }
    }

    /// Why there are fewer instances than wanted, or none that is ready. Who asks for one more than there are, in vain,
    /// says it only here.
    fn why_fewer(&self, wanted: u32) -> Option<String> {
        let up = |(_, generation, phase): &(InstanceNumber, Generation, &Phase)| match phase {
            Phase::Starting { .. } | Phase::Ready { .. } => self.fleet.serving() == Some(*generation),
            Phase::Draining { .. } | Phase::Stopping { .. } => false,
        };
        let up = self.fleet.instances().filter(up).count();
        let serving = self.fleet.serving().and_then(|serving| self.generations.get(serving));
        let no_room = serving.filter(|_| (1..wanted as usize).contains(&up)).and_then(|known| known.no_room.clone());
        let said: Vec<String> = self.message().into_iter().chain(no_room).collect();
        (!said.is_empty()).then(|| said.join("\n"))
    }

    fn budgets(&self) -> api::Budgets {
        let view = self.context.capacity.view();
        let need = self.serving.as_ref().map(|content| need(&content.manifest.resources)).unwrap_or_default();
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
