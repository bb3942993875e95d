//! Dynamic loader of the process: symbol tables of loaded libraries, and libc's own functions.

pub(crate) mod elf;
pub(crate) mod libc_own;

use std::ops::Range;
use std::sync::OnceLock;

/// An address lies in this library.
pub(crate) fn is_own(address: usize) -> bool {
    static OWN: OnceLock<Range<usize>> = OnceLock::new();
    let here = is_own as *const () as usize;
    let own =
        OWN.get_or_init(|| elf::find(|library| library.holds(here).then(|| library.extent())).unwrap_or_default());
    own.contains(&address)
}
