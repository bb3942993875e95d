//! Link arguments of the shim.

use std::error::Error;
use std::path::PathBuf;

/// Linker script for the C library: libc itself, and not glibc's loader by name. musl's loader, which reads
/// `LD_PRELOAD` too, ends every program whose preloaded library needs one that is not there; and the symbols needed of
/// glibc's loader are in every process that it has loaded.
const LIBC: &str = "INPUT(-l:libc.so.6 -lc_nonshared)\n";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    // Soname by which the proxy needs this library, and finds the preloaded one.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libomni_cuda.so");
    // Calls within the library stay within it when another library with the same functions is preloaded before it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    let folder = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    std::fs::write(folder.join("libc.so"), LIBC)?;
    println!("cargo:rustc-cdylib-link-arg=-L{}", folder.display());
    Ok(())
}
