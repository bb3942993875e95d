//! Streams that wait for values and for all of a context, their attributes, and the first forms of copies.

use crate::{MIB, Machine};

#[test]
fn a_stream_waits_for_a_value() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    caller.ok("cuMemHostAlloc &1 4096 0");
    caller.ok("cuStreamCreate &2 1");
    caller.ok("cuStreamCreate &3 1");
    caller.ok("cuEventCreate &4 2");
    caller.ok("counter 5");
    // Until the value is exactly 7; then a function, and 9 beside it.
    caller.ok("cuStreamWaitValue64_v2 $2 $1 7 1");
    caller.ok("cuLaunchHostFunc $2 $5 &6");
    let beside = caller.cell(1) + 8;
    caller.ok(&format!("cuStreamWriteValue32_v2 $2 {beside} 9 0"));
    caller.ok("cuEventRecord $4 $2");
    caller.ok("cuStreamWaitEvent $3 $4 0");
    for call in ["cuStreamQuery $2", "cuEventQuery $4", "cuStreamQuery $3"] {
        assert_eq!(caller.call(call), 600, "{call}");
    }
    caller.ok("store $1 6");
    assert_eq!(caller.call("cuStreamQuery $2"), 600, "another value");
    assert_eq!((caller.cell(6), caller.call(&format!("load {beside}"))), (0, 0), "nothing behind it has happened");
    caller.ok("store $1 7");
    caller.ok("cuStreamSynchronize $3");
    assert_eq!((caller.cell(6), caller.call(&format!("load {beside}"))), (1, 9));
    caller.ok("store $1 0");
    caller.ok("cuStreamQuery $2");
}

#[test]
fn values_are_compared_as_documented() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    caller.ok("cuMemAlloc_v2 &1 4096");
    caller.ok("cuStreamCreate &2 1");
    // Present value, wanted value, comparison: and whether the stream goes on.
    let table: &[(u64, u64, u32, bool)] = &[
        (5, 5, 0, true),
        (4, 5, 0, false),
        (0x8000_0004, 5, 0, true),
        (0x8000_0005, 5, 0, false),
        (4, 5, 1, false),
        (4, 5, 2, true),
        (8, 5, 2, false),
        (4, 5, 3, true),
        (0xffff_fffa, 5, 3, false),
    ];
    for (there, wanted, how, goes_on) in table {
        caller.ok(&format!("cuStreamWriteValue32_v2 $2 $1 {there} 0"));
        caller.ok(&format!("cuStreamWaitValue32_v2 $2 $1 {wanted} {how}"));
        let expected = if *goes_on { 0 } else { 600 };
        assert_eq!(caller.call("cuStreamQuery $2"), expected, "{there} {wanted} {how}");
        if !goes_on {
            // Another stream brings it about.
            caller.ok(&format!("cuStreamWriteValue32_v2 2 $1 {} 1", if *how == 3 { 0 } else { *wanted }));
            caller.ok("cuStreamSynchronize $2");
        }
    }
    assert_eq!(caller.call("cuStreamWaitValue32_v2 $2 $1 5 4"), 1);
    let odd = caller.cell(1) + 2;
    assert_eq!(caller.call(&format!("cuStreamWriteValue32_v2 $2 {odd} 5 0")), 1, "no multiple of 4");
    assert_eq!(caller.call("cuStreamWriteValue32_v2 $2 &3 5 0"), 1, "unknown memory");
}

#[test]
fn value_operations_can_be_batched() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    caller.ok("cuMemAlloc_v2 &1 4096");
    let at = caller.cell(1);
    // 64 bits are written; the lower 32 are waited for.
    for (word, value) in [5, at, 3 << 32 | 8, 0, 0, 0, 1, at, 8, 1, 0, 0].into_iter().enumerate() {
        caller.ok(&format!("set 2 {word} {value}"));
    }
    caller.ok("cuStreamBatchMemOp_v2 0 2 &2 0");
    caller.ok("cuStreamSynchronize 0");
    caller.ok("cuMemcpyDtoH_v2 &3 $1 8");
    assert_eq!(caller.cell(3), 3 << 32 | 8);
    assert_eq!(caller.call("cuStreamBatchMemOp_v2 0 2 &2 1"), 1, "flags");
    assert_eq!(caller.call("cuStreamBatchMemOp_v2 0 257 &2 0"), 1, "too many");
}

