//! `cuGetProcAddress` gives the form that name, version and flags mean.

use crate::Machine;
use crate::caller::Caller;

#[test]
fn the_newest_form_that_is_not_too_new() {
    let machine = Machine::new(1, |settings| settings.driver = 13050);
    let mut caller = Caller::start(machine.dir.path(), &[]);
    let table = [
        ("cuCtxCreate", 2000, 0, "cuCtxCreate"),
        ("cuCtxCreate", 3020, 0, "cuCtxCreate_v2"),
        ("cuCtxCreate", 11030, 0, "cuCtxCreate_v2"),
        ("cuCtxCreate", 11040, 0, "cuCtxCreate_v3"),
        ("cuCtxCreate", 12050, 0, "cuCtxCreate_v4"),
        ("cuCtxGetDevice", 12090, 0, "cuCtxGetDevice"),
        ("cuCtxGetDevice", 13000, 0, "cuCtxGetDevice_v2"),
        ("cuMemAlloc", 12090, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 12090, 2, "cuMemAlloc_v2"),
        ("cuMemAllocAsync", 11020, 0, "cuMemAllocAsync"),
        ("cuMemAllocAsync", 11020, 1, "cuMemAllocAsync"),
        ("cuMemAllocAsync", 11020, 2, "cuMemAllocAsync_ptsz"),
        ("cuMemPrefetchAsync", 8000, 0, "cuMemPrefetchAsync"),
        ("cuMemPrefetchAsync", 8000, 2, "cuMemPrefetchAsync_ptsz"),
        ("cuMemPrefetchAsync", 12020, 0, "cuMemPrefetchAsync_v2"),
        ("cuMemPrefetchAsync", 13000, 2, "cuMemPrefetchAsync_v2_ptsz"),
        ("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"),
    ];
    for (name, version, flags, expected) in table {
        caller.ok(&format!("cuGetProcAddress_v2 '{name} &1 {version} {flags} &2"));
        assert_eq!(caller.call(&format!("same $1 {expected}")), 1, "{name} {version} {flags}");
        assert_eq!(caller.cell(2), 0);
    }
}

#[test]
fn missing_functions_are_reported_with_the_reason() {
    let machine = Machine::new(1, |settings| settings.driver = 12000);
    let mut caller = Caller::start(machine.dir.path(), &[]);
    // Name, version, result, status: 1 is "no such name", 2 is "not that early".
    let table = [
        ("cuNothing", 12000, 0, 1),
        ("cuMemAlloc_v2", 12000, 0, 1),
        ("", 0, 0, 1),
        ("cuMemAllocAsync", 11010, 0, 2),
        // A name of CUDA 13, which this driver does not have.
        ("cuMemPrefetchBatchAsync", 12000, 0, 1),
    ];
    for (name, version, result, status) in table {
        assert_eq!(caller.call(&format!("cuGetProcAddress_v2 '{name} &1 {version} 0 &2")), result, "{name}");
        assert_eq!((caller.cell(1), caller.cell(2) & 0xffff_ffff), (0, status), "{name}");
    }
    // The form that is newer than the driver does not exist, so the older one is the newest.
    caller.ok("cuGetProcAddress_v2 'cuMemPrefetchAsync &1 12000 0 0");
    assert_eq!(caller.call("same $1 cuMemPrefetchAsync"), 1);
    assert_eq!(caller.call("cuGetProcAddress_v2 'cuMemAlloc &1 12090 0 &2"), 1, "newer than the driver");
    assert_eq!(caller.call("cuGetProcAddress_v2 'cuMemAlloc 0 12000 0 &2"), 1);
    assert_eq!(caller.call("cuGetProcAddress_v2 0 &1 12000 0 &2"), 1);
    assert_eq!(caller.call("cuGetProcAddress_v2 'cuMemAlloc &1 12000 9 &2"), 1);
    assert_eq!(caller.call("cuGetProcAddress 'cuNothing &1 12000 0"), 500);
}

#[test]
fn every_entry_of_the_table_is_exported_and_found() {
    let machine = Machine::new(1, |settings| settings.driver = 13050);
    let mut caller = Caller::start(machine.dir.path(), &[]);
    let newest = omni_cuda_entries::ENTRIES.iter().map(|entry| entry.version).max().unwrap();
    assert!(newest <= 13050, "let the card's driver be as new as the table: {newest}");
    for entry in omni_cuda_entries::ENTRIES {
        let flags = if entry.per_thread { 2 } else { 1 };
        caller.ok(&format!("cuGetProcAddress_v2 '{} &1 {} {flags} &2", entry.base, entry.version));
        assert_eq!(caller.call(&format!("same $1 {}", entry.symbol)), 1, "{entry:?}");
    }
}
