//! Cost of the shim in `dlsym`: the same program with and without it preloaded.
//!
//! `cargo bench -p omni-cuda --bench lookup`. For a name that is not the driver's, for an entry that is left alone, and
//! for a hooked one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step is a failed run")]
#![allow(unsafe_code, reason = "the loader's functions")]

mod shim;

use shim::{BATCH, added, report, time};
use std::ffi::CString;
use std::process::Command;
use tempfile::TempDir;

const DRIVER: &str = "int cuLaunchKernel(void) { return 0; }\nint cuMemAlloc_v2(void) { return 0; }\n";
const NAME: &str = "OMNI_BENCH_NAME";

fn main() {
    if let Ok(name) = std::env::var(NAME) {
        client(&name);
        return;
    }
    let dir = TempDir::new().unwrap();
    let source = dir.path().join("driver.c");
    std::fs::write(&source, DRIVER).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"]).arg(dir.path().join("libcuda.so.1")).arg(source);
    assert!(cc.status().unwrap().success());
    let library = shim::build();
    let mut criterion = shim::criterion();
    let mut group = criterion.benchmark_group("added, dlsym");
    for name in ["malloc", "cuLaunchKernel", "cuMemAlloc_v2"] {
        let plain = || {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.env(NAME, name).env("LD_LIBRARY_PATH", dir.path());
            command
        };
        let shimmed = || {
            let mut command = plain();
            command.env("LD_PRELOAD", &library).env("OMNI_GPU_DRIVER", dir.path());
            command.env("OMNI_GPU_LIMIT_BYTES", "1000000000000");
            command
        };
        group.bench_function(name, |bencher| bencher.iter_custom(|calls| added(calls, plain(), shimmed())));
    }
    group.finish();
    criterion.final_summary();
}

/// Measures the look-up of `name` in this process.
fn client(name: &str) {
    // SAFETY: a string that ends with a zero.
    let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    let handle = if name.starts_with("cu") { driver } else { libc::RTLD_DEFAULT };
    let name = CString::new(name).unwrap();
    let look_up = || {
        // SAFETY: a handle of the loader's, and a string that ends with a zero.
        let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
        assert!(!found.is_null(), "{name:?}");
    };
    report(|| time(|| (0..BATCH).for_each(|_| look_up())));
}
