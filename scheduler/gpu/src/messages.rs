//! Texts and metric labels of the policy's refusals and ends. Pure.
//!
//! The text appears in the model's own status, so it names no other model.

use omni_capacity::retained;
use omni_policy::residency::{EndCause, Refusal, Retained};

/// Refusal of a place.
pub(super) struct Refused {
    /// Label of the metric.
    pub(super) reason: &'static str,
    /// Another try cannot help before the model or the node is changed.
    pub(super) permanent: bool,
    /// The instance would fit if the model's serving instances went first.
    pub(super) recreate_fits: bool,
    /// Text for operators.
    pub(super) message: String,
}

/// Describes a refusal. `limit` is the requested limit; `none` the reason why the node has no card, if it has none.
pub(super) fn refused(
    refusal: Refusal,
    limit: u64,
    (recreate_fits, idle): (bool, Retained),
    none: Option<&str>,
) -> Refused {
    let wanted = about(limit);
    let nobody = format!("no idle instance can make room{}", retained(idle.kept, idle.recent));
    let (reason, permanent, message) = match refusal {
        Refusal::NoCard => {
            let none = none.unwrap_or("no card can be used");
            ("no-card", true, format!("it needs a GPU, and this node has none for models: {none}"))
        }
        Refusal::CardLost => (
            "lost",
            true,
            "it needs a GPU, and those of this node do not answer any more: see `omnictl gpu`".to_owned(),
        ),
        Refusal::TooBig { budget } => (
            "too-big",
            true,
            format!(
                "its gpu-memory of {wanted} is more than the {} that models may have on a card of this node \
                 (`memory-budget` in [gpu])",
                about(budget)
            ),
        ),
        Refusal::Pinned { free } => (
            "pinned",
            false,
            format!("no GPU memory: it needs {wanted}, only {} can be made free, and {nobody}", about(free)),
        ),
        Refusal::Committed { free } => (
            "committed",
            false,
            format!("no GPU memory: it needs {wanted}, `overcommit` in [gpu] leaves {}, and {nobody}", about(free)),
        ),
        Refusal::HostBudget { free } => (
            "host-budget",
            false,
            format!(
                "no host memory for GPU memory: it needs {wanted}, `host-budget` in [gpu] leaves {}, and {nobody}",
                about(free)
            ),
        ),
    };
    Refused { reason, permanent, recreate_fits, message }
}

/// Describes the refusal of movable memory on cards that cannot move any.
pub(super) fn not_movable(why: &str) -> Refused {
    let message = format!("gpu-mode = \"unified\" cannot be had on this node's cards: {why}; \"device\" can");
    Refused { reason: "not-movable", permanent: true, recreate_fits: false, message }
}

/// End of an instance.
pub(super) struct Ended {
    /// Label of the metric.
    pub(super) reason: &'static str,
    /// The instance did nothing wrong.
    pub(super) displaced: bool,
    /// Text for operators.
    pub(super) message: String,
}

/// Describes why an instance has to end.
pub(super) fn ended(why: EndCause) -> Ended {
    let (reason, displaced, message) = match why {
        EndCause::BeyondLimit { seen, allowed } => (
            "beyond-limit",
            false,
            format!(
                "its processes had {} on the GPU, more than its limit allows ({} with the driver's own part): it was ended",
                about(seen),
                about(allowed)
            ),
        ),
        EndCause::StillOnCard { seen, allowed } => (
            "still-on-card",
            false,
            format!(
                "it was told to leave the GPU and said that it had, but held {} there ({} are allowed): it was ended",
                about(seen),
                about(allowed)
            ),
        ),
        EndCause::Silent => (
            "silent",
            false,
            "it did not answer a command to move its GPU memory within `evict-timeout` of [gpu]: it was ended"
                .to_owned(),
        ),
        EndCause::DidNotLeave { error: 0 } => {
            ("did-not-leave", false, "it did not move its GPU memory to the host when told to: it was ended".to_owned())
        }
        EndCause::DidNotLeave { error } => (
            "did-not-leave",
            false,
            format!("its GPU memory could not be moved to the host (CUDA error {error}): it was ended"),
        ),
        EndCause::InTheWay => (
            "in-the-way",
            true,
            "it was idle with GPU memory that cannot be moved, and another model needed the room".to_owned(),
        ),
        EndCause::TooBig { budget } => (
            "too-big",
            true,
            format!("its gpu-memory is more than the {} that models may have on its card now", about(budget)),
        ),
        EndCause::CardLost => ("lost", false, "its GPU does not answer any more: it was ended".to_owned()),
    };
    Ended { reason, displaced, message }
}

/// Size rounded for reading.
fn about(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    match bytes {
        0..GIB => format!("{}MiB", bytes / MIB),
        _ if bytes.is_multiple_of(GIB) => format!("{}GiB", bytes / GIB),
        _ => format!("{:.1}GiB", bytes as f64 / GIB as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_and_every_end_in_words() {
        let (gib, mib) = (1_u64 << 30, 1_u64 << 20);
        let refusals = [
            Refusal::NoCard,
            Refusal::CardLost,
            Refusal::TooBig { budget: 72 * gib },
            Refusal::Pinned { free: 300 * mib },
            Refusal::Committed { free: 0 },
            Refusal::HostBudget { free: gib + gib / 2 },
        ];
        let mut text = String::new();
        for why in refusals {
            let idle = Retained { kept: 1, recent: 2 };
            let Refused { reason, permanent, message, .. } = refused(why, 100 * gib, (false, idle), Some("no driver"));
            text += &format!("{reason} permanent={permanent}\n  {message}\n");
        }
        text += &format!("{}\n", not_movable("it has no concurrent managed access").message);
        for why in [
            EndCause::BeyondLimit { seen: 12 * gib, allowed: 11 * gib },
            EndCause::StillOnCard { seen: 12 * gib, allowed: gib },
            EndCause::Silent,
            EndCause::DidNotLeave { error: 0 },
            EndCause::DidNotLeave { error: 700 },
            EndCause::InTheWay,
            EndCause::TooBig { budget: gib },
            EndCause::CardLost,
        ] {
            let Ended { reason, displaced, message } = ended(why);
            text += &format!("{reason} displaced={displaced}\n  {message}\n");
        }
        insta::assert_snapshot!(text);
    }
}
