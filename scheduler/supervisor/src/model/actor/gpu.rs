//! Decisions of the residency policy about an instance's GPU memory.

use super::ModelActor;
use super::instance::Instance;
use super::start::Refusal;
use super::status::Shortage;
use omni_gpu::Decision;
use omni_node_protocol::instance::ToWorker;
use omni_policy::fleet::Event;
use omni_policy::residency::InstanceKey;

impl ModelActor {
    /// The residency policy decides about an instance. A decision about one that is gone is late.
    pub(super) fn on_gpu_decision(&mut self, key: InstanceKey, decision: Decision) {
        let now = self.now;
        let Some(instance) = self.instances.find_placement(key) else { return };
        let number = instance.number;
        let Some(lease) = &mut instance.lease else { return };
        match decision {
            Decision::Placed(spec) => {
                lease.on_placed();
                self.launch(number, Some(spec));
            }
            Decision::Refused { permanent, recreate_fits, message } => {
                self.on_refused(number, Shortage::Gpu, Refusal { permanent, recreate_fits, message });
            }
            Decision::Granted => lease.on_granted(now),
            Decision::Yield => lease.on_yield(),
            Decision::Command { number, command } => instance.send_gpu_command(&ToWorker::Gpu { number, command }),
            Decision::SampleUsage => instance.send_gpu_command(&ToWorker::Stats),
            Decision::End { displaced, message } => {
                lease.is_ended = true;
                tracing::warn!(model = %self.model.name, instance = %instance.id, "{message}");
                self.set_message_of(number, message);
                self.event(if displaced { Event::Displaced(number) } else { Event::Unresponsive(number) });
            }
        }
    }
}

impl Instance {
    /// Sends a command about GPU memory. A worker that does not get it does not answer either: the policy has a deadline.
    fn send_gpu_command(&self, message: &ToWorker) {
        if let Some(link) = self.worker().and_then(|worker| worker.link())
            && let Err(error) = link.send(message, &[])
        {
            tracing::warn!(instance = %self.id, %error, "a command about GPU memory did not reach the worker");
        }
    }
}
