//! Allocation in the order of a stream: managed where the driver has such pools, in its order, and exact after waits,
//! trims and ends.

use crate::calls::*;
use crate::client::{allocate, begin, free};
use crate::instance::{DRIVERS, Instance, MIB, MODES, say, wait};
use omni_gpu_protocol::account::Use;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const LIMIT: u64 = 64 * MIB;
const RELEASE_THRESHOLD: i32 = 4;

fn each(test: impl Fn(&Instance, u32, &str)) {
    for (driver, mode) in DRIVERS.iter().flat_map(|driver| MODES.map(|mode| (*driver, mode))) {
        test(&Instance::new(driver, mode, LIMIT), driver, mode);
    }
}

#[test]
fn pool_memory_is_counted_and_freed() {
    each(|instance, driver, mode| {
        let mut client = instance.start("streams");
        client.expect("4 from the default, 2 from another");
        let Use { managed, device, .. } = instance.used();
        let expected = if mode == "unified" && driver >= 13_000 { (6 * MIB, 0) } else { (0, 6 * MIB) };
        assert_eq!((managed, device), expected, "driver {driver}, {mode}");
        client.go_on();
        client.expect("freed");
        assert_eq!(instance.used(), Use::default(), "driver {driver}, {mode}");
        client.go_on();
        client.expect("pool destroyed, 2 alive");
        assert_eq!(instance.used().limited(), 2 * MIB, "driver {driver}, {mode}");
        client.go_on();
        client.expect("freed");
        assert_eq!(instance.used(), Use::default(), "driver {driver}, {mode}");
        client.go_on();
        client.end();
    });
}

pub(crate) fn client() {
    begin();
    let [mut stream, mut pool, mut first, mut second] = [0; 4];
    assert_eq!(cuStreamCreate(&raw mut stream, 0), 0);
    assert_eq!(cuMemPoolCreate(&raw mut pool, &PoolProperties::DEVICE), 0);
    assert_eq!(cuMemAllocAsync(&raw mut first, 4 << 20, stream), 0);
    assert_eq!(cuMemAllocFromPoolAsync(&raw mut second, 2 << 20, pool, stream), 0);
    say("4 from the default, 2 from another");
    wait();
    assert_eq!(cuMemFreeAsync(first, stream), 0);
    assert_eq!(cuMemFreeAsync(second, stream), 0);
    assert_eq!(cuStreamSynchronize(stream), 0);
    say("freed");
    wait();
    assert_eq!(cuMemAllocFromPoolAsync(&raw mut second, 2 << 20, pool, stream), 0);
    assert_eq!(cuMemPoolDestroy(pool), 0);
    say("pool destroyed, 2 alive");
    wait();
    assert_eq!(cuMemFreeAsync(second, stream), 0);
    assert_eq!(cuCtxSynchronize(), 0);
    say("freed");
    wait();
}

#[test]
fn a_free_waits_for_the_work_before_it() {
    each(|instance, driver, mode| {
        let mut client = instance.start("free-later");
        client.expect("free is in the stream");
        if mode == "unified" {
            assert_eq!(instance.used().managed, 4 * MIB, "the work is not done");
        }
        client.go_on();
        client.expect("done");
        assert_eq!(instance.used(), Use::default(), "driver {driver}, {mode}");
        client.go_on();
        client.end();
    });
}

static MAY_END: AtomicBool = AtomicBool::new(false);

/// Work of a stream that goes on until it may end.
extern "C" fn work(_: *mut c_void) {
    while !MAY_END.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn free_later() {
    begin();
    let (mut stream, mut address) = (0, 0);
    assert_eq!(cuStreamCreate(&raw mut stream, 1), 0);
    assert_eq!(cuMemAlloc_v2(&raw mut address, 4 << 20), 0);
    assert_eq!(cuLaunchHostFunc(stream, work, std::ptr::null_mut()), 0);
    assert_eq!(cuMemFreeAsync(address, stream), 0);
    // Neither an allocation nor a free waits for it.
    free(allocate(MIB).unwrap());
    say("free is in the stream");
    wait();
    MAY_END.store(true, Ordering::Release);
    assert_eq!(cuStreamSynchronize(stream), 0);
    say("done");
    wait();
}

#[test]
fn a_full_instance_waits_for_pending_frees() {
    each(|instance, driver, mode| {
        assert_eq!(instance.run("full"), ["0", "0"], "driver {driver}, {mode}");
    });
}

/// Moves all of the limit back and forth between a pool that caches its memory, and plain memory.
pub(crate) fn full() {
    begin();
    let [mut stream, mut pool, mut address] = [0; 3];
    let size = usize::try_from(LIMIT).unwrap();
    assert_eq!(cuStreamCreate(&raw mut stream, 0), 0);
    assert_eq!(cuDeviceGetDefaultMemPool(&raw mut pool, 0), 0);
    assert_eq!(cuMemPoolSetAttribute(pool, RELEASE_THRESHOLD, &mut { u64::MAX }), 0);
    assert_eq!(cuMemAllocAsync(&raw mut address, size, stream), 0);
    assert_eq!(cuMemFreeAsync(address, stream), 0);
    say(&cuMemAllocAsync(&raw mut address, size, stream).to_string());
    assert_eq!(cuMemFreeAsync(address, stream), 0);
    assert_eq!(cuStreamSynchronize(stream), 0);
    say(&allocate(LIMIT).err().unwrap_or(0).to_string());
}

#[test]
fn cached_pool_memory_counts_until_a_trim() {
    let instance = Instance::new(DRIVERS[0], "device", LIMIT);
    let mut client = instance.start("keep");
    client.expect("kept");
    assert_eq!(instance.used().device, 4 * MIB);
    client.go_on();
    client.expect("trimmed");
    assert_eq!(instance.used(), Use::default());
}

pub(crate) fn keep() {
    begin();
    let [mut stream, mut pool, mut address] = [0; 3];
    assert_eq!(cuStreamCreate(&raw mut stream, 0), 0);
    assert_eq!(cuDeviceGetDefaultMemPool(&raw mut pool, 0), 0);
    assert_eq!(cuMemPoolSetAttribute(pool, RELEASE_THRESHOLD, &mut { u64::MAX }), 0);
    assert_eq!(cuMemAllocAsync(&raw mut address, 4 << 20, stream), 0);
    assert_eq!(cuMemFreeAsync(address, stream), 0);
    assert_eq!(cuStreamSynchronize(stream), 0);
    say("kept");
    wait();
    assert_eq!(cuMemPoolTrimTo(pool, 0), 0);
    say("trimmed");
    wait();
}
