//! Converted memory, pools and streams look to a program as they do on the driver alone: the same program prints the
//! same with the shim and without it.

use crate::calls::*;
use crate::client::begin;
use crate::instance::{DRIVERS, Instance, MIB, MODES, say};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Limit above everything that the programs here allocate.
const LIMIT: u64 = 1024 * MIB;
const USED: i32 = 7;
const USED_HIGH: i32 = 8;
const RELEASE_THRESHOLD: i32 = 4;

/// Compares both outputs and returns that of the driver alone, which a test may look at too.
fn the_same(scenario: &str) -> Vec<String> {
    let mut expected = Vec::new();
    for driver in DRIVERS {
        expected = Instance::new(driver, "unified", LIMIT).bare().run(scenario);
        for mode in MODES {
            assert_eq!(Instance::new(driver, mode, LIMIT).run(scenario), expected, "driver {driver}, {mode}");
        }
    }
    expected
}

#[test]
fn a_pool_keeps_the_attributes_of_the_program() {
    let said = the_same("pools-alike");
    assert_eq!(said[0], "with a maximum of 64 MiB: 0 0 2");
    assert_eq!(said[1], "current: 0 0 true 0 true 0 0");
}

pub(crate) fn pools() {
    begin();
    let [mut stream, mut bounded, mut own, mut first, mut now, mut of] = [0; 6];
    let [mut a, mut b] = [0; 2];
    assert_eq!(cuStreamCreate(&raw mut stream, 1), 0);
    let mut properties = PoolProperties::DEVICE;
    properties.rest[1] = 64 << 20;
    let made = cuMemPoolCreate(&raw mut bounded, &raw const properties);
    let within = cuMemAllocFromPoolAsync(&raw mut a, 32 << 20, bounded, stream);
    let beyond = cuMemAllocFromPoolAsync(&raw mut b, 64 << 20, bounded, stream);
    say(&format!("with a maximum of 64 MiB: {made} {within} {beyond}"));

    assert_eq!(cuDeviceGetDefaultMemPool(&raw mut first, 0), 0);
    assert_eq!(cuMemPoolCreate(&raw mut own, &PoolProperties::DEVICE), 0);
    let set = [cuDeviceSetMemPool(0, first), cuDeviceSetMemPool(0, own)];
    assert_eq!(cuDeviceGetMemPool(&raw mut now, 0), 0);
    let taken = cuMemAllocAsync(&raw mut b, 8 << 20, stream);
    assert_eq!(cuPointerGetAttribute((&raw mut of).cast(), 17, b), 0);
    let access = cuMemPoolSetAccess(own, &[1, 0, 3], 1);
    let back = cuDeviceSetMemPool(0, first);
    say(&format!("current: {} {} {} {taken} {} {access} {back}", set[0], set[1], now == own, of == own));

    let (mut used, mut high, mut threshold) = (0, 0, 0);
    assert_eq!(cuMemAllocFromPoolAsync(&raw mut a, 4 << 20, own, stream), 0);
    let results = [
        cuMemPoolGetAttribute(own, USED, &raw mut used),
        cuMemPoolGetAttribute(own, USED_HIGH, &raw mut high),
        cuMemPoolSetAttribute(own, RELEASE_THRESHOLD, &mut { 5 << 20 }),
        cuMemPoolGetAttribute(own, RELEASE_THRESHOLD, &raw mut threshold),
    ];
    say(&format!("in use {used}, at most {high}, keeps {threshold}: {results:?}"));
    let freed = [cuMemFreeAsync(a, stream), cuMemFreeAsync(b, stream), cuStreamSynchronize(stream)];
    assert_eq!(cuMemPoolGetAttribute(own, USED, &raw mut used), 0);
    let destroyed = [cuMemPoolDestroy(first), cuMemPoolDestroy(own), cuMemPoolDestroy(own)];
    say(&format!("freed: {freed:?}, in use {used}, destroyed: {destroyed:?}"));
    let mut wrong = Vec::new();
    for stream in [stream, 12_345] {
        wrong.extend([cuMemAllocAsync(&raw mut a, 2 << 20, stream), cuMemFreeAsync(12_345, stream)]);
        wrong.push(cuMemAllocFromPoolAsync(&raw mut a, 2 << 20, 12_345, stream));
    }
    say(&format!("wrong: {wrong:?}"));
}

#[test]
fn a_pointer_to_converted_memory_is_reported_as_device_memory() {
    let said = the_same("pointers-alike");
    assert_eq!(said[0], "cuMemAlloc: type 2, managed 0, host 1; together 0: 2 0 0");
}

