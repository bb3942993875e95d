//! Memory of every kind at once: counted by its kind, and nothing is left when all of it is freed.

use crate::calls::*;
use crate::client::{begin, free};
use crate::instance::{DRIVERS, Instance, MIB, MODES, say, wait};
use omni_gpu_protocol::account::Use;

#[test]
fn all_kinds_are_counted_and_nothing_is_left() {
    for (driver, mode) in DRIVERS.iter().flat_map(|driver| MODES.map(|mode| (*driver, mode))) {
        let instance = Instance::new(driver, mode, 1024 * MIB);
        let mut client = instance.start("kinds");
        let expected = |managed: u64, device: u64, host: u64| {
            let used = instance.used();
            let found = (used.managed, used.device, used.host);
            assert_eq!(found, (managed * MIB, device * MIB, host * MIB), "driver {driver}, {mode}");
        };
        let movable =
            |managed: u64, device: u64| if mode == "unified" { (managed, device) } else { (0, managed + device) };
        client.expect("plain: 4, managed: 2, pitched: 8, 32 bits: 1");
        let (managed, device) = movable(4 + 8, 1);
        expected(managed + 2, device, 0);
        client.go_on();
        client.expect("pinned: 1, 2, 3");
        expected(managed + 2, device, 6);
        client.go_on();
        client.expect("handles: 2 of the device, 4 of the host");
        expected(managed + 2, device + 2, 10);
        client.go_on();
        client.expect("handle released, mapping left");
        expected(managed + 2, device + 2, 10);
        client.go_on();
        client.expect("arrays: 1, 2, 4 and 5");
        expected(managed + 2, device + 2 + 12, 10);
        client.go_on();
        client.expect("freed");
        assert_eq!(instance.used(), Use::default(), "driver {driver}, {mode}");
        client.go_on();
        client.expect("in a context: 3");
        assert_eq!(instance.used().limited(), 3 * MIB);
        client.go_on();
        client.expect("context destroyed");
        assert_eq!(instance.used(), Use::default(), "driver {driver}, {mode}");
        client.go_on();
        client.expect("detached once: 3");
        assert_eq!(instance.used().limited(), 3 * MIB);
        client.go_on();
        client.expect("freed after it: 2");
        assert_eq!(instance.used().limited(), 2 * MIB);
        client.go_on();
        client.expect("detached");
        assert_eq!(instance.used(), Use::default(), "driver {driver}, {mode}");
        client.go_on();
        client.expect("in the primary context: 3");
        assert_eq!(instance.used().limited(), 3 * MIB);
        client.go_on();
        client.expect("released once: 3");
        assert_eq!(instance.used().limited(), 3 * MIB);
        client.go_on();
        client.expect("released");
        assert_eq!(instance.used(), Use::default(), "driver {driver}, {mode}");
        client.go_on();
        client.expect("reset");
        assert_eq!(instance.used(), Use::default(), "driver {driver}, {mode}");
        client.go_on();
        client.end();
        assert_eq!(instance.card().used(), 0);
    }
}

fn pause(what: &str) {
    say(what);
    wait();
}

