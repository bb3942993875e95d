//! Every function of the driver that this library takes the place of: allocating, freeing, and saying how much there is.
//!
//! Each is exported under the driver's own name, and [`hook`] finds it for those who ask by name. A function counts
//! before the driver allocates and after it has freed ([`ledger`]), answers `CUDA_ERROR_OUT_OF_MEMORY` beyond the limit,
//! and says whatever the driver says in every other case. None of them panics.
//!
//! | module | what |
//! | --- | --- |
//! | [`plain`] | `cuMemAlloc` and its kin, managed memory, `cuMemFree` |
//! | [`host`] | pinned host memory |
//! | [`streams`], [`pools`], [`deferred`], [`stream`] | allocation in the order of a stream |
//! | [`graphs`] | memory nodes |
//! | [`vmm`] | handles and mappings |
//! | [`arrays`], [`imports`] | arrays and mipmaps; memory that comes from elsewhere |
//! | [`contexts`] | what goes with a context |
//! | [`reports`] | how much there is |

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

/// Our function for an exported symbol of the driver; `None` where the driver's own is right.
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
