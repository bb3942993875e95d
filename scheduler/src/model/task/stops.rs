//! Stops of instances that do well, for people: why, in the log and in the model's own state.

use super::ModelTask;
use crate::clock::unix_ms;
use omni_capacity::DisplacedFrom;
use omni_config::duration;
use omni_control_api as api;
use omni_log::Kind;
use omni_policy::InstanceNumber;
use omni_policy::capacity::Purpose;
use omni_policy::fleet::StopReason;

impl ModelTask {
    /// An instance begins to leave.
    pub(super) fn say_why_it_leaves(&mut self, number: InstanceNumber, why: StopReason) {
        let Some(instance) = self.instances.get(number) else { return };
        let (reason, message) = match why {
            StopReason::Idle => {
                let limit = instance.content.manifest.scaling.idle_timeout;
                (api::StopReason::Idle, format!("no request for {}, its `idle-timeout`", duration::format(limit)))
            }
            StopReason::Displaced => {
                let by = instance.displaced_by.clone();
                (api::StopReason::Displaced, by.unwrap_or_else(|| "another model needs its place".to_owned()))
            }
            StopReason::Held => (api::StopReason::Held, "by hand: `omnictl stop`".to_owned()),
            StopReason::Restarted => (api::StopReason::Restarted, "by hand: `omnictl restart`".to_owned()),
            StopReason::Replaced => (api::StopReason::Replaced, "another version takes its place".to_owned()),
            StopReason::Removed => (api::StopReason::Removed, "the model or the node ends".to_owned()),
        };
        tracing::info!(
            message_id = Kind::InstanceStopped.id(),
            model = %self.model.name,
            instance = %instance.id,
            reason = reason.as_str(),
            "the instance stops: {message}"
        );
        self.last_stop = Some(api::Stop { reason, message, unix_ms: unix_ms() });
    }
}

/// Whose instance takes the room of one that is displaced.
pub(super) fn displaced_by(model: &str, purpose: Purpose, room: DisplacedFrom) -> String {
    let what = match purpose {
        Purpose::First => "the first instance",
        Purpose::Candidate => "a new version",
        Purpose::ScaleUp => "a further instance",
        Purpose::Retry => "another try",
    };
    let place = match room {
        DisplacedFrom::Node => "room",
        DisplacedFrom::Card => "place on a card",
    };
    format!("its {place} is needed for {what} of {model}")
}
