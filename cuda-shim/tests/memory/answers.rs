//! Answers of the shim: the driver's own where the shim does not decide, and reports of memory.

use crate::calls::*;
use crate::client::{allocate, begin, free};
use crate::entries::nulls;
use crate::instance::{DRIVERS, Instance, MIB, say};
use omni_cuda_card::Settings;
use std::ptr::{null, null_mut};

/// Calls that a driver refuses: before it is initialised, without a context, with null pointers, beyond all sizes.
pub(crate) fn client() {
    let (mut address, mut pitch) = (0, 0);
    let (out, pitch) = (&raw mut address, &raw mut pitch);
    let mut said = nulls();
    assert_eq!(cuInit(0), 0);
    said.extend(nulls());
    let without_context = |said: &mut Vec<i32>| {
        for bytes in [0, 1, usize::MAX] {
            said.push(cuMemAlloc_v2(out, bytes));
            said.push(cuMemAllocManaged(out, bytes, 1));
            said.push(cuMemAllocHost_v2(out, bytes));
        }
        said.push(cuMemAllocPitch_v2(out, pitch, 1, 1, 4));
        said.push(cuMemAllocPitch_v2(out, pitch, 1, 1, 3));
        said.push(cuMemFree_v2(0));
        said.push(cuMemFree_v2(12345));
        said.push(cuDeviceTotalMem_v2(out, 99));
        said.push(cuCtxDestroy_v2(12345));
        said.push(cuDevicePrimaryCtxRelease_v2(99));
    };
    without_context(&mut said);
    let context = begin();
    said.extend(nulls());
    for bytes in [0, usize::MAX] {
        said.push(cuMemAlloc_v2(out, bytes));
        said.push(cuMemAllocManaged(out, bytes, 1));
    }
    said.push(cuMemAllocManaged(out, 1, 99));
    said.push(cuMemAllocPitch_v2(out, pitch, 0, 1, 4));
    said.push(cuMemAllocPitch_v2(out, pitch, 1, 1, 3));
    said.push(cuMemAllocPitch_v2(out, null_mut(), 1, 1, 4));
    said.push(cuMemFree_v2(12345));
    said.push(cuMemRelease(12345));
    said.push(cuMemUnmap(12345, 1));
    said.push(cuMemCreate(out, 1 << 21, null(), 0));
    for properties in [HandleProperties::DEVICE, HandleProperties { location: [1, 99], ..HandleProperties::DEVICE }] {
        said.push(cuMemCreate(out, (1 << 40) + 1, &raw const properties, 0));
        said.push(cuMemCreate(out, 1 << 40, &raw const properties, 0));
    }
    assert_eq!(cuCtxDestroy_v2(context), 0);
    without_context(&mut said);
    say(&format!("{said:?}"));
}

#[test]
fn a_model_sees_its_share() {
    let limit = 64 * MIB;
    for (mode, driver) in [("device", DRIVERS[0]), ("unified", DRIVERS[0]), ("unified", DRIVERS[1])] {
        let instance = Instance::new(driver, mode, limit);
        let mut client = instance.start("reports");
        client.expect(&format!("total {limit} {limit} free {limit}"));
        client.expect(&format!("free {}", limit - 10 * MIB));
        client.expect(&format!("one by one: {} {limit}", limit - 10 * MIB));
        client.expect(&format!("short: {} {limit}", limit - 10 * MIB));
        client.expect("range from the beginning, 10485760 bytes");
        client.expect("device memory");
        client.expect(&format!("free {limit}"));
        client.end();
    }
}

#[test]
fn a_share_is_no_larger_than_the_card() {
    let card = Settings { memory: 32 * MIB, ..Settings::numbered(0) };
    let instance = Instance::with(card, "device", Some(64 * MIB));
    let mut client = instance.start("reports");
    client.expect(&format!("total {0} {0} free {0}", 32 * MIB));
    client.expect(&format!("free {}", 22 * MIB));
}

pub(crate) fn reports() {
    begin();
    let (mut free_bytes, mut total, mut device_total) = (0, 0, 0);
    assert_eq!(cuMemGetInfo_v2(&raw mut free_bytes, &raw mut total), 0);
    assert_eq!(cuDeviceTotalMem_v2(&raw mut device_total, 0), 0);
    say(&format!("total {total} {device_total} free {free_bytes}"));
    let address = allocate(10 * MIB).unwrap();
    assert_eq!(cuMemGetInfo_v2(&raw mut free_bytes, &raw mut total), 0);
    say(&format!("free {free_bytes}"));
    assert_eq!(cuMemGetInfo_v2(&raw mut free_bytes, null_mut()), 0);
    assert_eq!(cuMemGetInfo_v2(null_mut(), &raw mut total), 0);
    say(&format!("one by one: {free_bytes} {total}"));
    let (mut short_free, mut short_total) = (0, 0);
    assert_eq!(cuMemGetInfo(&raw mut short_free, &raw mut short_total), 0);
    say(&format!("short: {short_free} {short_total}"));
    let mut short = 0;
    assert_eq!(cuDeviceTotalMem(&raw mut short, 0), 0);
    assert_eq!(u64::from(short), total);
    let (mut base, mut bytes, mut kind) = (0, 0, 0);
    assert_eq!(cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, address + 5), 0);
    say(&format!("range from {}, {bytes} bytes", if base == address { "the beginning" } else { "elsewhere" }));
    assert_eq!(cuPointerGetAttribute(&raw mut kind, 2, address), 0);
    say(if kind == 2 { "device memory" } else { "something else" });
    free(address);
    assert_eq!(cuMemGetInfo_v2(&raw mut free_bytes, &raw mut total), 0);
    say(&format!("free {free_bytes}"));
}
