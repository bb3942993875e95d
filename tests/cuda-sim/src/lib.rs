//! A double of `libcuda.so.1` and `libnvidia-ml.so.1`: the documented API over host memory. **Kernels do not run**: a
//! launch succeeds, takes no time and computes nothing.
//!
//! The cards are files ([`omni_cuda_card`]), found by the environment variable `OMNI_CUDA_SIM` or in `/dev`. What is
//! simulated:
//! - devices, several processes on each, several versions of the driver, and faults that tests ask for;
//! - contexts, streams as virtual timelines, events, functions of the host, values that streams wait for and write;
//! - memory of every kind (plain, pitched, managed, pooled, pinned, by handle, external, of graphs, of arrays) and what
//!   processes share of it, with its residency and the time that transfers take; all copies and fills of it;
//! - capture, and graphs of memory nodes, copies, fills and functions of the host.
//!
//! Every symbol of `omni_cuda_entries` is exported. The rest are stubs that answer `CUDA_ERROR_NOT_SUPPORTED`: interop
//! with other interfaces (OpenGL, EGL, VDPAU), semaphores of other processes, green contexts, multicast, texture
//! references, kernel nodes of graphs and changes of instantiated graphs, tensor maps, checkpoints, core dumps and logs. Nothing undocumented is emulated: `cuGetExportTable` knows no table, so the real `libcudart` stops
//! there.
//!
//! Deliberate differences from a card: work that is put into a stream takes effect at once, and only its end is
//! modelled. Loads and stores of the program are not seen, so managed memory stays where calls have put it. Allocations
//! take exactly the requested bytes.

mod abi;
mod arrays;
mod backing;
mod capture;
mod context;
mod device;
mod error;
mod event;
mod event_ipc;
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
mod profiler;
mod ranges;
mod resolve;
mod sharable;
mod stream;
mod stream_values;
mod stubs;
mod time;
mod vmm;

/// Exports of each module.
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
    event_ipc::SYMBOLS,
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
    profiler::SYMBOLS,
    resolve::SYMBOLS,
    stream::SYMBOLS,
    stream_values::SYMBOLS,
    stubs::SYMBOLS,
    vmm::SYMBOLS,
];
