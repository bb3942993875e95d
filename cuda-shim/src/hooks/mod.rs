//! Functions of the driver that this library replaces: allocation, free, and reports of how much memory there is.
//!
//! Each is exported under the driver's own name, and [`hook`] finds it for callers that look it up. It counts before
//! the driver allocates and after it has freed ([`reclaim`], [`ledger`]), returns `CUDA_ERROR_OUT_OF_MEMORY` beyond the
//! limit, and otherwise returns what the driver returns. None of them panics.
//!
//! | module | functions |
//! | --- | --- |
//! | [`plain`] | `cuMemAlloc` and its variants, managed memory, `cuMemFree` |
//! | [`host`] | pinned host memory |
//! | [`streams`], [`pools`], [`deferred`], [`stream`] | allocation in the order of a stream |
//! | [`graphs`], [`graph_memory`] | memory nodes |
//! | [`vmm`] | handles and mappings |
//! | [`arrays`], [`imports`] | arrays and mipmaps; imported memory |
//! | [`contexts`] | contexts, and memory that ends with them |
//! | [`reports`] | reports of free and total memory |

mod arrays;
mod contexts;
mod deferred;
mod entry;
mod graph_memory;
mod graphs;
mod host;
mod imports;
mod ledger;
mod plain;
mod pools;
mod reclaim;
mod reports;
mod stream;
mod streams;
mod vmm;

use std::ffi::c_void;

/// Hook for an exported symbol of the driver; `None` where the driver's own function is right.
pub(crate) fn hook(symbol: &str) -> Option<*const c_void> {
    if !symbol.starts_with("cu") {
        return None;
    }
    let tables = [
        plain::find,
        host::find,
        streams::find,
        pools::find,
        graphs::find,
        vmm::find,
        arrays::find,
        imports::find,
        contexts::find,
        reports::find,
    ];
    tables.iter().find_map(|find| find(symbol))
}
