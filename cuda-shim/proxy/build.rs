//! Soname of the proxy, and the libraries that it needs.
//!
//! A linker copies the sonames of the libraries it is given into the needs of its output. So it is given two empty
//! libraries with the sonames that the proxy has to need.

use omni_gpu_protocol::env::inside;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--no-as-needed");
    let driver = format!("{}/libcuda.so.1", inside::DRIVER);
    for (file, name) in [("shim.so", inside::SHIM), ("driver.so", driver.as_str())] {
        println!("cargo:rustc-cdylib-link-arg={}", empty_library(file, name)?.display());
    }
    Ok(())
}

fn empty_library(file: &str, name: &str) -> Result<PathBuf, Box<dyn Error>> {
    let library = Path::new(&std::env::var("OUT_DIR")?).join(file);
    let arguments = ["-shared", "-nostdlib", "-x", "c", "/dev/null", "-o"];
    let status = Command::new("cc").args(arguments).arg(&library).arg(format!("-Wl,-soname,{name}")).status()?;
    if status.success() {
        Ok(library)
    } else {
        Err(format!("cc could not link {}: {status}", library.display()).into())
    }
}
