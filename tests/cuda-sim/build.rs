//! The library's name for the loader, and stubs for every entry of the table that no module implements.
//!
//! An entry is implemented when it stands in an `api!` block: `fn cuName` or, after it, `| cuName_ptsz`.

use omni_cuda_entries::ENTRIES;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // A preloaded shim takes the place of exported symbols: not for calls of the driver to itself.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    let mut implemented = BTreeSet::new();
    scan(Path::new("src"), &mut implemented)?;
    let stubs: Vec<&str> =
        ENTRIES.iter().map(|entry| entry.symbol).filter(|symbol| !implemented.contains(*symbol)).collect();
    let path = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("stubs.rs");
    fs::write(path, format!("stubs! {{ {} }}\n", stubs.join(" ")))
}

fn scan(dir: &Path, found: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            scan(&path, found)?;
        } else {
            let source = fs::read_to_string(&path)?;
            let words: Vec<&str> = source.split(|c: char| c.is_whitespace() || c == '(').collect();
            let pairs = words.windows(2).filter(|pair| matches!(pair[0], "fn" | "|"));
            found.extend(pairs.map(|pair| pair[1].to_owned()).filter(|name| name.starts_with("cu")));
        }
    }
    Ok(())
}
