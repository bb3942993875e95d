//! Symbol tables of loaded libraries, read as the ELF specification and its GNU hash section lay them out.
//!
//! The shim exports `dlsym` itself, so it cannot ask `dlsym` for libc's own; and only the caller's dynamic section
//! tells which of two loaded CUDA runtimes it was linked to. Allocates nothing and takes no lock of the shim: it may
//! run before `main`, inside another library's allocator.
#![allow(unsafe_code, reason = "tables that the loader has mapped are read through raw pointers")]

use libc::{Elf64_Phdr, Elf64_Sym, dl_phdr_info};
use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::ptr::{NonNull, from_mut, with_exposed_provenance};
use std::slice;

const DT_NEEDED: i64 = 1;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_SONAME: i64 = 14;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const STT_FUNC: u8 = 2;

/// Entry of a dynamic section.
#[repr(C)]
struct Dyn {
    tag: i64,
    value: u64,
}

/// Loaded library, or the program, during a call of [`find`].
pub(crate) struct Library<'a> {
    path: &'a CStr,
    base: usize,
    headers: &'a [Elf64_Phdr],
    dynamic: &'a [Dyn],
}

/// Calls `visit` for everything that is loaded into this namespace, the program first, until it finds something.
/// `visit` must not load or unload: the loader's lock is held.
pub(crate) fn find<T, F: FnMut(&Library<'_>) -> Option<T>>(visit: F) -> Option<T> {
    let mut search = Search { visit, found: None };
    // SAFETY: `step` has the type that is asked for, and treats its argument as the search that it is.
    unsafe { libc::dl_iterate_phdr(Some(step::<T, F>), from_mut(&mut search).cast()) };
    search.found
}

struct Search<T, F> {
    visit: F,
    found: Option<T>,
}

unsafe extern "C" fn step<T, F: FnMut(&Library<'_>) -> Option<T>>(
    info: *mut dl_phdr_info,
    _bytes: usize,
    search: *mut c_void,
) -> c_int {
    // SAFETY: the loader hands on what `find` gave it, which nobody else uses until it returns.
    let search = unsafe { &mut *search.cast::<Search<T, F>>() };
    // SAFETY: the loader's description is valid during this call.
    let info = unsafe { &*info };
    search.found = Library::new(info).and_then(|library| (search.visit)(&library));
    c_int::from(search.found.is_some())
}

impl<'a> Library<'a> {
    /// Parses the headers; `None` without a dynamic section.
    fn new(info: &'a dl_phdr_info) -> Option<Self> {
        let base = usize::try_from(info.dlpi_addr).ok()?;
        // SAFETY: the loader gives the address and number of the program headers, which stay while the library does.
        let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let segment = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        let first: *const Dyn = at(base + usize::try_from(segment.p_vaddr).ok()?);
        let lines = usize::try_from(segment.p_memsz).ok()? / size_of::<Dyn>();
        // SAFETY: the segment is mapped, aligned by the linker, and as long as its header says.
        let dynamic = unsafe { slice::from_raw_parts(first, lines) };
        let path = if info.dlpi_name.is_null() {
            c""
        } else {
            // SAFETY: the loader's name of it, which ends with a zero and stays while the library does.
            unsafe { CStr::from_ptr(info.dlpi_name) }
        };
        Some(Self { path, base, headers, dynamic })
    }

