//! Every entry of the generated table: programs find the hook, and none allocates beyond the limit.

use crate::calls::*;
use crate::client::begin;
use crate::instance::{DRIVERS, Instance, MIB, MODES, say};
use crate::{graphs, imports};
use omni_cuda_entries::{ENTRIES, Entry, Role};
use std::ptr::{null, null_mut};

const LIMIT: u64 = 64 * MIB;
/// Sizes of handles are multiples of this.
const STEP: u64 = 2 * MIB;
const OUT_OF_MEMORY: i32 = 2;

/// Exceptions. Pinned host memory is the host's: it counts, and the limit on device memory does not apply to it.
const HOST: [&str; 3] = ["cuMemAllocHost", "cuMemAllocHost_v2", "cuMemHostAlloc"];

/// Entries that import memory which another process has made, past the limit: see [`crate::imports`].
const FROM_ELSEWHERE: [&str; 4] =
    ["cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2", "cuMemImportFromShareableHandle", "cuMemPoolImportPointer"];

/// Entries that add nodes of graphs: see [`crate::graphs`].
pub(crate) const NODES: [&str; 4] =
    ["cuGraphAddMemAllocNode", "cuGraphAddNode", "cuGraphAddNode_v2", "cuGraphAddNode_v3"];

/// Entries that allocate on the device, in a driver of this version.
fn allocating(driver: u32) -> impl Iterator<Item = &'static Entry> {
    ENTRIES
        .iter()
        .filter(move |entry| entry.role == Role::Allocates && entry.version <= driver)
        .filter(|entry| !HOST.contains(&entry.symbol))
}

#[test]
fn the_drivers_of_these_tests_have_every_entry_that_allocates() {
    let newest = DRIVERS.into_iter().max().unwrap();
    let all = ENTRIES.iter().filter(|entry| entry.role == Role::Allocates).count();
    assert_eq!(allocating(newest).count() + HOST.len(), all);
}

/// Answer of one entry that is asked for `bytes`.
fn ask(instance: &Instance, symbol: &str, bytes: u64) -> Vec<String> {
    if !FROM_ELSEWHERE.contains(&symbol) {
        return instance.run(&format!("entry {symbol} {bytes}"));
    }
    let mut maker = instance.start_with(&format!("offer {symbol} {bytes}"), &[("LD_PRELOAD", "")]);
    let offer = maker.line().unwrap();
    let said = instance.run(&format!("entry {symbol} {bytes} {} {offer}", maker.pid()));
    maker.go_on();
    maker.end();
    said
}

#[test]
fn every_entry_with_a_role_is_hooked() {
    let said = Instance::new(DRIVERS[1], "device", LIMIT).run("symbols");
    let roles = ENTRIES.iter().filter(|entry| entry.role != Role::Other).count();
    assert_eq!(said, [format!("{roles} of ours")]);
}

pub(crate) fn symbols() {
    let others: Vec<&str> = ENTRIES
        .iter()
        .filter(|entry| entry.role != Role::Other && !is_ours(entry.symbol))
        .map(|entry| entry.symbol)
        .collect();
    assert_eq!(others, Vec::<&str>::new());
    say(&format!("{} of ours", ENTRIES.iter().filter(|entry| is_ours(entry.symbol)).count()));
}

#[test]
fn no_entry_allocates_beyond_the_limit() {
    for (driver, mode) in DRIVERS.iter().flat_map(|driver| MODES.map(|mode| (*driver, mode))) {
        let instance = Instance::new(driver, mode, LIMIT);
        for entry in allocating(driver) {
            let said = ask(&instance, entry.symbol, LIMIT + STEP);
            assert_eq!(said, [format!("{} {OUT_OF_MEMORY}", entry.symbol)], "{driver}, {mode}");
            assert_eq!(instance.card().used(), 0, "{} left something", entry.symbol);
        }
    }
}

#[test]
fn each_entry_works_within_the_limit() {
    for (driver, mode) in DRIVERS.iter().flat_map(|driver| MODES.map(|mode| (*driver, mode))) {
        let instance = Instance::new(driver, mode, LIMIT);
        for entry in allocating(driver) {
            let said = ask(&instance, entry.symbol, STEP);
            assert_eq!(said, [format!("{} 0", entry.symbol)], "{driver}, {mode}");
        }
    }
}

