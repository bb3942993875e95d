//! Imported memory counts for its importer, and is refused beyond the limit like any other.
#![allow(unsafe_code, reason = "a file without a name")]

use crate::calls::*;
use crate::client::{allocate, begin};
use crate::instance::{DRIVERS, Instance, MIB, MODES, say, wait};
use omni_gpu_protocol::account::Use;
use std::fs::File;
use std::os::fd::AsRawFd;

const LIMIT: u64 = 20 * MIB;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const DESCRIPTOR: i32 = 1;

#[test]
fn memory_opened_from_another_process_counts_until_its_close() {
    for symbol in ["cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2"] {
        let instance = Instance::new(DRIVERS[0], "device", LIMIT);
        let mut maker = instance.start("export");
        let [small, large] = [maker.line().unwrap(), maker.line().unwrap()];
        assert_eq!(instance.used().device, 16 * MIB);
        let mut importer = instance.start(&format!("import {symbol} {small}"));
        importer.expect("0 0");
        assert_eq!(instance.used().device, 20 * MIB, "open twice, counted once");
        importer.go_on();
        importer.expect("closed once");
        assert_eq!(instance.used().device, 20 * MIB);
        importer.go_on();
        importer.expect("closed");
        assert_eq!(instance.used().device, 16 * MIB);
        importer.go_on();
        importer.end();
        assert_eq!(instance.run(&format!("import {symbol} {large}")), ["2"]);
        assert_eq!(instance.used().device, 16 * MIB);
        maker.kill();
        instance.expect_nothing();
    }
}

/// Exports 4 MiB and 12 MiB for others to open.
pub(crate) fn export() {
    begin();
    for bytes in [4 * MIB, 12 * MIB] {
        let mut handle = IpcHandle([0; 64]);
        assert_eq!(cuIpcGetMemHandle(&raw mut handle, allocate(bytes).unwrap()), 0);
        say(&hex(&handle.0));
    }
    wait();
}

pub(crate) fn import(symbol: &str, shared: &str) {
    begin();
    let handle = IpcHandle(unhex(shared));
    let open = |address: &mut u64| match symbol {
        "cuIpcOpenMemHandle" => cuIpcOpenMemHandle(address, handle, 1),
        _ => cuIpcOpenMemHandle_v2(address, handle, 1),
    };
    let (mut first, mut second) = (0, 0);
    let answered = open(&mut first);
    if answered != 0 {
        say(&answered.to_string());
        return;
    }
    say(&format!("{answered} {}", open(&mut second)));
    wait();
    assert_eq!(cuIpcCloseMemHandle(second), 0);
    say("closed once");
    wait();
    assert_eq!(cuIpcCloseMemHandle(first), 0);
    say("closed");
    wait();
}

#[test]
fn external_memory_counts_for_its_importer() {
    let instance = Instance::new(DRIVERS[0], "unified", LIMIT);
    let mut client = instance.start("external");
    client.expect("8 MiB: 0, 13 MiB: 2");
    assert_eq!(instance.used().device, 8 * MIB);
    client.go_on();
    client.expect("destroyed");
    assert_eq!(instance.used(), Use::default());
}

pub(crate) fn external() {
    begin();
    let file = memory_file(16 * MIB);
    let (mut memory, mut other) = (0, 0);
    let first = cuImportExternalMemory(&raw mut memory, &description(file, 8 * MIB));
    say(&format!("8 MiB: {first}, 13 MiB: {}", cuImportExternalMemory(&raw mut other, &description(file, 13 * MIB))));
    wait();
    assert_eq!(cuDestroyExternalMemory(memory), 0);
    say("destroyed");
    wait();
}

/// Imports external memory of `bytes`; returns the driver's answer.
pub(crate) fn external_by(bytes: u64) -> i32 {
    let mut memory = 0;
    cuImportExternalMemory(&raw mut memory, &description(memory_file(bytes), bytes))
}

/// File in place of memory of another interface. Open as long as this process lives.
fn memory_file(bytes: u64) -> i32 {
    // SAFETY: a name that ends with a zero.
    let file = unsafe { libc::memfd_create(c"external".as_ptr(), 0) };
    // SAFETY: a file of ours.
    assert_eq!(unsafe { libc::ftruncate(file, i64::try_from(bytes).unwrap()) }, 0);
    file
}

