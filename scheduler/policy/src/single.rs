//! The service of a single model: ready when that is, ended when that fails. Pure; [`crate::single`] asks after each change.
//!
//! On a node of many models a death is answered with another start, after a pause that grows. Here the service manager does
//! that, who sees every end, counts them and tells people; only what a client can cause by hanging up is mended here
//! ([why](../../../docs/decisions/single-model.md)).

/// Exit code of a configuration error in `sysexits.h`: the service manager does not start the service again.
pub const EX_CONFIG: u8 = 78;

/// What the model's task publishes, as far as the service depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Its directory has nothing that can be served, and no instance of an earlier scheduler serves.
    pub refused: bool,
    /// Environments, starts and instances of what serves that have failed since this scheduler began. A new content that is
    /// being proven beside it does not count.
    pub failures: u64,
    /// It needs more than this node could ever give to its models.
    pub too_big: bool,
    /// No card of this node can take it. A driver that is loaded later would change that.
    pub no_card: bool,
    /// An instance takes requests.
    pub ready: bool,
}

/// What the service makes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Nothing is known that decides.
    Wait,
    /// The service is ready.
    Ready,
    /// The service ends.
    End(Fault),
}

/// Why a service ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The model has failed; a start anew may help.
    Failed,
    /// Somebody has to change something first.
    Unservable,
}

impl Fault {
    /// The exit code: `EX_SOFTWARE`, or `EX_CONFIG` where the service manager must not try again.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Failed => 70,
            Self::Unservable => EX_CONFIG,
        }
    }
}

/// What follows.
#[must_use]
pub const fn turn(seen: Seen) -> Turn {
    match seen {
        Seen { failures: 1.., .. } | Seen { no_card: true, .. } => Turn::End(Fault::Failed),
        Seen { refused: true, .. } | Seen { too_big: true, .. } => Turn::End(Fault::Unservable),
        Seen { ready: true, .. } => Turn::Ready,
        Seen { ready: false, .. } => Turn::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_models_failure_is_the_services() {
        let seen = Seen { refused: false, failures: 0, too_big: false, no_card: false, ready: false };
        let ready = Seen { ready: true, ..seen };
        let (failed, unservable) = (Turn::End(Fault::Failed), Turn::End(Fault::Unservable));
        for (what, seen, expected) in [
            ("it is not seen yet, or being prepared or started", seen, Turn::Wait),
            ("it serves", ready, Turn::Ready),
            ("its directory or manifest is refused", Seen { refused: true, ..seen }, unservable),
            ("the node is too small for it", Seen { too_big: true, ..seen }, unservable),
            ("no card fits it", Seen { no_card: true, ..seen }, failed),
            ("no environment, a failed setup, too late", Seen { failures: 1, ..seen }, failed),
            ("its only instance crashed", Seen { failures: 1, ready: false, ..ready }, failed),
            ("one of its instances crashed", Seen { failures: 1, ..ready }, failed),
            ("it was started again before anybody looked", Seen { failures: 2, ..ready }, failed),
            ("it failed, and then its directory was refused", Seen { failures: 1, refused: true, ..seen }, failed),
        ] {
            assert_eq!(turn(seen), expected, "{what}");
        }
        assert_eq!([Fault::Failed, Fault::Unservable].map(Fault::exit_code), [70, 78]);
    }
}
