//! Kinds of messages with a `MESSAGE_ID`: to wait for with `journalctl MESSAGE_ID=...`, and with `-x` to look up what
//! to do. Their explanations are in `systemd/omni.catalog`.
//!
//! Invariants: a number is never given to another kind, and no kind changes its number.

use std::sync::atomic::{AtomicBool, Ordering};

/// True if lines carry the number of their kind: not on a terminal.
static NUMBERED: AtomicBool = AtomicBool::new(false);

pub(crate) fn with_numbers(numbered: bool) {
    NUMBERED.store(numbered, Ordering::Relaxed);
}

/// Events with a `MESSAGE_ID`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A model's state changed.
    ModelState,
    /// A version of a model takes the traffic from now on.
    VersionServes,
    /// A model was taken back to a version before.
    RolledBack,
    /// An instance ended unexpectedly.
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
    /// The node ends and refuses new requests.
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

    /// The value of the field `message_id`; `None` on a terminal.
    #[must_use]
    pub fn id(self) -> Option<&'static str> {
        NUMBERED.load(Ordering::Relaxed).then(|| self.number())
    }

    /// A random number of 128 bits (systemd.journal-fields(7), `MESSAGE_ID=`).
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
