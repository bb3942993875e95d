//! `cuGetProcAddress`: entries by name, version and flags, out of our own table and never by `dlsym`.
//!
//! Entries newer than the card's driver do not exist here. `dlsym` finds them all the same: the file's symbols are
//! fixed, so an old driver is tested through `cuGetProcAddress`.

use crate::abi::{In, Out, Symbol, api};
use crate::error::{Answer, Error};
use crate::machine;
use omni_cuda_entries::{ENTRIES, Entry};
use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::sync::LazyLock;

api! {
    fn cuGetProcAddress(symbol: In<c_char>, function: Out<u64>, version: i32, flags: u64) = find_or_fail;
    fn cuGetProcAddress_v2(symbol: In<c_char>, function: Out<u64>, version: i32, flags: u64, status: Out<u32>) = find;
    fn cuGetExportTable(table: Out<u64>, id: In<c_void>) = export_table;
}

const SUCCESS: u32 = 0;
const SYMBOL_NOT_FOUND: u32 = 1;
const VERSION_NOT_SUFFICIENT: u32 = 2;

/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM`, `_PER_THREAD_DEFAULT_STREAM`.
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;

static ADDRESSES: LazyLock<HashMap<&str, Symbol>> =
    LazyLock::new(|| crate::SYMBOLS.iter().copied().flatten().map(|symbol| (symbol.name, *symbol)).collect());

fn find(symbol: In<c_char>, function: Out<u64>, version: i32, flags: u64, status: Out<u32>) -> Answer {
    function.check()?;
    let name = symbol.text()?;
    if flags > PER_THREAD || version < 0 {
        return Err(Error::INVALID_VALUE);
    }
    let (version, driver) = (u32::try_from(version).unwrap_or(0), machine::version());
    if version > driver {
        function.put(0)?;
        return Err(Error::INVALID_VALUE);
    }
    let (found, said) = choose(&name, version, driver, flags);
    let address = found.and_then(|entry| ADDRESSES.get(entry.symbol)).map_or(0, |symbol| symbol.address.addr() as u64);
    status.put_if(said);
    function.put(address)
}

fn find_or_fail(symbol: In<c_char>, function: Out<u64>, version: i32, flags: u64) -> Answer {
    find(symbol, function, version, flags, crate::abi::out_at(0))?;
    // No status reports it in this form.
    if function.get()? == 0 { Err(Error::NOT_FOUND) } else { Ok(()) }
}

/// Newest form that neither the caller nor the driver is too old for. Names are base names: `cuMemAlloc_v2` is none.
/// Flag 2 takes the form for the per-thread default stream where there is one.
fn choose(name: &str, version: u32, driver: u32, flags: u64) -> (Option<&'static Entry>, u32) {
    debug_assert!(flags <= LEGACY.max(PER_THREAD));
    let forms = || ENTRIES.iter().filter(|entry| entry.base == name && entry.version <= driver);
    if forms().next().is_none() {
        return (None, SYMBOL_NOT_FOUND);
    }
    let newest = |per_thread: bool| {
        let fitting = forms().filter(|entry| entry.per_thread == per_thread && entry.version <= version);
        fitting.max_by_key(|entry| entry.version)
    };
    let found = if flags == PER_THREAD { newest(true).or_else(|| newest(false)) } else { newest(false) };
    found.map_or((None, VERSION_NOT_SUFFICIENT), |entry| (Some(entry), SUCCESS))
}

/// The tables are not documented, and nothing that is not documented is emulated.
fn export_table(table: Out<u64>, _id: In<c_void>) -> Answer {
    table.put(0)?;
    Err(Error::NOT_FOUND)
}
