//! Service of a single model: ready when the model is, ended when the model fails. The scheduler decides after each
//! change.
//!
//! On a node of many models a death is answered with another start, after a pause that grows. Here the service manager
//! does that, which sees every end, counts ends and reports them; only what a client can cause by hanging up is handled
//! here ([why](../../../docs/decisions/single-model.md)).

/// Exit code of a configuration error in `sysexits.h`: the service manager does not start the service again.
pub const EX_CONFIG: u8 = 78;

/// State of the model, as far as the service depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceStatus {
    /// The directory has nothing that can be served, and no instance of an earlier scheduler serves.
    pub refused: bool,
    /// Failures of environments, starts and instances of the serving generation since this scheduler began. Those of a
    /// candidate do not count.
    pub failures: u64,
    /// The model needs more than this node could ever give.
    pub too_big: bool,
    /// No card of this node can take it; a driver that is loaded later would change that.
    pub no_card: bool,
    /// An instance takes requests.
    pub ready: bool,
}

/// Consequence for the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceAction {
    /// None yet.
    Wait,
    /// The service is ready.
    Ready,
    /// The service ends.
    End(Fault),
}

/// Why a service ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The model has failed; a restart may help.
    Failed,
    /// The model or the node has to be changed first.
    Unservable,
}

impl Fault {
    /// Exit code: `EX_SOFTWARE`, or `EX_CONFIG` where the service manager must not try again.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Failed => 70,
            Self::Unservable => EX_CONFIG,
        }
    }
}

/// Consequence of the model's state for the service.
#[must_use]
pub const fn decide(status: ServiceStatus) -> ServiceAction {
    match status {
        ServiceStatus { failures: 1.., .. } | ServiceStatus { no_card: true, .. } => ServiceAction::End(Fault::Failed),
        ServiceStatus { refused: true, .. } | ServiceStatus { too_big: true, .. } => {
            ServiceAction::End(Fault::Unservable)
        }
        ServiceStatus { ready: true, .. } => ServiceAction::Ready,
        ServiceStatus { ready: false, .. } => ServiceAction::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_models_failure_is_the_services() {
        let status = ServiceStatus { refused: false, failures: 0, too_big: false, no_card: false, ready: false };
        let ready = ServiceStatus { ready: true, ..status };
        let (failed, unservable) = (ServiceAction::End(Fault::Failed), ServiceAction::End(Fault::Unservable));
        for (what, status, expected) in [
            ("it is not seen yet, or being prepared or started", status, ServiceAction::Wait),
            ("it serves", ready, ServiceAction::Ready),
            ("its directory or manifest is refused", ServiceStatus { refused: true, ..status }, unservable),
            ("the node is too small for it", ServiceStatus { too_big: true, ..status }, unservable),
            ("no card fits it", ServiceStatus { no_card: true, ..status }, failed),
            ("no environment, a failed setup, too late", ServiceStatus { failures: 1, ..status }, failed),
            ("its only instance crashed", ServiceStatus { failures: 1, ready: false, ..ready }, failed),
            ("one of its instances crashed", ServiceStatus { failures: 1, ..ready }, failed),
            ("it was started again before anybody looked", ServiceStatus { failures: 2, ..ready }, failed),
            (
                "it failed, and then its directory was refused",
                ServiceStatus { failures: 1, refused: true, ..status },
                failed,
            ),
        ] {
            assert_eq!(decide(status), expected, "{what}");
        }
        assert_eq!([Fault::Failed, Fault::Unservable].map(Fault::exit_code), [70, 78]);
    }
}
