//! Limit and mode come from the account: no variable of a process changes them. And memory that is not converted.

use crate::calls::*;
use crate::client::{allocate, begin, free};
use crate::instance::{DRIVERS, Instance, MIB, MODES, say, wait};
use omni_gpu_protocol::account::{Mode, Settings, Use};
use std::fs;
use std::os::unix::fs::FileExt;

fn write(instance: &Instance, settings: Settings) {
    let file = fs::File::options().write(true).open(instance.account()).unwrap();
    file.write_all_at(&settings.to_bytes(), Settings::AT as u64).unwrap();
}

#[test]
fn no_variable_lifts_what_the_account_says() {
    for mode in [Mode::Unified, Mode::Device] {
        // The environment asks for more, and for the other mode.
        let asked = if mode == Mode::Unified { "device" } else { "unified" };
        let instance = Instance::new(DRIVERS[0], asked, 1024 * MIB);
        write(&instance, Settings { limit: Some(8 * MIB), mode });
        for changes in
            [&[][..], &[("OMNI_GPU_LIMIT_BYTES", "")], &[("OMNI_GPU_LIMIT_BYTES", ""), ("OMNI_GPU_MODE", "")]]
        {
            let mut client = instance.start_with("take-6-and-4", changes);
            client.expect("0 2");
            let Use { managed, device, .. } = instance.used();
            let expected = if mode == Mode::Unified { (6 * MIB, 0) } else { (0, 6 * MIB) };
            assert_eq!((managed, device), expected, "{changes:?}");
            client.go_on();
            client.end();
        }
    }
}

#[test]
fn the_first_process_writes_settings_that_the_others_keep() {
    let instance = Instance::new(DRIVERS[0], "unified", 8 * MIB);
    for changes in [&[][..], &[("OMNI_GPU_LIMIT_BYTES", "1099511627776")]] {
        let mut client = instance.start_with("take-6-and-4", changes);
        client.expect("0 2");
        client.go_on();
        client.end();
    }
}

pub(crate) fn take() {
    begin();
    let first = allocate(6 * MIB);
    say(&format!("{} {}", first.err().unwrap_or(0), allocate(4 * MIB).err().unwrap_or(0)));
    wait();
}

#[test]
fn small_allocations_are_converted_only_when_there_are_many() {
    for (driver, mode) in DRIVERS.iter().flat_map(|driver| MODES.map(|mode| (*driver, mode))) {
        let instance = Instance::new(driver, mode, 1024 * MIB);
        let mut client = instance.start("small");
        let expect = |managed: u64, device: u64| {
            let used = instance.used();
            let expected = if mode == "unified" { (managed, device) } else { (0, managed + device) };
            assert_eq!((used.managed, used.device), expected, "driver {driver}, {mode}");
        };
        client.expect("one below 1 MiB, one of 1 MiB");
        expect(MIB, MIB - 1);
        client.go_on();
        client.expect("64 MiB of 512 KiB");
        expect(0, 64 * MIB);
        client.go_on();
        client.expect("512 KiB more");
        expect(MIB / 2, 64 * MIB);
        client.go_on();
        client.expect("one freed, another made");
        expect(MIB / 2, 64 * MIB);
        client.go_on();
        client.expect("all freed");
        assert_eq!(instance.used(), Use::default());
        client.go_on();
        client.end();
    }
}

pub(crate) fn small() {
    begin();
    let pause = |what| {
        say(what);
        wait();
    };
    let pair = [allocate(MIB - 1).unwrap(), allocate(MIB).unwrap()];
    pause("one below 1 MiB, one of 1 MiB");
    pair.into_iter().for_each(free);
    let mut pieces: Vec<u64> = (0..128).map(|_| allocate(MIB / 2).unwrap()).collect();
    pause("64 MiB of 512 KiB");
    pieces.push(allocate(MIB / 2).unwrap());
    pause("512 KiB more");
    free(pieces.remove(0));
    pieces.push(allocate(MIB / 2).unwrap());
    pause("one freed, another made");
    pieces.into_iter().for_each(free);
    pause("all freed");
}

#[test]
fn the_heap_of_device_code_is_counted() {
    for mode in MODES {
        let instance = Instance::new(DRIVERS[0], mode, 64 * MIB);
        let mut client = instance.start("heap");
        for (said, device) in [("0", 32), ("2", 32), ("0", 8), ("0", 0)] {
            client.expect(said);
            assert_eq!(instance.used(), Use { device: device * MIB, ..Use::default() });
            client.go_on();
        }
        client.end();
        assert_eq!(instance.card().used(), 0);
    }
}

/// Grows the heap from 8 MiB, which a context has, to 40, beyond the limit, to 16; and then ends the context.
pub(crate) fn heap() {
    let context = begin();
    let results = [40, 128, 16].map(|mib| move || cuCtxSetLimit(2, mib << 20));
    for set in results {
        say(&set().to_string());
        wait();
    }
    say(&cuCtxDestroy_v2(context).to_string());
    wait();
}

#[test]
fn a_thread_without_a_context_is_limited() {
    for (driver, mode) in DRIVERS.iter().flat_map(|driver| MODES.map(|mode| (*driver, mode))) {
        let instance = Instance::new(driver, mode, 64 * MIB);
        let mut client = instance.start("without-context");
        client.expect("[2, 2, 0]");
        assert_eq!(instance.used().limited(), 32 * MIB, "driver {driver}, {mode}");
        client.go_on();
        client.end();
    }
}

pub(crate) fn without_context() {
    begin();
    let [mut stream, mut pool] = [0; 2];
    assert_eq!((cuStreamCreate(&raw mut stream, 0), cuDeviceGetDefaultMemPool(&raw mut pool, 0)), (0, 0));
    let results = std::thread::spawn(move || {
        let mut address = 0;
        [
            cuMemAllocAsync(&raw mut address, 128 << 20, stream),
            cuMemAllocFromPoolAsync(&raw mut address, 128 << 20, pool, stream),
            cuMemAllocAsync(&raw mut address, 32 << 20, stream),
        ]
    });
    say(&format!("{:?}", results.join().unwrap()));
    wait();
}
