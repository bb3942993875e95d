//! `/etc/ld.so.cache`: where the dynamic linker finds a library. Pure.
//!
//! The form is that of glibc since 2.2 (`elf/cache.c`, `dl-cache.h`): a magic text, the number of entries, then entries
//! of 24 bytes with the offsets of a name and a path. A cache in the form before that, which 2.32 and later do not
//! write, may stand in front of it.
//!
//! Invariants: no content makes this fail or read much; unknown content has no paths.

use std::path::PathBuf;

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
/// Bytes from the magic to the first entry.
const HEADER: usize = 48;
const ENTRY: usize = 24;
/// Longer than any path of a library.
const PATH_MAX: usize = 4096;

/// The paths of all libraries whose name is accepted, in the linker's own order. It looks for the machine's kind of each
/// later than here: a cache also names libraries for other processors.
pub(super) fn paths(cache: &[u8], accept: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Some(start) = cache.windows(MAGIC.len()).position(|window| window == MAGIC) else { return Vec::new() };
    let cache = cache.get(start..).unwrap_or_default();
    let count = number(cache, MAGIC.len()).unwrap_or(0);
    let entries = cache.get(HEADER..).unwrap_or_default().chunks_exact(ENTRY).take(count);
    let path = |entry: &[u8]| {
        let name = text(cache, number(entry, 4)?)?;
        accept(name).then(|| text(cache, number(entry, 8)?).map(PathBuf::from))?
    };
    entries.filter_map(path).filter(|path| path.is_absolute()).collect()
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    u32::from_ne_bytes(bytes.try_into().ok()?).try_into().ok()
}

/// The text at an offset, up to its zero byte.
fn text(bytes: &[u8], at: usize) -> Option<&str> {
    let rest = bytes.get(at..)?;
    let rest = rest.get(..rest.len().min(PATH_MAX))?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    str::from_utf8(rest.get(..end)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cache(entries: &[(&str, &str)]) -> Vec<u8> {
        let mut strings = Vec::new();
        let base = HEADER + entries.len() * ENTRY;
        let mut place = |text: &str| {
            let at = base + strings.len();
            strings.extend(text.bytes().chain([0]));
            u32::try_from(at).unwrap().to_ne_bytes()
        };
        let mut cache = MAGIC.to_vec();
        cache.extend(u32::try_from(entries.len()).unwrap().to_ne_bytes());
        cache.resize(HEADER, 0);
        for (name, path) in entries {
            let mut entry = vec![0; 4];
            entry.extend(place(name));
            entry.extend(place(path));
            entry.resize(ENTRY, 0);
            cache.extend(entry);
        }
        cache.extend(strings);
        cache
    }

    #[test]
    fn libraries_are_found_by_name() {
        let entries = [("libc.so.6", "/lib/libc.so.6"), ("libcuda.so.1", "/a/libcuda.so.1"), ("libcuda.so.1", "/b/x")];
        let cuda = |cache: &[u8]| paths(cache, |name| name == "libcuda.so.1");
        let found = ["/a/libcuda.so.1", "/b/x"].map(PathBuf::from);
        assert_eq!(cuda(&cache(&entries)), found);
        let behind_the_old_form = [b"ld.so-1.7.0\0".to_vec(), vec![0; 100], cache(&entries)].concat();
        assert_eq!(cuda(&behind_the_old_form), found);
        assert_eq!(cuda(&cache(&[("libcuda.so.1", "relative")])), Vec::<PathBuf>::new());
        assert_eq!(cuda(b""), Vec::<PathBuf>::new());
    }

    #[test]
    fn this_machines_cache_names_the_c_library() {
        let own = std::fs::read("/etc/ld.so.cache").unwrap();
        let found = paths(&own, |name| name == "libc.so.6");
        assert!(!found.is_empty() && found.iter().all(|path| path.exists()), "{found:?}");
    }

    proptest! {
        #[test]
        fn no_content_is_trusted(at in 0_usize..200, bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut cache = cache(&[("libcuda.so.1", "/a/libcuda.so.1"), ("libc.so.6", "/lib/libc.so.6")]);
            let end = (at + bytes.len()).min(cache.len());
            let at = at.min(end);
            cache.splice(at..end, bytes);
            let _ = paths(&cache, |_| true);
            let _ = paths(&cache[..at], |_| true);
        }
    }
}
