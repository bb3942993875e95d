//! Steps of a random sequence: each is one operation of a program on the driver.

use crate::calls::{at, call};
use crate::world::{Block, Kind, MIB, World};

/// Most blocks at a time: few enough to meet each other often.
const MOST: usize = 24;

impl World {
    pub(crate) fn step(&mut self) {
        let kinds = if self.blocks.len() < MOST { 22 } else { 12 };
        match self.random.below(kinds) {
            0..=3 => self.free_one(),
            4 => self.wait(),
            5 => self.copy(),
            6 => self.ask(),
            7 => self.change_streams(),
            8 => self.change_pools(),
            9 => self.wrong(),
            10 => self.unmap_or_retain(),
            11 => self.change_contexts(),
            12..=14 => self.allocate_plain(),
            15..=17 => self.allocate_ordered(),
            18 => self.allocate_array(),
            19 => self.create_handle(),
            20 => self.pin(),
            _ => self.use_graph(),
        }
    }

    fn size(&mut self) -> u64 {
        let large = self.rules.limit.map_or(8 * MIB, |limit| limit / 3);
        match self.random.below(4) {
            0 => 1 + self.random.below(5000),
            1 => MIB * (1 + self.random.below(8)),
            2 => 2 * MIB,
            _ => 1 + self.random.below(large),
        }
    }

    /// Checks that an allocation of so many bytes was answered as the limit demands.
    fn judge(&mut self, what: &str, bytes: u64, before: (u64, u64), result: i32) -> bool {
        if let Some(limit) = self.rules.limit {
            let (used, kept) = before;
            assert!(
                result == 0 || used + kept + bytes > limit,
                "refused with room: {what}, {used} + {kept} of {limit}"
            );
            assert!(result != 0 || used + bytes <= limit, "beyond the limit: {what}, {used} of {limit}");
            assert!(result == 0 || result == 2, "{what}: {result}");
        }
        self.say(what, result)
    }

    fn allocate_plain(&mut self) {
        let (bytes, before) = (self.size(), self.in_use());
        let (mut address, mut low, mut pitch) = (0_u64, 0_u32, 0_u64);
        match self.random.below(5) {
            0 | 1 => {
                let result = call("cuMemAlloc_v2", &[at(&mut address), bytes]);
                if self.judge(&format!("cuMemAlloc_v2 {bytes}"), bytes, before, result) {
                    self.keep(Kind::Plain, address, bytes);
                }
            }
            2 => {
                let result = call("cuMemAllocManaged", &[at(&mut address), bytes, 1]);
                if self.judge(&format!("cuMemAllocManaged {bytes}"), bytes, before, result) {
                    self.keep(Kind::Managed, address, bytes);
                }
            }
            3 => {
                let (width, height) = (1 + bytes % 5000, 1 + bytes / 5000);
                let result = call("cuMemAllocPitch_v2", &[at(&mut address), at(&mut pitch), width, height, 4]);
                let taken = width.next_multiple_of(512) * height;
                if self.judge(&format!("cuMemAllocPitch_v2 {width} {height} ({pitch})"), taken, before, result) {
                    self.keep(Kind::Plain, address, pitch * height);
                }
            }
            _ => {
                let result = call("cuMemAlloc", &[at(&mut low), bytes]);
                if self.judge(&format!("cuMemAlloc {bytes}"), bytes, before, result) {
                    self.keep(Kind::Low, u64::from(low), bytes);
                }
            }
        }
    }

    fn allocate_ordered(&mut self) {
        let (bytes, before, stream, mut address) = (self.size(), self.in_use(), self.stream(), 0_u64);
        let place = usize::try_from(self.random.below(u64::try_from(self.pools.len()).unwrap())).unwrap();
        let pool = self.pools[place];
        let (what, result) = match self.random.below(3) {
            0 => ("cuMemAllocFromPoolAsync", call("cuMemAllocFromPoolAsync", &[at(&mut address), bytes, pool, stream])),
            _ if place > 0 => {
                ("..FromPoolAsync_ptsz", call("cuMemAllocFromPoolAsync_ptsz", &[at(&mut address), bytes, pool, 0]))
            }
            1 => ("cuMemAllocAsync", call("cuMemAllocAsync", &[at(&mut address), bytes, stream])),
            _ => ("cuMemAllocAsync_ptsz", call("cuMemAllocAsync_ptsz", &[at(&mut address), bytes, 0])),
        };
        if self.judge(&format!("{what} {bytes} of pool {place}"), bytes, before, result) {
            self.keep(Kind::Ordered(pool), address, bytes);
        }
    }