/// Allocates `bytes` by one entry and prints the answer. `offer`: the process that made them, and its output.
pub(crate) fn client(symbol: &str, bytes: u64, offer: &[&str]) {
    begin();
    let answered = match (offer, NODES.contains(&symbol)) {
        ([maker, offer @ ..], _) => imports::take(symbol, bytes, maker, offer),
        ([], true) => graphs::launch_by(symbol, bytes),
        ([], false) => allocate_by(symbol, bytes),
    };
    say(&format!("{symbol} {answered}"));
}

fn allocate_by(symbol: &str, bytes: u64) -> i32 {
    let (size, short) = (usize::try_from(bytes).unwrap(), u32::try_from(bytes).unwrap());
    let (mut address, mut low, mut pitch, mut low_pitch) = (0_u64, 0_u32, 0_usize, 0_u32);
    let out = &raw mut address;
    // Rows of 4 KiB: 256 elements of four 32-bit channels.
    let rows = size / 4096;
    let solid = Solid { width: 256, height: rows, depth: 0, format: 0x20, channels: 4, flags: 0 };
    let mut stream = 0;
    assert_eq!(cuStreamCreate(&raw mut stream, 0), 0);
    match symbol {
        "cuMemAlloc" => cuMemAlloc(&raw mut low, short),
        "cuMemAlloc_v2" => cuMemAlloc_v2(out, size),
        "cuMemAllocManaged" => cuMemAllocManaged(out, size, 1),
        "cuMemAllocPitch" => cuMemAllocPitch(&raw mut low, &raw mut low_pitch, 4096, short / 4096, 4),
        "cuMemAllocPitch_v2" => cuMemAllocPitch_v2(out, &raw mut pitch, 4096, rows, 4),
        "cuMemAllocAsync" => cuMemAllocAsync(out, size, stream),
        "cuMemAllocAsync_ptsz" => cuMemAllocAsync_ptsz(out, size, 0),
        "cuMemAllocFromPoolAsync" => cuMemAllocFromPoolAsync(out, size, pool(), stream),
        "cuMemAllocFromPoolAsync_ptsz" => cuMemAllocFromPoolAsync_ptsz(out, size, pool(), 0),
        "cuMemCreate" => cuMemCreate(out, size, &HandleProperties::DEVICE, 0),
        "cuArrayCreate" => cuArrayCreate(out, &[256, short / 4096, 0x20, 4]),
        "cuArrayCreate_v2" => cuArrayCreate_v2(out, &Flat { width: 256, height: rows, format: 0x20, channels: 4 }),
        "cuArray3DCreate" => cuArray3DCreate(out, &[256, short / 4096, 0, 0x20, 4, 0]),
        "cuArray3DCreate_v2" => cuArray3DCreate_v2(out, &raw const solid),
        "cuImportExternalMemory" => imports::external_by(bytes),
        "cuMipmappedArrayCreate" => cuMipmappedArrayCreate(out, &raw const solid, 1),
        unknown => panic!("{unknown} allocates, and no test knows how: teach this function"),
    }
}

fn pool() -> u64 {
    let mut pool = 0;
    assert_eq!(cuMemPoolCreate(&raw mut pool, &PoolProperties::DEVICE), 0);
    pool
}

#[test]
fn a_null_pointer_gets_the_drivers_error_and_costs_nothing() {
    let instance = Instance::new(DRIVERS[0], "unified", LIMIT);
    let said = instance.run("answers");
    assert_eq!(said, Instance::new(DRIVERS[0], "unified", LIMIT).bare().run("answers"));
    instance.expect_nothing();
}

/// Null pointers for every kind of answer.
pub(crate) fn nulls() -> Vec<i32> {
    vec![
        cuMemAlloc_v2(null_mut(), 1),
        cuMemAllocManaged(null_mut(), 1, 1),
        cuMemAllocPitch_v2(null_mut(), null_mut(), 1, 1, 4),
        cuMemAllocHost_v2(null_mut(), 1),
        cuMemHostAlloc(null_mut(), 1, 0),
        cuMemAllocAsync(null_mut(), 1, 0),
        cuMemCreate(null_mut(), 1, null(), 0),
        cuArrayCreate_v2(null_mut(), null()),
        cuArray3DCreate_v2(null_mut(), null()),
        cuMipmappedArrayCreate(null_mut(), null(), 1),
        cuImportExternalMemory(null_mut(), null()),
        cuMemGetInfo_v2(null_mut(), null_mut()),
        cuDeviceTotalMem_v2(null_mut(), 0),
    ]
}
