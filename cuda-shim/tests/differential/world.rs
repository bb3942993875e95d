//! State of a client: memory, streams, pools, graphs of one context at a time, and the account that follows from it.

use crate::calls::{at, call};
use crate::random::Random;
use std::fmt::Write;

pub(crate) const MIB: u64 = 1 << 20;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`, `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`, a pool's `_RELEASE_THRESHOLD`.
const RESERVED: u64 = 5;
const GRAPH_RESERVED: u64 = 2;
const THRESHOLD: u64 = 4;

/// Settings of the shim, which the model has to follow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub unified: bool,
    pub driver: u32,
    /// `None`: more than there is.
    pub limit: Option<u64>,
    /// No other thread of this process uses the device's default pool and graph memory.
    pub is_alone: bool,
}

impl Rules {
    fn converts_pools(self) -> bool {
        self.unified && self.driver >= 13_000
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `cuMemAlloc_v2` and its variants.
    Plain,
    /// Allocation with an address of 32 bits.
    Low,
    Managed,
    Pinned,
    Array,
    Mipmapped,
    Handle,
    HostHandle,
    /// From this pool; 0: it was destroyed.
    Ordered(u64),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    pub kind: Kind,
    /// Address, or handle.
    pub address: u64,
    pub bytes: u64,
    /// Number in the output: addresses differ from run to run.
    pub number: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub managed: u64,
    pub device: u64,
    pub host: u64,
}

pub(crate) struct World {
    pub rules: Rules,
    pub random: Random,
    pub context: u64,
    pub blocks: Vec<Block>,
    pub streams: Vec<u64>,
    pub pools: Vec<u64>,
    pub execs: Vec<u64>,
    /// Reserved addresses, their size, and the number of the block mapped there.
    pub mappings: Vec<(u64, u64, u64)>,
    pub said: String,
    /// A memory node was launched.
    pub has_graphs: bool,
    next: u64,
}

impl World {
    pub(crate) fn new(rules: Rules, seed: u64) -> Self {
        let mut world = Self {
            rules,
            random: Random(seed),
            context: 0,
            blocks: Vec::new(),
            streams: Vec::new(),
            pools: Vec::new(),
            execs: Vec::new(),
            mappings: Vec::new(),
            said: String::new(),
            has_graphs: false,
            next: 0,
        };
        world.begin();
        world
    }

    /// Creates a context of device 0 with its default pool.
    pub(crate) fn begin(&mut self) {
        assert_eq!(call("cuCtxCreate_v2", &[at(&mut self.context), 0, 0]), 0);
        if self.pools.is_empty() {
            self.pools.push(0);
            assert_eq!(call("cuDeviceGetDefaultMemPool", &[at(&mut self.pools[0]), 0]), 0);
        }
    }

    /// Prints an operation and its result; returns the result.
    pub(crate) fn say(&mut self, what: &str, result: i32) -> bool {
        writeln!(self.said, "{what} -> {result}").unwrap();
        result == 0
    }

    pub(crate) fn keep(&mut self, kind: Kind, address: u64, bytes: u64) -> u64 {
        self.next += 1;
        self.blocks.push(Block { kind, address, bytes, number: self.next });
        self.next
    }

    /// Picks a block of a kind.
    pub(crate) fn any(&mut self, fits: impl Fn(Kind) -> bool) -> Option<Block> {
        let of_kind: Vec<Block> = self.blocks.iter().copied().filter(|block| fits(block.kind)).collect();
        self.random.of(&of_kind)
    }

    pub(crate) fn forget(&mut self, number: u64) {
        self.blocks.retain(|block| block.number != number);
    }

    /// Picks a stream, the legacy one among them.
    pub(crate) fn stream(&mut self) -> u64 {
        let streams: Vec<u64> = self.streams.iter().copied().chain([0]).collect();
        self.random.of(&streams).unwrap()
    }

    pub(crate) fn reserved(pool: u64) -> u64 {
        let mut bytes = 0_u64;
        assert_eq!(call("cuMemPoolGetAttribute", &[pool, RESERVED, at(&mut bytes)]), 0);
        bytes
    }

    pub(crate) fn keep_in_pool(pool: u64, mut bytes: u64) -> i32 {
        call("cuMemPoolSetAttribute", &[pool, THRESHOLD, at(&mut bytes)])
    }

    fn graphs_have() -> u64 {
        let mut bytes = 0_u64;
        assert_eq!(call("cuDeviceGetGraphMemAttribute", &[0, GRAPH_RESERVED, at(&mut bytes)]), 0);
        bytes
    }

    /// Bytes that pools and graphs have taken from the device.
    pub(crate) fn kept(&self) -> u64 {
        let graphs = if self.has_graphs { Self::graphs_have() } else { 0 };
        graphs + self.pools.iter().map(|pool| Self::reserved(*pool)).sum::<u64>()
    }

    /// The shim converts this block: small ones stay as they are, and here they never add up to their bound.
    fn is_converted(&self, block: &Block) -> bool {
        let is_possible = match block.kind {
            Kind::Plain => self.rules.unified,
            Kind::Ordered(_) => self.rules.converts_pools(),
            _ => false,
        };
        is_possible && block.bytes >= MIB
    }

    /// Bytes in use that come from a pool itself.
    fn live_in(&self, pool: u64) -> u64 {
        let from = self.blocks.iter().filter(|block| block.kind == Kind::Ordered(pool) && !self.is_converted(block));
        from.map(|block| block.bytes).sum()
    }

    /// Expected account when no free is pending.
    pub(crate) fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        for block in &self.blocks {
            match block.kind {
                Kind::Plain if self.is_converted(block) => sums.managed += block.bytes,
                Kind::Managed => sums.managed += block.bytes,
                Kind::Plain | Kind::Low | Kind::Array | Kind::Mipmapped | Kind::Handle => sums.device += block.bytes,
                Kind::Pinned | Kind::HostHandle => sums.host += block.bytes,
                Kind::Ordered(_) if self.is_converted(block) => sums.managed += block.bytes,
                Kind::Ordered(0) => sums.device += block.bytes,
                Kind::Ordered(_) => {}
            }
        }
        // Managed pools of the simulated driver reserve nothing.
        sums.device += self.pools.iter().map(|pool| Self::reserved(*pool).max(self.live_in(*pool))).sum::<u64>();
        if self.has_graphs {
            sums.device += Self::graphs_have();
        }
        sums
    }

    /// Bytes in use that cannot give way, and bytes that pools and graphs cache besides.
    pub(crate) fn in_use(&self) -> (u64, u64) {
        let limited = |block: &&Block| !matches!(block.kind, Kind::Pinned | Kind::HostHandle);
        let used = self.blocks.iter().filter(limited).map(|block| block.bytes).sum();
        let graphs = if self.has_graphs { Self::graphs_have() } else { 0 };
        (used, graphs)
    }
}