    fn allocate_array(&mut self) {
        let (before, mut array) = (self.in_use(), 0_u64);
        let (width, height) = (1 + self.random.below(300), 1 + self.random.below(300));
        let solid = [width, height, 0, 0x20 | 4 << 32, 0];
        let bytes = width * height * 16;
        if self.random.below(2) == 0 {
            let result = call("cuArray3DCreate_v2", &[at(&mut array), at(&mut solid.clone())]);
            if self.judge(&format!("cuArray3DCreate_v2 {width} {height}"), bytes, before, result) {
                self.keep(Kind::Array, array, bytes);
            }
        } else {
            let result = call("cuMipmappedArrayCreate", &[at(&mut array), at(&mut solid.clone()), 1]);
            if self.judge(&format!("cuMipmappedArrayCreate {width} {height}"), bytes, before, result) {
                self.keep(Kind::Mipmapped, array, bytes);
            }
        }
    }

    fn create_handle(&mut self) {
        let (before, mut handle) = (self.in_use(), 0_u64);
        let (bytes, is_host) = (2 * MIB * (1 + self.random.below(3)), self.random.below(4) == 0);
        let mut properties = [1_u64, if is_host { 3 } else { 1 }, 0, 0];
        let result = call("cuMemCreate", &[at(&mut handle), bytes, at(&mut properties), 0]);
        let what = format!("cuMemCreate {bytes} {is_host}");
        let (kind, counted) = if is_host { (Kind::HostHandle, 0) } else { (Kind::Handle, bytes) };
        let is_made = if is_host { self.say(&what, result) } else { self.judge(&what, counted, before, result) };
        if !is_made {
            return;
        }
        let number = self.keep(kind, handle, bytes);
        let mut place = 0_u64;
        if self.random.below(2) == 0 && call("cuMemAddressReserve", &[at(&mut place), bytes, 0, 0, 0]) == 0 {
            let result = call("cuMemMap", &[place, bytes, 0, handle, 0]);
            assert!(self.say("cuMemMap", result));
            self.mappings.push((place, bytes, number));
        }
    }

    /// Unmaps or retains: handles are freed only when they are not mapped, since mapped memory outlives them, which the
    /// model leaves out.
    fn unmap_or_retain(&mut self) {
        let Some((place, bytes, number)) = self.mappings.pop() else { return };
        let mut again = 0_u64;
        if self.random.below(2) == 0 {
            let result = call("cuMemRetainAllocationHandle", &[at(&mut again), place]);
            if self.say("cuMemRetainAllocationHandle", result) {
                let result = call("cuMemRelease", &[again]);
                self.say("cuMemRelease of it", result);
            }
        }
        let result = call("cuMemUnmap", &[place, bytes]);
        self.say(&format!("cuMemUnmap {number}"), result);
        call("cuMemAddressFree", &[place, bytes]);
    }

    fn pin(&mut self) {
        let (bytes, mut address) = (1 + self.random.below(MIB), 0_u64);
        let result = match self.random.below(2) {
            0 => call("cuMemAllocHost_v2", &[at(&mut address), bytes]),
            _ => call("cuMemHostAlloc", &[at(&mut address), bytes, 0]),
        };
        if self.say(&format!("pinned {bytes}"), result) {
            self.keep(Kind::Pinned, address, bytes);
        }
        // A failed allocation must not be uncounted either.
        let result = call("cuMemAllocHost_v2", &[at(&mut address), u64::MAX]);
        self.say("pinned too much", result);
    }

    fn free_one(&mut self) {
        let mapped: Vec<u64> = self.mappings.iter().map(|(_, _, number)| *number).collect();
        let free: Vec<Block> = self.blocks.iter().copied().filter(|one| !mapped.contains(&one.number)).collect();
        let Some(block) = self.random.of(&free) else { return };
        self.free(block);
    }