#[test]
fn an_event_records_a_whole_context() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    caller.ok("cuMemHostAlloc &1 4096 0");
    caller.ok("cuEventCreate &2 2");
    caller.ok("cuStreamCreate &3 1");
    caller.ok("cuStreamWaitValue32_v2 $3 $1 1 1");
    caller.ok("cuCtxRecordEvent 0 $2");
    assert_eq!(caller.call("cuEventQuery $2"), 600);
    caller.ok("cuCtxWaitEvent 0 $2");
    caller.ok("cuStreamCreate &4 1");
    caller.ok("counter 5");
    caller.ok("cuLaunchHostFunc $4 $5 &6");
    assert_eq!(caller.call("cuStreamQuery $4"), 600, "a stream that came later waits too");
    caller.ok("store $1 1");
    caller.ok("cuStreamSynchronize $4");
    assert_eq!(caller.cell(6), 1);
    caller.ok("cuStreamBeginCapture_v2 $4 2");
    assert_eq!(caller.call("cuCtxRecordEvent 0 $2"), 900);
}

#[test]
fn streams_keep_their_attributes() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    caller.ok("cuStreamCreateWithPriority &1 1 -3");
    caller.ok("cuStreamCreate &2 1");
    caller.ok("cuStreamGetAttribute $1 8 &3");
    assert_eq!(u32::try_from(caller.cell(3)).unwrap().cast_signed(), -3);
    caller.ok("set 4 0 1");
    caller.ok("cuStreamSetAttribute $1 10 &4");
    caller.ok("cuStreamGetAttribute $2 10 &3");
    assert_eq!(caller.cell(3), 0);
    caller.ok("cuStreamCopyAttributes $2 $1");
    caller.ok("cuStreamGetAttribute $2 10 &3");
    assert_eq!(caller.cell(3), 1);
    assert_eq!(caller.call("cuStreamSetAttribute $1 4 &4"), 1, "of launches only");
}

#[test]
fn the_first_versions_copy_and_fill() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    caller.ok("cuMemAlloc &1 4096");
    caller.ok("cuMemAlloc &2 4096");
    caller.ok("set 3 0 1234567");
    caller.ok("cuMemcpyHtoD $1 &3 8");
    caller.ok("cuMemcpyDtoDAsync $2 $1 8 0");
    caller.ok("cuMemcpyDtoH &4 $2 8");
    assert_eq!(caller.cell(4), 1_234_567);
    caller.ok("cuMemsetD2D16 $1 8 258 1 2");
    caller.ok("cuMemcpyDtoH &4 $1 16");
    assert_eq!(caller.cell(4) & 0xffff, 258);
    assert_eq!(caller.call("cuMemsetD32 $1 1 1025"), 1, "beyond its end");
    // Both on the device, in rows of 8: one row of 8 bytes.
    let (from, to) = (caller.cell(1), caller.cell(2));
    let words = [0, 2, 0, from, 0, 8, 2 << 32, 0, to, 0, 8 | 8 << 32, 1];
    for (word, value) in words.into_iter().enumerate() {
        caller.ok(&format!("set 5 {word} {value}"));
    }
    caller.ok("cuMemcpy2D &5");
    caller.ok("cuMemcpyDtoH &6 $2 8");
    assert_eq!(caller.cell(6), caller.cell(4));
}

#[test]
fn boxes_are_copied_in_batches() {
    let machine = Machine::new(1, |settings| settings.driver = 13000);
    let mut caller = machine.caller();
    caller.ok("cuStreamCreate &9 1");
    caller.ok(&format!("cuMemAlloc_v2 &1 {MIB}"));
    // Rows of 16 bytes, of which 8 are copied, twice.
    for (word, value) in [11, 12, 13, 14].into_iter().enumerate() {
        caller.ok(&format!("set 2 {word} {value}"));
    }
    caller.ok("set 4 0 &2");
    let (from, to) = (caller.cell(4), caller.cell(1));
    let words = [1, from, 16, 2, 0, 1, to, 0, 0, 0, 8, 2, 1, 0];
    for (word, value) in words.into_iter().enumerate() {
        caller.ok(&format!("set 3 {word} {value}"));
    }
    caller.ok("cuMemcpy3DBatchAsync_v2 1 &3 0 $9");
    caller.ok("cuStreamSynchronize $9");
    caller.ok("cuMemcpyDtoH_v2 &5 $1 16");
    caller.ok("set 6 0 &5");
    let second = caller.cell(6) + 8;
    assert_eq!((caller.cell(5), caller.call(&format!("load {second}"))), (11, 13));
    assert_eq!(caller.call("cuMemcpy3DBatchAsync_v2 1 &3 0 0"), 1, "not in stream 0");
    caller.ok("set 3 10 0");
    assert_eq!(caller.call("cuMemcpy3DWithAttributesAsync &3 0 $9"), 1, "nothing to copy");
}