    /// Path it was loaded from; empty for the program.
    pub(crate) fn path(&self) -> &'a CStr {
        self.path
    }

    /// `DT_SONAME`, the name it was built to be found by.
    pub(crate) fn soname(&self) -> Option<&'a CStr> {
        self.text(self.line(DT_SONAME)?)
    }

    /// Names of the libraries that it was linked to.
    pub(crate) fn needed(&self) -> impl Iterator<Item = &'a CStr> {
        self.lines(DT_NEEDED).filter_map(|offset| self.text(offset))
    }

    /// An address lies in one of its mapped segments.
    pub(crate) fn holds(&self, address: usize) -> bool {
        let (offset, loaded) = (address.wrapping_sub(self.base) as u64, libc::PT_LOAD);
        let inside = |header: &Elf64_Phdr| (header.p_vaddr..header.p_vaddr + header.p_memsz).contains(&offset);
        self.headers.iter().any(|header| header.p_type == loaded && inside(header))
    }

    /// Addresses from its first mapped byte to its last.
    pub(crate) fn extent(&self) -> Range<usize> {
        let loaded = || self.headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        let address = |offset| self.base.wrapping_add(usize::try_from(offset).unwrap_or(0));
        let begin = loaded().map(|header| header.p_vaddr).min().unwrap_or(0);
        let end = loaded().map(|header| header.p_vaddr + header.p_memsz).max().unwrap_or(0);
        address(begin)..address(end)
    }

    /// Address of a function that it defines, in whatever version comes first.
    pub(crate) fn function(&self, name: &CStr) -> Option<NonNull<c_void>> {
        let symbols: *const Elf64_Sym = at(self.table(DT_SYMTAB)?);
        let symbol = self.candidates(name)?.find_map(|index| {
            // SAFETY: the hash section names only indices of the symbol table.
            let symbol = unsafe { &*symbols.wrapping_add(index) };
            let is_function = symbol.st_info & 0xf == STT_FUNC && symbol.st_shndx != 0;
            (is_function && self.text(u64::from(symbol.st_name)) == Some(name)).then_some(symbol)
        })?;
        NonNull::new(at::<c_void>(self.base + usize::try_from(symbol.st_value).ok()?).cast_mut())
    }

    /// Indices of symbols with the same hash as the name, but for its last bit. The section is four words (buckets,
    /// first hashed symbol, words of the Bloom filter, its shift), the filter in words of 64 bits, the buckets, and the
    /// hash of each symbol from the first one on, where an odd one ends its bucket.
    fn candidates(&self, name: &CStr) -> Option<impl Iterator<Item = usize>> {
        let head: *const u32 = at(self.table(DT_GNU_HASH)?);
        // SAFETY: the section begins with four words.
        let &[buckets, first, filter, _shift] = unsafe { &*head.cast::<[u32; 4]>() };
        let wanted =
            name.to_bytes().iter().fold(5381_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)));
        let bucket = 4 + 2 * filter as usize + wanted.checked_rem(buckets)? as usize;
        // SAFETY: there are as many buckets as the section says, and the number is less.
        let start = unsafe { *head.wrapping_add(bucket) };
        let hashes = 4 + 2 * filter as usize + buckets as usize;
        let mut next = (start >= first && start != 0).then_some(start);
        let chain = std::iter::from_fn(move || {
            let index = next?;
            // SAFETY: a bucket that is not empty goes on to a hash with its lowest bit set, which ends the chain.
            let hash = unsafe { *head.wrapping_add(hashes + (index - first) as usize) };
            next = (hash & 1 == 0).then_some(index + 1);
            Some((index, hash))
        });
        Some(chain.filter(move |(_, hash)| hash | 1 == wanted | 1).map(|(index, _)| index as usize))
    }

    /// String at an offset of the string table.
    fn text(&self, offset: u64) -> Option<&'a CStr> {
        let first = at(self.table(DT_STRTAB)? + usize::try_from(offset).ok()?);
        // SAFETY: the library's own offsets lead to strings that end with a zero.
        Some(unsafe { CStr::from_ptr(first) })
    }

    /// Address of a table. glibc has relocated it in place, other loaders leave the offset.
    fn table(&self, tag: i64) -> Option<usize> {
        let value = usize::try_from(self.line(tag)?).ok()?;
        Some(if value < self.base { self.base + value } else { value })
    }

    fn line(&self, tag: i64) -> Option<u64> {
        self.lines(tag).next()
    }

    fn lines(&self, tag: i64) -> impl Iterator<Item = u64> {
        self.dynamic.iter().take_while(|line| line.tag != 0).filter(move |line| line.tag == tag).map(|line| line.value)
    }
}

/// Pointer to memory that the loader has mapped.
fn at<T>(address: usize) -> *const T {
    with_exposed_provenance(address)
}
