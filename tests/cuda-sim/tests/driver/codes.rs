//! Error codes of calls that cannot succeed.

use crate::Machine;
use crate::caller::Caller;
use omni_cuda_card::{Faults, Prefetch};

const INVALID_VALUE: u64 = 1;
const OUT_OF_MEMORY: u64 = 2;
const NOT_INITIALIZED: u64 = 3;
const NO_DEVICE: u64 = 100;
const INVALID_DEVICE: u64 = 101;
const INVALID_CONTEXT: u64 = 201;
const INVALID_HANDLE: u64 = 400;
const NOT_FOUND: u64 = 500;
const CONTEXT_IS_DESTROYED: u64 = 709;
const NOT_SUPPORTED: u64 = 801;

fn check(caller: &mut Caller, table: &[(&str, u64)]) {
    for (line, expected) in table {
        assert_eq!(caller.call(line), *expected, "{line}");
    }
}

#[test]
fn before_init_and_without_a_context() {
    let machine = Machine::one();
    let mut caller = Caller::start(machine.dir.path(), &[]);
    check(
        &mut caller,
        &[
            ("cuDeviceGetCount &1", NOT_INITIALIZED),
            ("cuMemAlloc_v2 &1 4096", NOT_INITIALIZED),
            ("cuCtxGetCurrent &1", NOT_INITIALIZED),
            ("cuMemGetInfo_v2 &1 &2", NOT_INITIALIZED),
            ("cuDriverGetVersion &1", 0),
            ("cuGetErrorName 2 &1", 0),
            ("cuInit 1", INVALID_VALUE),
            ("cuInit 0", 0),
            ("cuInit 0", 0),
            ("cuCtxGetCurrent &1", 0),
            ("cuCtxGetDevice &1", INVALID_CONTEXT),
            ("cuMemAlloc_v2 &1 4096", INVALID_CONTEXT),
            ("cuMemAllocManaged &1 4096 1", INVALID_CONTEXT),
            ("cuMemAllocAsync &1 4096 0", INVALID_CONTEXT),
            ("cuMemHostAlloc &1 4096 0", INVALID_CONTEXT),
            ("cuMemGetInfo_v2 &1 &2", INVALID_CONTEXT),
            ("cuStreamCreate &1 0", INVALID_CONTEXT),
            ("cuCtxSynchronize", INVALID_CONTEXT),
            ("cuCtxPopCurrent_v2 &1", INVALID_CONTEXT),
            ("cuModuleLoadData &1 'x", INVALID_CONTEXT),
        ],
    );
}

#[test]
fn null_pointers_and_invalid_arguments_are_refused() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    check(
        &mut caller,
        &[
            ("cuDeviceGetCount 0", INVALID_VALUE),
            ("cuDeviceGet &1 7", INVALID_DEVICE),
            ("cuDeviceGet &1 -1", INVALID_DEVICE),
            ("cuDeviceGetAttribute &1 1 9", INVALID_DEVICE),
            ("cuDeviceGetAttribute &1 100000 0", INVALID_VALUE),
            ("cuDeviceGetName &1 0 0", INVALID_VALUE),
            ("cuCtxCreate_v2 0 0 0", INVALID_VALUE),
            ("cuCtxCreate_v2 &1 0 9", INVALID_DEVICE),
            ("cuCtxCreate_v2 &1 4096 0", INVALID_VALUE),
            ("cuCtxDestroy_v2 12345", INVALID_CONTEXT),
            ("cuCtxSetCurrent 12345", INVALID_CONTEXT),
            ("cuDevicePrimaryCtxRelease_v2 0", INVALID_CONTEXT),
            ("cuMemAlloc_v2 0 4096", INVALID_VALUE),
            ("cuMemAlloc_v2 &1 0", INVALID_VALUE),
            ("cuMemAlloc_v2 &1 99999999999", OUT_OF_MEMORY),
            ("cuMemAllocManaged &1 4096 0", INVALID_VALUE),
            ("cuMemAllocManaged &1 0 1", INVALID_VALUE),
            ("cuMemAllocPitch_v2 &1 &2 100 100 5", INVALID_VALUE),
            ("cuMemFree_v2 0", 0),
            ("cuMemFree_v2 4096", INVALID_VALUE),
            ("cuMemGetInfo_v2 0 0", 0),
            ("cuMemGetAddressRange_v2 &1 &2 4096", NOT_FOUND),
            ("cuMemcpyHtoD_v2 4096 &1 8", INVALID_VALUE),
            ("cuMemsetD8_v2 4096 0 8", INVALID_VALUE),
            ("cuMemPrefetchAsync 4096 4096 0 0", INVALID_VALUE),
            ("cuMemAdvise 4096 4096 1 0", INVALID_VALUE),
            ("cuPointerGetAttribute &1 2 4096", INVALID_VALUE),
            ("cuMemFreeHost 4096", INVALID_VALUE),
            ("cuMemHostUnregister 4096", 713),
            ("cuStreamSynchronize 4096", INVALID_HANDLE),
            ("cuStreamDestroy_v2 0", INVALID_HANDLE),
            ("cuEventSynchronize 4096", INVALID_HANDLE),
            ("cuEventCreate &1 4", INVALID_VALUE),
            ("cuLaunchKernel 4096 1 1 1 1 1 1 0 0 0 0", INVALID_HANDLE),
            ("cuMemPoolDestroy 4096", INVALID_VALUE),
            ("cuCtxGetLimit &1 99", 215),
            ("cuGetErrorName 12345 &1", INVALID_VALUE),
            ("cuGetErrorString 12345 &1", INVALID_VALUE),
            ("cuGetExportTable &1 &2", NOT_FOUND),
            ("cuGraphicsMapResources 0 0 0", NOT_SUPPORTED),
        ],
    );
}