    pub(crate) fn free(&mut self, block: Block) {
        let Block { kind, address, number, .. } = block;
        let stream = self.stream();
        let (what, result) = match kind {
            Kind::Low => ("cuMemFree", call("cuMemFree", &[address])),
            Kind::Plain | Kind::Managed => ("cuMemFree_v2", call("cuMemFree_v2", &[address])),
            Kind::Pinned => ("cuMemFreeHost", call("cuMemFreeHost", &[address])),
            Kind::Array => ("cuArrayDestroy", call("cuArrayDestroy", &[address])),
            Kind::Mipmapped => ("cuMipmappedArrayDestroy", call("cuMipmappedArrayDestroy", &[address])),
            Kind::Handle | Kind::HostHandle => ("cuMemRelease", call("cuMemRelease", &[address])),
            Kind::Ordered(_) => match self.random.below(3) {
                0 => ("cuMemFree_v2", call("cuMemFree_v2", &[address])),
                1 => ("cuMemFreeAsync_ptsz", call("cuMemFreeAsync_ptsz", &[address, 0])),
                _ => ("cuMemFreeAsync", call("cuMemFreeAsync", &[address, stream])),
            },
        };
        if self.say(&format!("{what} of {number}, {kind:?}").replace(&format!("({})", pool_of(kind)), ""), result) {
            self.forget(number);
        }
        // Beside other threads the address may belong to one of them by now.
        if self.random.below(8) == 0 && self.rules.is_alone && matches!(kind, Kind::Plain | Kind::Ordered(_)) {
            let result = call("cuMemFree_v2", &[address]);
            self.say("freed again", result);
        }
    }

    fn wait(&mut self) {
        let stream = self.stream();
        let result = match self.random.below(3) {
            0 => call("cuStreamSynchronize", &[stream]),
            1 => call("cuStreamSynchronize_ptsz", &[0]),
            _ => call("cuCtxSynchronize", &[]),
        };
        self.say("wait", result);
    }

    /// Fills two blocks, copies from one to the other, and reads back.
    fn copy(&mut self) {
        let is_linear = |kind| matches!(kind, Kind::Plain | Kind::Managed | Kind::Ordered(_));
        let (Some(from), Some(to)) = (self.any(is_linear), self.any(is_linear)) else { return };
        let bytes = from.bytes.min(to.bytes).min(4000);
        let value = self.random.below(256);
        call("cuCtxSynchronize", &[]);
        let set = call("cuMemsetD8_v2", &[from.address, value, bytes]);
        let copied = call("cuMemcpyDtoD_v2", &[to.address, from.address, bytes]);
        let mut back = [0_u8; 4000];
        let read = call("cuMemcpyDtoH_v2", &[at(&mut back), to.address, bytes]);
        let sum: u64 = back.iter().map(|byte| u64::from(*byte)).sum();
        self.say(&format!("copy {} to {}: {set} {copied} {sum}", from.number, to.number), read);
    }

    fn ask(&mut self) {
        let Some(block) = self.any(|kind| matches!(kind, Kind::Plain | Kind::Managed | Kind::Ordered(_))) else {
            return;
        };
        let (mut base, mut bytes, mut kind) = (0_u64, 0_u64, 0_u64);
        let middle = block.address + block.bytes / 2;
        let result = call("cuMemGetAddressRange_v2", &[at(&mut base), at(&mut bytes), middle]);
        self.say(&format!("range of {}: {} {bytes}", block.number, base == block.address), result);
        let result = call("cuPointerGetAttribute", &[at(&mut kind), 2, middle]);
        self.say(&format!("type of {}: {kind}", block.number), result);
        let (mut free, mut total) = (0_u64, 0_u64);
        let result = call("cuMemGetInfo_v2", &[at(&mut free), at(&mut total)]);
        // Managed memory counts as the instance's share where it is not on the card, too, and cached pool memory gives
        // way to a request that does not fit.
        let is_same = !self.rules.unified && self.rules.is_alone && self.any(|kind| kind == Kind::Managed).is_none();
        let free = if is_same { free + self.kept() } else { 0 };
        self.say(&format!("free {free} of {total}"), result);
    }

    fn change_streams(&mut self) {
        let mut stream = 0_u64;
        if self.streams.len() < 3 {
            let result = call("cuStreamCreate", &[at(&mut stream), self.random.below(2)]);
            if self.say("cuStreamCreate", result) {
                self.streams.push(stream);
            }
        } else {
            let result = call("cuStreamDestroy_v2", &[self.streams.remove(0)]);
            self.say("cuStreamDestroy_v2", result);
        }
    }

