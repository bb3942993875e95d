//! Lifetimes of objects, refusals of managed memory, and queries of graphs and of other processes' events.

use crate::{MIB, Machine};

#[test]
fn memory_of_a_pool_outlives_the_context_of_its_stream() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    caller.ok("cuCtxCreate_v2 &1 0 0");
    caller.ok(&format!("cuMemAllocAsync &2 {MIB} 0"));
    caller.ok(&format!("cuMemAlloc_v2 &3 {MIB}"));
    caller.ok("cuMemsetD32_v2 $2 77 2");
    caller.ok("cuCtxSynchronize");
    caller.ok("cuCtxDestroy_v2 $1");
    caller.ok("cuCtxSetCurrent $0");
    assert_eq!(machine.cards[0].state().unwrap().used(), MIB, "what was made in the context is gone");
    caller.ok("cuMemcpyDtoH_v2 &4 $2 8");
    assert_eq!(caller.cell(4), 77 << 32 | 77);
    assert_eq!(caller.call("cuMemFree_v2 $3"), 1);
    caller.ok("cuMemFree_v2 $2");
    assert_eq!(machine.cards[0].state().unwrap().used(), 0);
}

#[test]
fn value_operations_refuse_managed_memory() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    caller.ok("cuStreamCreate &1 1");
    caller.ok("cuMemAllocManaged &2 4096 1");
    caller.ok("set 3 0 2");
    let managed = caller.cell(2);
    caller.ok(&format!("set 3 1 {managed}"));
    for call in
        ["cuStreamWriteValue32_v2 $1 $2 7 0", "cuStreamWaitValue64_v2 $1 $2 0 0", "cuStreamBatchMemOp_v2 $1 1 &3 0"]
    {
        assert_eq!(caller.call(call), 1, "{call}");
    }
    caller.ok("cuMemAlloc_v2 &2 4096");
    caller.ok("cuStreamWriteValue32_v2 $1 $2 7 0");
}

#[test]
fn an_event_of_another_process_completes_when_it_completes_there() {
    let machine = Machine::one();
    let (mut owner, mut other) = (machine.caller(), machine.caller());
    owner.ok("cuEventCreate &1 2");
    assert_eq!(owner.call("cuIpcGetEventHandle &2 $1"), 400, "one that was not made for it");
    owner.ok("cuEventCreate &1 6");
    owner.ok("cuIpcGetEventHandle &2 $1");
    // A structure of 64 bytes goes on the stack, behind the six arguments that go in registers.
    owner.ok("set 3 0 &2");
    let at = owner.cell(3);
    let words: Vec<String> = (0..5).map(|word| owner.call(&format!("load {}", at + 8 * word)).to_string()).collect();
    let open = format!("cuIpcOpenEventHandle &1 0 0 0 0 0 {}", words.join(" "));
    assert_eq!(owner.call(&open), 201, "its own");
    other.ok(&open);
    other.ok("cuEventQuery $1");
    assert_eq!(other.call("cuEventElapsedTime &4 $1 $1"), 400, "it has no time");
    owner.ok("cuEventRecord $1 0");
    other.ok("cuEventSynchronize $1");
    other.ok("cuStreamCreate &5 1");
    other.ok("cuStreamWaitEvent $5 $1 0");
    other.ok("cuEventRecord $1 0");
    owner.ok("cuEventSynchronize $1");
    owner.kill();
    other.ok("cuEventQuery $1");
    other.ok("cuEventDestroy_v2 $1");
}

#[test]
fn a_graph_reports_its_edges_and_nodes() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    caller.ok("cuGraphCreate &1 0");
    caller.ok("cuGraphAddEmptyNode &2 $1 0 0");
    caller.ok("counter 10");
    let counter = caller.cell(10);
    caller.ok(&format!("set 11 0 {counter}"));
    caller.ok("set 11 1 77");
    caller.ok("cuGraphAddHostNode &3 $1 &2 1 &11");
    caller.ok("cuGraphGetEdges $1 0 0 &4");
    assert_eq!(caller.cell(4), 1);
    caller.ok("cuGraphGetEdges $1 &5 &6 &4");
    assert_eq!((caller.cell(5), caller.cell(6)), (caller.cell(2), caller.cell(3)));
    caller.ok("cuGraphNodeGetDependencies $3 &5 &4");
    assert_eq!((caller.cell(5), caller.cell(4)), (caller.cell(2), 1));
    caller.ok("cuGraphNodeGetDependentNodes $2 &5 &4");
    assert_eq!((caller.cell(5), caller.cell(4)), (caller.cell(3), 1));
    caller.ok("set 4 0 9");
    caller.ok("cuGraphNodeGetDependencies $2 0 &4");
    assert_eq!(caller.cell(4), 0, "the first has none before it");
    caller.ok("cuGraphHostNodeGetParams $3 &12");
    assert_eq!(caller.cell(12), counter);
    assert_eq!(caller.call("cuGraphMemsetNodeGetParams $3 &12"), 1, "it fills nothing");
    assert_eq!(caller.call("cuGraphNodeGetDependencies 12345 0 &4"), 1);
}

#[test]
fn the_profiler_can_be_begun_and_ended_in_a_context() {
    let machine = Machine::one();
    let mut caller = machine.caller();
    caller.ok("cuProfilerStart");
    caller.ok("cuProfilerStop");
    caller.ok("cuCtxDestroy_v2 $0");
    assert_eq!(caller.call("cuProfilerStart"), 201);
}