#[test]
fn a_destroyed_context_is_named_as_such() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    caller.ok("cuMemAlloc_v2 &1 1048576");
    caller.ok("cuCtxPushCurrent_v2 $0");
    caller.ok("cuCtxDestroy_v2 $0");
    assert_eq!(caller.call("cuMemAlloc_v2 &2 4096"), CONTEXT_IS_DESTROYED);
    assert_eq!(machine.cards[0].state().unwrap().used(), 0, "its memory went with it");
}

#[test]
fn no_card_and_a_missing_file_of_the_driver() {
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(Caller::start(empty.path(), &[]).call("cuInit 0"), NO_DEVICE);
    let machine = Machine::one();
    std::fs::remove_file(machine.dir.path().join("nvidia-uvm")).unwrap();
    assert_eq!(Caller::start(machine.dir.path(), &[]).call("cuInit 0"), 999);
    std::fs::remove_file(machine.dir.path().join("nvidiactl")).unwrap();
    assert_eq!(Caller::start(machine.dir.path(), &[]).call("cuInit 0"), NO_DEVICE);
}

#[test]
fn faults_set_by_a_test_take_effect() {
    let machine = Machine::one();
    let card = &machine.cards[0];
    let mut caller = machine.caller();
    card.set_faults(&Faults { fail_allocation: 2, ..Faults::default() }).unwrap();
    caller.ok("cuMemAlloc_v2 &1 4096");
    assert_eq!(caller.call("cuMemAllocManaged &2 4096 1"), OUT_OF_MEMORY);
    caller.ok("cuMemAllocManaged &2 4096 1");
    card.set_faults(&Faults { prefetch: Prefetch::Fails(46), ..Faults::default() }).unwrap();
    assert_eq!(caller.call("cuMemPrefetchAsync $2 4096 0 0"), 46);
    card.set_faults(&Faults { prefetch: Prefetch::Hangs, ..Faults::default() }).unwrap();
    caller.send("cuMemPrefetchAsync $2 4096 0 0");
    card.set_faults(&Faults { lost: 46, ..Faults::default() }).unwrap();
    // The call came back because the fault was removed, with any result.
    caller.answer();
    assert_eq!(caller.call("cuMemAlloc_v2 &3 4096"), 46);
    assert_eq!(caller.call("cuMemGetInfo_v2 &3 &4"), 46);
    assert_eq!(caller.call("cuCtxSynchronize"), 46);
}

#[test]
fn a_code_has_a_name_and_a_text() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    for code in [0, 1, 2, 709, 999] {
        caller.ok(&format!("cuGetErrorName {code} &1"));
        caller.ok(&format!("cuGetErrorString {code} &2"));
        assert_ne!(caller.cell(1), caller.cell(2), "{code}");
        assert!(caller.call("text 2") > 5, "{code}");
    }
}

#[test]
fn a_prefetch_fails_by_the_fault_of_its_destination_card() {
    let machine = Machine::new(2, |_| ());
    let mut caller = machine.caller();
    caller.ok("cuMemAllocManaged &1 4096 1");
    machine.cards[1].set_faults(&Faults { prefetch: Prefetch::Fails(709), ..Faults::default() }).unwrap();
    assert_eq!(caller.call("cuMemPrefetchAsync $1 4096 1 0"), 709);
    caller.ok("cuMemPrefetchAsync $1 4096 0 0");
    caller.ok("cuMemPrefetchAsync $1 4096 -1 0");
}