pub(crate) fn client() {
    const ONE: usize = 1 << 20;
    let context = begin();
    let [mut plain, mut managed, mut pitched] = [0; 3];
    let (mut low, mut pitch) = (0, 0);
    assert_eq!(cuMemAlloc_v2(&raw mut plain, 4 * ONE), 0);
    assert_eq!(cuMemAllocManaged(&raw mut managed, 2 * ONE, 1), 0);
    assert_eq!(cuMemAllocPitch_v2(&raw mut pitched, &raw mut pitch, 8000, 1024, 4), 0);
    assert_eq!((cuMemAlloc(&raw mut low, 1 << 20), pitch), (0, 8192));
    pause("plain: 4, managed: 2, pitched: 8, 32 bits: 1");

    let [mut pinned, mut mapped] = [0; 2];
    let mut registered = vec![0_u8; 3 * ONE];
    assert_eq!(cuMemAllocHost_v2(&raw mut pinned, ONE), 0);
    assert_eq!(cuMemHostAlloc(&raw mut mapped, 2 * ONE, 0), 0);
    assert_eq!(cuMemHostRegister_v2(registered.as_mut_ptr().cast(), 3 * ONE, 0), 0);
    pause("pinned: 1, 2, 3");

    let [mut handle, mut host, mut again, mut reserved] = [0; 4];
    assert_eq!(cuMemCreate(&raw mut handle, 2 * ONE, &HandleProperties::DEVICE, 0), 0);
    assert_eq!(cuMemCreate(&raw mut host, 4 * ONE, &HandleProperties::HOST, 0), 0);
    pause("handles: 2 of the device, 4 of the host");
    assert_eq!(cuMemAddressReserve(&raw mut reserved, 2 * ONE, 0, 0, 0), 0);
    assert_eq!(cuMemMap(reserved, 2 * ONE, 0, handle, 0), 0);
    assert_eq!(cuMemRetainAllocationHandle(&raw mut again, reserved), 0);
    assert_eq!(cuMemRelease(handle), 0);
    assert_eq!(cuMemRelease(again), 0);
    pause("handle released, mapping left");

    let [mut flat, mut solid, mut levels, mut layers] = [0; 4];
    let shape = |height, depth, flags| Solid { width: 256, height, depth, format: 0x20, channels: 4, flags };
    assert_eq!(cuArrayCreate_v2(&raw mut flat, &Flat { width: 256, height: 256, format: 0x20, channels: 4 }), 0);
    assert_eq!(cuArray3DCreate_v2(&raw mut solid, &shape(256, 2, 0)), 0);
    assert_eq!(cuArray3DCreate_v2(&raw mut layers, &shape(256, 4, 1)), 0);
    // 4 MiB, 1 MiB: levels halve each way.
    let large = Solid { width: 512, height: 512, depth: 0, format: 0x20, channels: 4, flags: 0 };
    assert_eq!(cuMipmappedArrayCreate(&raw mut levels, &raw const large, 2), 0);
    pause("arrays: 1, 2, 4 and 5");

    [plain, managed, pitched].into_iter().for_each(free);
    assert_eq!(cuMemFree(low), 0);
    assert_eq!((cuMemFreeHost(pinned), cuMemFreeHost(mapped)), (0, 0));
    assert_eq!(cuMemHostUnregister(registered.as_mut_ptr().cast()), 0);
    assert_eq!((cuMemUnmap(reserved, 2 * ONE), cuMemAddressFree(reserved, 2 * ONE), cuMemRelease(host)), (0, 0, 0));
    assert_eq!((cuArrayDestroy(flat), cuArrayDestroy(solid), cuArrayDestroy(layers)), (0, 0, 0));
    assert_eq!(cuMipmappedArrayDestroy(levels), 0);
    pause("freed");
    contexts(context);
}

/// Memory that ends with its context.
fn contexts(context: u64) {
    let (mut first, mut second, mut primary) = (0, 0, 0);
    assert_eq!(cuMemAlloc_v2(&raw mut first, 1 << 20), 0);
    assert_eq!(cuMemAllocManaged(&raw mut second, 2 << 20, 1), 0);
    pause("in a context: 3");
    assert_eq!(cuCtxDestroy_v2(context), 0);
    pause("context destroyed");
    let (mut attached, mut same) = (0, 0);
    assert_eq!(cuCtxCreate_v2(&raw mut attached, 0, 0), 0);
    assert_eq!((cuCtxAttach(&raw mut same, 0), same), (0, attached));
    assert_eq!(cuMemAlloc_v2(&raw mut first, 1 << 20), 0);
    assert_eq!(cuMemAllocManaged(&raw mut second, 2 << 20, 1), 0);
    assert_eq!(cuCtxDetach(attached), 0);
    pause("detached once: 3");
    free(first);
    pause("freed after it: 2");
    assert_eq!(cuCtxDetach(attached), 0);
    pause("detached");
    assert_eq!(cuDevicePrimaryCtxRetain(&raw mut primary, 0), 0);
    assert_eq!(cuDevicePrimaryCtxRetain(&raw mut primary, 0), 0);
    assert_eq!(cuCtxSetCurrent(primary), 0);
    assert_eq!(cuMemAlloc_v2(&raw mut first, 1 << 20), 0);
    assert_eq!(cuMemAllocManaged(&raw mut second, 2 << 20, 1), 0);
    pause("in the primary context: 3");
    assert_eq!(cuDevicePrimaryCtxRelease_v2(0), 0);
    pause("released once: 3");
    assert_eq!(cuDevicePrimaryCtxRelease_v2(0), 0);
    pause("released");
    assert_eq!(cuDevicePrimaryCtxRetain(&raw mut primary, 0), 0);
    assert_eq!(cuCtxSetCurrent(primary), 0);
    assert_eq!(cuMemAlloc_v2(&raw mut first, 1 << 20), 0);
    assert_eq!(cuDevicePrimaryCtxReset_v2(0), 0);
    pause("reset");
}
