//! Calls that work: contexts, streams and events, pools, host memory, copies, capture.

use crate::{MIB, Machine};

#[test]
fn contexts_are_a_stack() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    caller.ok("cuCtxCreate_v2 &1 0 0");
    caller.ok("cuCtxPopCurrent_v2 &2");
    caller.ok("cuCtxGetCurrent &3");
    assert_eq!((caller.cell(2), caller.cell(3)), (caller.cell(1), caller.cell(0)));
    for _ in 0..2 {
        caller.ok("cuDevicePrimaryCtxRetain &4 0");
    }
    assert_eq!(caller.call("cuCtxDestroy_v2 $4"), 201, "a primary context is released, not destroyed");
    caller.ok("cuDevicePrimaryCtxGetState 0 &5 &6");
    assert_eq!(caller.cell(6), 1);
    caller.ok("cuDevicePrimaryCtxRelease_v2 0");
    caller.ok("cuDevicePrimaryCtxRelease_v2 0");
    caller.ok("cuDevicePrimaryCtxGetState 0 &5 &6");
    assert_eq!(caller.cell(6), 0);
}

#[test]
fn the_last_detach_destroys_a_context() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    caller.ok("cuMemAlloc_v2 &1 1048576");
    caller.ok("cuCtxAttach &2 0");
    assert_eq!(caller.cell(2), caller.cell(0));
    caller.ok("cuCtxDetach $2");
    caller.ok("cuCtxGetApiVersion $0 &3");
    assert_eq!(machine.cards[0].state().unwrap().used(), MIB);
    caller.ok("cuCtxPopCurrent_v2 &3");
    assert_eq!(caller.call("cuCtxDetach $0"), 201, "it is not current");
    caller.ok("cuCtxPushCurrent_v2 $0");
    caller.ok("cuCtxDetach $0");
    assert_eq!(caller.call("cuCtxGetApiVersion $0 &3"), 201);
    assert_eq!(machine.cards[0].state().unwrap().used(), 0);
}

#[test]
fn bytes_arrive_where_they_are_copied() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    caller.ok("cuMemAlloc_v2 &1 4096");
    caller.ok("cuMemAllocManaged &2 4096 1");
    caller.ok("set 3 0 1234567");
    caller.ok("cuMemcpyHtoD_v2 $1 &3 8");
    caller.ok("cuMemcpyDtoDAsync_v2 $2 $1 8 0");
    caller.ok("cuMemcpy &4 $2 8");
    assert_eq!(caller.cell(4), 1_234_567);
    assert_eq!(caller.call("cuMemcpyDtoH_v2 &4 $1 4097"), 1, "beyond its end");
    caller.ok("cuMemsetD32Async $1 16909060 2 2");
    caller.ok("cuMemcpyDtoH_v2 &4 $1 8");
    assert_eq!(caller.cell(4), 0x0102_0304_0102_0304);
    assert_eq!(caller.call("cuMemsetD32_v2 $1 1 1025"), 1);
    caller.ok("cuMemAllocPitch_v2 &5 &6 100 3 4");
    assert_eq!(caller.cell(6), 512);
    caller.ok("cuMemGetAddressRange_v2 &7 &8 $5");
    assert_eq!((caller.cell(7), caller.cell(8)), (caller.cell(5), 1536));
}

#[test]
fn time_is_modelled_and_waited_for() {
    let machine = Machine::new(1, |settings| (settings.to_device, settings.to_host) = (400 * MIB, 400 * MIB));
    let mut caller = machine.caller();
    caller.ok(&format!("cuMemAllocManaged &1 {} 1", 40 * MIB));
    caller.ok(&format!("cuMemPrefetchAsync $1 {} -1 0", 40 * MIB));
    for (cell, flags) in [(2, 1), (3, 1)] {
        caller.ok(&format!("cuStreamCreate &{cell} {flags}"));
    }
    caller.ok("cuEventCreate &4 0");
    caller.ok("cuEventCreate &5 0");
    // A tenth of a second there, with the first event at its end, and one back: between two events of a stream that is busy
    // all the while lies what the model says, whatever time passes between these calls.
    caller.ok(&format!("cuMemPrefetchAsync $1 {} 0 $2", 40 * MIB));
    caller.ok("cuEventRecord $4 $2");
    caller.ok(&format!("cuMemPrefetchAsync $1 {} -1 $2", 40 * MIB));
    caller.ok("cuEventRecord $5 $2");
    assert_eq!(caller.call("cuStreamQuery $2"), 600);
    assert_eq!(caller.call("cuEventQuery $5"), 600);
    assert_eq!(caller.call("cuEventElapsedTime &6 $4 $5"), 600);
    caller.ok("cuStreamQuery $3");
    caller.ok("cuStreamWaitEvent $3 $5 0");
    assert_eq!(caller.call("cuStreamQuery $3"), 600);
    caller.ok("cuStreamSynchronize $3");
    caller.ok("cuStreamQuery $2");
    caller.ok("cuEventElapsedTime &6 $4 $5");
    let milliseconds = f32::from_bits(u32::try_from(caller.cell(6)).unwrap());
    assert!((99.0..101.0).contains(&milliseconds), "as modelled, not as measured: {milliseconds}");
}