fn description(file: i32, bytes: u64) -> External {
    External { kind: 1, handle: [u64::try_from(file).unwrap(), 0], bytes, rest: [0; 18] }
}

#[test]
fn an_imported_handle_counts_from_its_first_mapping() {
    let instance = Instance::new(DRIVERS[0], "unified", LIMIT);
    let mut maker = instance.start("handles");
    let [small, large] = [maker.line().unwrap(), maker.line().unwrap()];
    assert_eq!(instance.used().device, 14 * MIB);
    let mut importer = instance.start(&format!("map {} {small} {}", maker.pid(), 4 * MIB));
    importer.expect("imported");
    assert_eq!(instance.used().device, 14 * MIB);
    importer.go_on();
    importer.expect("mapped: 0");
    assert_eq!(instance.used().device, 18 * MIB);
    importer.go_on();
    importer.expect("unmapped");
    assert_eq!(instance.used().device, 14 * MIB);
    importer.go_on();
    importer.end();
    let mut importer = instance.start(&format!("map {} {large} {}", maker.pid(), 10 * MIB));
    importer.expect("imported");
    importer.go_on();
    importer.expect("mapped: 2");
    assert_eq!(instance.used().device, 14 * MIB);
    drop(importer);
    maker.go_on();
    maker.expect("released, and imported once more");
    assert_eq!(instance.used().device, 10 * MIB, "the same memory under the same handle");
    maker.go_on();
    maker.expect("released");
    assert_eq!(instance.used(), Use::default());
}

/// Exports handles of 4 and 10 MiB, as descriptors.
pub(crate) fn handles() {
    begin();
    let properties = HandleProperties { handles: DESCRIPTOR, ..HandleProperties::DEVICE };
    let mut made = [(0, -1); 2];
    for ((handle, descriptor), mib) in made.iter_mut().zip([4, 10]) {
        assert_eq!(cuMemCreate(handle, mib << 20, &raw const properties, 0), 0);
        assert_eq!(cuMemExportToShareableHandle(descriptor, *handle, DESCRIPTOR, 0), 0);
        say(&descriptor.to_string());
    }
    wait();
    let (large, descriptor) = made[1];
    let mut again = 0;
    assert_eq!(cuMemImportFromShareableHandle(&raw mut again, usize::try_from(descriptor).unwrap(), DESCRIPTOR), 0);
    assert_eq!((cuMemRelease(made[0].0), cuMemRelease(large)), (0, 0));
    say("released, and imported once more");
    wait();
    assert_eq!(cuMemRelease(again), 0);
    say("released");
    wait();
}

/// Maps memory that another process has exported.
pub(crate) fn map(maker: &str, descriptor: &str, bytes: &str) {
    begin();
    let file = descriptor_of(maker, descriptor);
    let (mut handle, mut at, size) = (0, 0, bytes.parse().unwrap());
    let shared = usize::try_from(file.as_raw_fd()).unwrap();
    assert_eq!(cuMemImportFromShareableHandle(&raw mut handle, shared, DESCRIPTOR), 0);
    assert_eq!(cuMemAddressReserve(&raw mut at, size, 0, 0, 0), 0);
    say("imported");
    wait();
    let answered = cuMemMap(at, size, 0, handle, 0);
    say(&format!("mapped: {answered}"));
    wait();
    assert_eq!((cuMemRelease(handle), cuMemUnmap(at, size)), (0, 0));
    say("unmapped");
    wait();
}

#[test]
fn the_memory_of_another_process_s_pool_counts_until_it_is_freed() {
    for (driver, mode) in DRIVERS.iter().flat_map(|driver| MODES.map(|mode| (*driver, mode))) {
        let instance = Instance::new(driver, mode, LIMIT);
        let mut maker = instance.start(&format!("offer cuMemPoolImportPointer {}", 8 * MIB));
        let offer = maker.line().unwrap();
        assert_eq!(instance.used().device, 8 * MIB, "not converted: it could not be shared, {driver}, {mode}");
        let mut importer = instance.start(&format!("pool {} {offer}", maker.pid()));
        importer.expect("imported");
        assert_eq!(instance.used().device, 16 * MIB, "{driver}, {mode}");
        importer.go_on();
        importer.expect("freed");
        assert_eq!(instance.used().device, 8 * MIB, "{driver}, {mode}");
        importer.end();
        maker.go_on();
        maker.end();
        instance.expect_nothing();
        assert_eq!(instance.card().used(), 0);
    }
}