pub(crate) fn pointers() {
    begin();
    let [mut plain, mut pitched, mut managed, mut ordered] = [0; 4];
    let mut pitch = 0;
    assert_eq!(cuMemAlloc_v2(&raw mut plain, 4 << 20), 0);
    assert_eq!(cuMemAllocPitch_v2(&raw mut pitched, &raw mut pitch, 8000, 1024, 4), 0);
    assert_eq!(cuMemAllocAsync(&raw mut ordered, 4 << 20, 0), 0);
    assert_eq!(cuMemAllocManaged(&raw mut managed, 4 << 20, 1), 0);
    for (what, address) in
        [("cuMemAlloc", plain), ("pitched", pitched), ("cuMemAllocAsync", ordered), ("managed", managed)]
    {
        let inside = address + 5;
        let (mut kind, mut is_managed, mut host) = (0, 0_u32, 0_u64);
        assert_eq!(cuPointerGetAttribute(&raw mut kind, 2, inside), 0);
        assert_eq!(cuPointerGetAttribute(&raw mut is_managed, 8, inside), 0);
        let has_host = cuPointerGetAttribute((&raw mut host).cast(), 4, inside);
        let mut words = [0_u64; 3];
        let places = words.each_mut().map(std::ptr::from_mut);
        let together = cuPointerGetAttributes(3, &[2, 8, 4], &raw const places, inside);
        let host = u32::from(words[2] == inside);
        say(&format!(
            "{what}: type {kind}, managed {is_managed}, host {has_host}; together {together}: {} {} {host}",
            words[0], words[1]
        ));
    }
}

#[test]
fn pool_memory_outlives_its_context() {
    assert_eq!(the_same("outlives"), ["[0, 0, 0, 0], read 7"; 2]);
}

pub(crate) fn outlives() {
    let keeper = begin();
    for bytes in [4096, 4 << 20] {
        let (mut context, mut address, mut byte) = (0, 0, 0_u8);
        assert_eq!(cuCtxCreate_v2(&raw mut context, 0, 0), 0);
        let made = [cuMemAllocAsync(&raw mut address, bytes, 0), cuMemsetD8_v2(address, 7, bytes)];
        assert_eq!((cuCtxSynchronize(), cuCtxDestroy_v2(context), cuCtxSetCurrent(keeper)), (0, 0, 0));
        let read = cuMemcpyDtoH_v2((&raw mut byte).cast(), address + 9, 1);
        say(&format!("{:?}, read {byte}", [made[0], made[1], read, cuMemFree_v2(address)]));
    }
}

#[test]
fn a_stream_determines_the_place_of_memory() {
    assert_eq!(the_same("elsewhere"), ["[0, 0, 0]", "[0, 0, 0]", "no context: [0, 0, 201, 201]"]);
}

/// Memory of streams of another context than the current one, and of a thread without any.
pub(crate) fn elsewhere() {
    let here = begin();
    let (mut there, mut stream, mut address) = (0, 0, 0);
    assert_eq!(cuCtxCreate_v2(&raw mut there, 0, 0), 0);
    assert_eq!((cuStreamCreate(&raw mut stream, 1), cuCtxSetCurrent(here)), (0, 0));
    let taken = cuMemAllocAsync(&raw mut address, 4 << 20, stream);
    say(&format!("{:?}", [taken, cuMemFreeAsync(address, stream), cuStreamSynchronize(stream)]));
    let taken = cuMemAlloc_v2(&raw mut address, 4 << 20);
    say(&format!("{:?}", [taken, cuMemFreeAsync(address, stream), cuStreamSynchronize(stream)]));
    let without = move || {
        let taken = [cuMemAllocAsync(&raw mut address, 4 << 20, stream), cuMemFreeAsync(address, stream)];
        say(&format!(
            "no context: {:?}",
            [
                taken[0],
                taken[1],
                cuMemAllocAsync(&raw mut address, 4 << 20, 0),
                cuMemAllocAsync(&raw mut address, 4, 1)
            ]
        ));
    };
    std::thread::scope(|threads| {
        threads.spawn(without);
    });
}

#[test]
fn pool_memory_is_reused_in_a_stream_that_is_blocked() {
    assert_eq!(the_same("again"), ["[0, 0]", "[0, 0]", "[0, 0]", "0"]);
}

static MAY_GO: AtomicBool = AtomicBool::new(false);

extern "C" fn stand(_: *mut c_void) {
    while !MAY_GO.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Allocates more than half of the limit, thrice, before the stream has done anything.
pub(crate) fn again() {
    begin();
    let (mut stream, mut address) = (0, 0);
    assert_eq!(cuStreamCreate(&raw mut stream, 1), 0);
    assert_eq!(cuLaunchHostFunc(stream, stand, std::ptr::null_mut()), 0);
    for _ in 0..3 {
        let taken = cuMemAllocAsync(&raw mut address, 600 << 20, stream);
        say(&format!("{:?}", [taken, cuMemFreeAsync(address, stream)]));
    }
    MAY_GO.store(true, Ordering::Release);
    say(&cuStreamSynchronize(stream).to_string());
}