#[test]
fn host_functions_run_in_order_and_are_waited_for() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    caller.ok("counter 1");
    for _ in 0..100 {
        caller.ok("cuLaunchHostFunc 0 $1 &2");
    }
    caller.ok("cuStreamSynchronize 0");
    assert_eq!(caller.cell(2), 100);
    assert_eq!(caller.call("cuLaunchHostFunc 0 0 &2"), 1);
}

#[test]
fn pools_reserve_up_to_their_threshold() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    let used = || machine.cards[0].state().unwrap().used();
    caller.ok("cuDeviceGetDefaultMemPool &1 0");
    caller.ok(&format!("cuMemAllocAsync &2 {} 0", 100 * MIB));
    assert_eq!(used(), 100 * MIB);
    caller.ok("cuMemFreeAsync $2 0");
    assert_eq!(used(), 0);
    caller.ok(&format!("set 3 0 {}", 60 * MIB));
    caller.ok("cuMemPoolSetAttribute $1 4 &3");
    caller.ok(&format!("cuMemAllocAsync &2 {} 0", 100 * MIB));
    caller.ok("cuMemFree_v2 $2");
    assert_eq!(used(), 60 * MIB);
    caller.ok("cuMemPoolGetAttribute $1 6 &4");
    assert_eq!(caller.cell(4), 100 * MIB);
    caller.ok("cuMemPoolTrimTo $1 0");
    assert_eq!(used(), 0);
    assert_eq!(caller.call(&format!("cuMemAllocAsync &2 {} 0", 2000 * MIB)), 2);
    assert_eq!(caller.call("cuMemPoolDestroy $1"), 1, "a default pool stays");
}

#[test]
fn managed_pools_came_with_13() {
    for (driver, expected) in [(12090, 801), (13000, 0)] {
        let machine = Machine::new(1, |settings| settings.driver = driver);
        let mut caller = machine.caller();
        // Managed, no handles, preferred on device 0.
        caller.ok("set 1 0 2");
        caller.ok("set 1 1 1");
        assert_eq!(caller.call("cuMemPoolCreate &2 &1"), expected);
        if expected == 0 {
            caller.ok(&format!("cuMemAllocFromPoolAsync &3 {} $2 0", 100 * MIB));
            assert_eq!(machine.cards[0].state().unwrap().used(), 0);
            caller.ok(&format!("cuMemPrefetchAsync $3 {} 0 0", 100 * MIB));
            assert_eq!(machine.cards[0].state().unwrap().resident(), 100 * MIB);
            caller.ok("cuPointerGetAttribute &4 8 $3");
            assert_eq!(caller.cell(4), 1);
            caller.ok("cuMemFreeAsync $3 0");
            assert_eq!(machine.cards[0].state().unwrap().used(), 0);
        }
    }
}

#[test]
fn host_memory_is_known_and_costs_the_card_nothing() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    caller.ok("cuMemHostAlloc &1 4096 2");
    caller.ok("cuMemHostGetDevicePointer_v2 &2 $1 0");
    assert_eq!(caller.cell(1), caller.cell(2));
    caller.ok("cuPointerGetAttribute &3 2 $1");
    assert_eq!(caller.cell(3), 1);
    caller.ok("cuMemHostRegister_v2 &4 64 0");
    assert_eq!(caller.call("cuMemHostRegister_v2 &4 64 0"), 712);
    caller.ok("cuMemHostUnregister &4");
    caller.ok("cuMemFreeHost $1");
    assert_eq!(machine.cards[0].state().unwrap().used(), 0);
}

#[test]
fn a_captured_stream_does_nothing_and_forbids_waits() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    caller.ok("cuStreamCreate &1 0");
    assert_eq!(caller.call("cuStreamBeginCapture_v2 0 0"), 900, "stream 0");
    caller.ok("cuStreamBeginCapture_v2 $1 2");
    caller.ok(&format!("cuMemAllocAsync &2 {MIB} $1"));
    assert_eq!(machine.cards[0].state().unwrap().used(), 0, "a node, not memory");
    caller.ok("cuMemAlloc_v2 &3 4096");
    caller.ok("cuStreamEndCapture $1 &4");
    caller.ok("cuStreamBeginCapture_v2 $1 0");
    assert_eq!(caller.call("cuMemAlloc_v2 &3 4096"), 900, "a global capture forbids it");
    caller.ok("cuStreamIsCapturing $1 &5");
    assert_eq!(caller.cell(5), 2);
    assert_eq!(caller.call("cuStreamEndCapture $1 &4"), 901);
    caller.ok("cuMemAlloc_v2 &3 4096");
}

#[test]
fn launches_succeed() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    caller.ok("cuModuleLoadData &1 'anything");
    caller.ok("cuModuleGetFunction &2 $1 'kernel");
    caller.ok("cuModuleGetFunction &3 $1 'kernel");
    assert_eq!(caller.cell(2), caller.cell(3));
    caller.ok("cuLaunchKernel $2 1 1 1 32 1 1 0 0 0 0");
    assert_eq!(caller.call("cuLaunchKernel $2 0 1 1 32 1 1 0 0 0 0"), 1);
    caller.ok("cuFuncGetName &4 $2");
    assert_eq!(caller.call("text 4"), 6);
    caller.ok("cuModuleUnload $1");
    assert_eq!(caller.call("cuLaunchKernel $2 1 1 1 32 1 1 0 0 0 0"), 400);
}
