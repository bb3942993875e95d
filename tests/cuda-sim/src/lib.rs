//! A double of `libcuda.so.1` and `libnvidia-ml.so.1`: the documented API over host memory. **Kernels do not run**: a
//! launch succeeds, takes no time and computes nothing.
//!
//! The cards are files ([`omni_cuda_card`]), found by the environment variable `OMNI_CUDA_SIM` or in `/dev`. What is
//! simulated: devices, contexts, streams as virtual timelines, events, memory of every kind with its residency, the time
//! that transfers take, several processes on one card, several driver versions. What is not: anything undocumented
//! (`cuGetExportTable` knows no table, so the real `libcudart` stops there), compute, and what the host does with managed
//! memory by itself: nobody sees a load or a store of the program, so such memory stays where calls have put it.
//!
//! Every symbol of `omni_cuda_entries` is exported: real, or a stub that answers `CUDA_ERROR_NOT_SUPPORTED`.
//! Allocations take exactly the bytes that were asked for.

mod abi;
mod arrays;
mod backing;
mod capture;
mod context;
mod device;
mod error;
mod event;
mod external;
mod graph;
mod host_functions;
mod init;
mod ipc;
mod launch;
mod limits;
mod link;
mod machine;
mod memory;
mod module;
mod nvml;
mod objects;
mod primary;
mod ranges;
mod resolve;
mod sharable;
mod stream;
mod stream_values;
mod stubs;
mod time;
mod vmm;

/// What each module exports.
pub(crate) static SYMBOLS: &[&[abi::Symbol]] = &[
    arrays::batches::SYMBOLS,
    arrays::copies::SYMBOLS,
    arrays::create::SYMBOLS,
    arrays::mipmap::SYMBOLS,
    arrays::narrow::SYMBOLS,
    arrays::objects::SYMBOLS,
    capture::SYMBOLS,
    context::SYMBOLS,
    device::SYMBOLS,
    event::SYMBOLS,
    external::SYMBOLS,
    graph::SYMBOLS,
    graph::add::SYMBOLS,
    graph::ask::SYMBOLS,
    graph::launch::SYMBOLS,
    init::SYMBOLS,
    ipc::SYMBOLS,
    launch::SYMBOLS,
    limits::SYMBOLS,
    link::SYMBOLS,
    memory::advise::SYMBOLS,
    memory::alloc::SYMBOLS,
    memory::copy::SYMBOLS,
    memory::host::SYMBOLS,
    memory::narrow::SYMBOLS,
    memory::ordered::SYMBOLS,
    memory::pointer::SYMBOLS,
    memory::pools::SYMBOLS,
    memory::prefetch::SYMBOLS,
    memory::set::SYMBOLS,
    memory::shared_pools::SYMBOLS,
    module::SYMBOLS,
    primary::SYMBOLS,
    resolve::SYMBOLS,
    stream::SYMBOLS,
    stream_values::SYMBOLS,
    stubs::SYMBOLS,
    vmm::SYMBOLS,
];