    fn change_pools(&mut self) {
        let mut pool = 0_u64;
        match self.random.below(4) {
            0 if self.pools.len() < 4 => {
                let result = call("cuMemPoolCreate", &[at(&mut pool), at(&mut [1_u64, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0])]);
                if self.say("cuMemPoolCreate", result) {
                    self.pools.push(pool);
                }
            }
            1 if self.pools.len() > 1 => {
                let pool = self.pools.pop().unwrap();
                call("cuCtxSynchronize", &[]);
                let result = call("cuMemPoolDestroy", &[pool]);
                self.say("cuMemPoolDestroy", result);
                let orphans = self.blocks.iter_mut().filter(|block| block.kind == Kind::Ordered(pool));
                orphans.for_each(|block| block.kind = Kind::Ordered(0));
            }
            2 => {
                let (pool, bytes) = (self.random.of(&self.pools).unwrap(), self.random.below(16 * MIB));
                let result = call("cuMemPoolTrimTo", &[pool, bytes]);
                self.say(&format!("cuMemPoolTrimTo {bytes}"), result);
            }
            _ => {
                let (pool, bytes) = (self.random.of(&self.pools).unwrap(), self.random.below(2) * u64::MAX);
                let result = Self::keep_in_pool(pool, bytes);
                self.say(&format!("keeps {bytes}"), result);
            }
        }
    }

    fn wrong(&mut self) {
        let Some(block) = self.any(|kind| !matches!(kind, Kind::Pinned | Kind::HostHandle)) else { return };
        let (mut address, number) = (0_u64, block.number);
        let inside = block.address + 1;
        let said = [
            call("cuMemFree_v2", &[inside]),
            call("cuMemFreeHost", &[block.address]),
            call("cuMemRelease", &[inside]),
            call("cuMemHostUnregister", &[block.address]),
            call("cuMemAlloc_v2", &[at(&mut address), 0]),
            call("cuMemAlloc_v2", &[at(&mut address), u64::MAX]),
            call("cuMemPoolDestroy", &[self.pools[0]]),
        ];
        self.say(&format!("wrong with {number}: {said:?}"), 0);
    }

    /// Ends a context with its memory; pools and handles stay.
    fn change_contexts(&mut self) {
        if self.random.below(4) > 0 {
            return;
        }
        // Memory allocated in a stream belongs to the context or to the pool, depending on the stand-in: freed before.
        let ordered: Vec<Block> =
            self.blocks.iter().copied().filter(|block| matches!(block.kind, Kind::Ordered(_))).collect();
        ordered.into_iter().for_each(|block| self.free(block));
        call("cuCtxSynchronize", &[]);
        for exec in std::mem::take(&mut self.execs) {
            call("cuGraphExecDestroy", &[exec]);
        }
        let result = call("cuCtxDestroy_v2", &[self.context]);
        self.say("cuCtxDestroy_v2", result);
        self.streams.clear();
        self.blocks.retain(|block| matches!(block.kind, Kind::Handle | Kind::HostHandle));
        self.begin();
    }

    /// Captures a memory node with its free, and launches it, now and again later.
    fn use_graph(&mut self) {
        let (mut stream, mut graph, mut exec, mut address) = (0_u64, 0_u64, 0_u64, 0_u64);
        if self.rules.limit.is_some() || !self.rules.is_alone {
            return;
        }
        if let Some(exec) = self.execs.pop() {
            let result = call("cuGraphLaunch", &[exec, 0]);
            self.say("cuGraphLaunch again", result);
            call("cuCtxSynchronize", &[]);
            let result = call("cuGraphExecDestroy", &[exec]);
            self.say("cuGraphExecDestroy", result);
            let result = call("cuDeviceGraphMemTrim", &[0]);
            self.say("cuDeviceGraphMemTrim", result);
            return;
        }
        let bytes = self.size();
        assert_eq!(call("cuStreamCreate", &[at(&mut stream), 1]), 0);
        let said = [
            call("cuStreamBeginCapture_v2", &[stream, 2]),
            call("cuMemAllocAsync", &[at(&mut address), bytes, stream]),
            call("cuMemsetD8Async", &[address, 7, bytes, stream]),
            call("cuMemFreeAsync", &[address, stream]),
            call("cuStreamEndCapture", &[stream, at(&mut graph)]),
            call("cuGraphInstantiateWithFlags", &[at(&mut exec), graph, 0]),
            call("cuGraphDestroy", &[graph]),
            call("cuGraphLaunch", &[exec, stream]),
            call("cuStreamSynchronize", &[stream]),
            call("cuStreamDestroy_v2", &[stream]),
        ];
        self.has_graphs = true;
        self.say(&format!("graph of {bytes}: {said:?}"), 0);
        self.execs.push(exec);
    }
}

fn pool_of(kind: Kind) -> u64 {
    if let Kind::Ordered(pool) = kind { pool } else { 0 }
}