/// Imports twice, and frees in both ways.
pub(crate) fn pool(maker: &str, offer: &[&str]) {
    begin();
    let mut address = 0;
    assert_eq!(import_pointer(&mut address, maker, offer), 0);
    assert_eq!(cuMemFree_v2(address), 0);
    assert_eq!(import_pointer(&mut address, maker, offer), 0);
    say("imported");
    wait();
    assert_eq!((cuMemFreeAsync(address, 0), cuStreamSynchronize(0)), (0, 0));
    say("freed");
}

/// Makes memory by one entry that others can import, prints how, and ends on command.
pub(crate) fn offer(symbol: &str, bytes: u64) {
    begin();
    let size = usize::try_from(bytes).unwrap();
    match symbol {
        "cuMemImportFromShareableHandle" => {
            let properties = HandleProperties { handles: DESCRIPTOR, ..HandleProperties::DEVICE };
            let (mut handle, mut descriptor) = (0, -1);
            assert_eq!(cuMemCreate(&raw mut handle, size, &raw const properties, 0), 0);
            assert_eq!(cuMemExportToShareableHandle(&raw mut descriptor, handle, DESCRIPTOR, 0), 0);
            say(&descriptor.to_string());
        }
        "cuMemPoolImportPointer" => {
            let properties = PoolProperties { handles: DESCRIPTOR, ..PoolProperties::DEVICE };
            let (mut pool, mut address, mut descriptor, mut shared) = (0, 0, -1, [0; 64]);
            assert_eq!(cuMemPoolCreate(&raw mut pool, &raw const properties), 0);
            assert_eq!(cuMemPoolExportToShareableHandle(&raw mut descriptor, pool, DESCRIPTOR, 0), 0);
            assert_eq!(cuMemAllocFromPoolAsync(&raw mut address, size, pool, 0), 0);
            assert_eq!(cuMemPoolExportPointer(&raw mut shared, address), 0);
            say(&format!("{descriptor} {}", hex(&shared)));
        }
        _ => {
            let mut handle = IpcHandle([0; 64]);
            assert_eq!(cuIpcGetMemHandle(&raw mut handle, allocate(bytes).unwrap()), 0);
            say(&hex(&handle.0));
        }
    }
    wait();
}

/// Imports such memory by the entry it is for.
pub(crate) fn take(symbol: &str, bytes: u64, maker: &str, offer: &[&str]) -> i32 {
    let (mut handle, mut at, size) = (0, 0, usize::try_from(bytes).unwrap());
    match (symbol, offer) {
        ("cuMemImportFromShareableHandle", [descriptor]) => {
            let file = descriptor_of(maker, descriptor);
            let shared = usize::try_from(file.as_raw_fd()).unwrap();
            assert_eq!(cuMemAddressReserve(&raw mut at, size, 0, 0, 0), 0);
            match cuMemImportFromShareableHandle(&raw mut handle, shared, DESCRIPTOR) {
                // Counted from its first mapping: until then it cannot be used.
                0 => cuMemMap(at, size, 0, handle, 0),
                refused => refused,
            }
        }
        ("cuMemPoolImportPointer", _) => import_pointer(&mut at, maker, offer),
        ("cuIpcOpenMemHandle", [shared]) => cuIpcOpenMemHandle(&raw mut at, IpcHandle(unhex(shared)), 1),
        ("cuIpcOpenMemHandle_v2", [shared]) => cuIpcOpenMemHandle_v2(&raw mut at, IpcHandle(unhex(shared)), 1),
        unknown => panic!("{unknown:?} imports, and no test knows how: teach this function"),
    }
}

fn import_pointer(address: &mut u64, maker: &str, offer: &[&str]) -> i32 {
    let [descriptor, shared] = *offer else { panic!("{offer:?} is no pool and pointer") };
    let (mut pool, file) = (0, descriptor_of(maker, descriptor));
    let shared_pool = usize::try_from(file.as_raw_fd()).unwrap();
    assert_eq!(cuMemPoolImportFromShareableHandle(&raw mut pool, shared_pool, DESCRIPTOR, 0), 0);
    cuMemPoolImportPointer(address, pool, &unhex(shared))
}

/// Opens a descriptor of another process.
fn descriptor_of(process: &str, number: &str) -> File {
    File::options().read(true).write(true).open(format!("/proc/{process}/fd/{number}")).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> [u8; 64] {
    std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
}
