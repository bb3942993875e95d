//! Settings of the policy: the configuration, with the defaults that depend on the machine. Pure.

use super::probe::Card;
use omni_config::node::Gpu;
use omni_policy::residency::{CardSettings, Settings};

/// Memory the driver keeps on a card for each process beside its allocations: a context, code, tables. Around 0.5 GiB
/// with the cards and frameworks of today; an instance that exceeds its limit by less than this is not ended.
const PROCESS_MARGIN: u64 = 1 << 30;
/// Without `memory-budget`, one part in this many of a card stays free: contexts stay on the card when memory leaves
/// it.
const FREE_PART: u64 = 10;

/// Settings from the configuration. `host_memory` is the machine's in bytes; 0 if unknown.
pub(super) fn settings(config: &Gpu, cards: &[Card], host_memory: u64) -> Settings {
    let card = |card: &Card| {
        let budget = config.memory_budget.map(|budget| budget.bytes());
        let default = card.total_bytes - card.total_bytes / FREE_PART;
        CardSettings { total: card.total_bytes, budget: budget.unwrap_or(default).min(card.total_bytes) }
    };
    Settings {
        cards: cards.iter().map(card).collect(),
        overcommit: config.overcommit,
        host_budget: config.host_budget.map_or(host_memory / 2, |budget| budget.bytes()),
        quantum: config.quantum,
        evict_timeout: config.evict_timeout,
        process_margin: PROCESS_MARGIN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_config::size::ByteSize;

    #[test]
    fn defaults_come_from_the_machine_and_no_budget_is_above_its_card() {
        let uuid = "GPU-00000000-0000-0000-0000-000000000000".parse().unwrap();
        let card = Card { index: 0, uuid, minor: 0, name: "x".into(), total_bytes: 80 << 30, unified: Ok(()) };
        let of = |config: &Gpu| settings(config, std::slice::from_ref(&card), 256 << 30);
        let default = of(&Gpu::default());
        assert_eq!((default.cards[0].budget, default.host_budget), (72 << 30, 128 << 30));
        let large = Gpu { memory_budget: Some(ByteSize::from_gib(100)), ..Gpu::default() };
        assert_eq!(of(&large).cards[0].budget, 80 << 30);
        let own = Gpu {
            memory_budget: Some(ByteSize::from_gib(10)),
            host_budget: Some(ByteSize::from_gib(1)),
            ..Gpu::default()
        };
        assert_eq!((of(&own).cards[0].budget, of(&own).host_budget), (10 << 30, 1 << 30));
    }
}
