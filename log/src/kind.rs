//! Kinds of messages that somebody may want to wait for or to look up: `journalctl MESSAGE_ID=...`, and with `-x` what to
//! do. What each means stands in `systemd/omni.catalog`.
//!
//! What always holds: a number is never given to another kind, and no kind changes its number.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether kinds are told by number: not to people who read a terminal.
static TOLD: AtomicBool = AtomicBool::new(false);

pub(crate) fn tell(kinds: bool) {
    TOLD.store(kinds, Ordering::Relaxed);
}

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A model has another state.
    ModelState,
    /// A version of a model takes the traffic from now on.
    VersionServes,
    /// A model was taken back to a version before.
    RolledBack,
    /// An instance ended though nobody wanted it to.
    InstanceDied,
    /// An instance that does not answer is replaced.
    InstanceReplaced,
    /// An instance that does well is stopped.
    InstanceStopped,
    /// The content of a model's directory cannot be served.
    ModelRefused,
    /// An environment could not be made.
    EnvironmentFailed,
    /// The node serves.
    Serving,
    /// The node ends, and takes no new requests.
    Draining,
    /// Another process serves from now on, after an upgrade or a reload.
    HandedOver,
    /// An upgrade or a reload was not done; the node serves on as it was.
    NotHandedOver,
    /// The node's configuration is another one.
    ConfigurationChanged,
}

impl Kind {
    /// All of them.
    #[cfg(test)]
    const ALL: [Self; 13] = [
        Self::ModelState,
        Self::VersionServes,
        Self::RolledBack,
        Self::InstanceDied,
        Self::InstanceReplaced,
        Self::InstanceStopped,
        Self::ModelRefused,
        Self::EnvironmentFailed,
        Self::Serving,
        Self::Draining,
        Self::HandedOver,
        Self::NotHandedOver,
        Self::ConfigurationChanged,
    ];

    /// Its number, for a field `message_id`; `None` where people read the lines.
    #[must_use]
    pub fn id(self) -> Option<&'static str> {
        TOLD.load(Ordering::Relaxed).then(|| self.number())
    }

    /// A random one of 128 bits (systemd.journal-fields(7), `MESSAGE_ID=`).
    fn number(self) -> &'static str {
        match self {
            Self::ModelState => "905709c8349a3010171b8c4034ab9cae",
            Self::VersionServes => "8254b8e33c882199280fad4a54bd9d21",
            Self::RolledBack => "cf9f19407abd082112207ee0939a65a1",
            Self::InstanceDied => "8f99a2d376a74bcced270f812b7ca0ce",
            Self::InstanceReplaced => "9a8b16b96625d965e93931daeb1ffbb3",
            Self::InstanceStopped => "5b0f8c1e7d6a4c0e9a43b7f2d1c86e35",
            Self::ModelRefused => "d955f9747debf2e2fa0fbe76a45f4aad",
            Self::EnvironmentFailed => "670acf0c9b43cb0e98b43ef39e14342e",
            Self::Serving => "020cb172726217b9236d06ea4d132261",
            Self::Draining => "c271dfe5683e2d0ba0f14f63356af036",
            Self::HandedOver => "a1c488139dc0d7f7086522fb22c8b803",
            Self::NotHandedOver => "6d75a939c294bdfd6151e67a2d01bef7",
            Self::ConfigurationChanged => "d1dce43669281068ac9c8515ba86b358",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_kind_has_a_number_and_an_entry_in_the_catalogue() {
        let catalogue = include_str!("../../systemd/omni.catalog");
        let entries: Vec<&str> = catalogue.lines().filter_map(|line| line.strip_prefix("-- ")).collect();
        let ids: BTreeSet<&str> = Kind::ALL.iter().map(|kind| kind.number()).collect();
        assert_eq!(ids.len(), Kind::ALL.len(), "no two have the same");
        assert_eq!(entries.iter().copied().collect::<BTreeSet<_>>(), ids);
        assert_eq!(entries.len(), ids.len(), "one entry for each");
        for id in ids {
            assert!(id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{id}");
        }
    }
}
