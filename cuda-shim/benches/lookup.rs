//! What the shim adds to `dlsym`: the same program with and without it preloaded.
//!
//! `cargo bench -p omni-cuda --bench lookup`. Prints nanoseconds for one call, as medians over rounds that take turns, in
//! time of the thread: of a name that is nobody's concern, of an entry of the driver that is left alone, and of one that
//! the shim stands for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step is a failed run")]
#![allow(unsafe_code, reason = "the loader's functions")]

mod shim;

use shim::{ROUNDS, median, thread_time};
use std::ffi::CString;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const CALLS: u32 = 500_000;
const NAMES: [&str; 3] = ["malloc", "cuLaunchKernel", "cuMemAlloc_v2"];

fn main() {
    if let Ok(name) = std::env::var("OMNI_BENCH_NAME") {
        println!("{}", nanoseconds(&name));
        return;
    }
    let folder = TempDir::new().unwrap();
    let source = folder.path().join("driver.c");
    std::fs::write(&source, "int cuLaunchKernel(void) { return 0; }\nint cuMemAlloc_v2(void) { return 0; }\n").unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"]).arg(folder.path().join("libcuda.so.1")).arg(source);
    assert!(cc.status().unwrap().success());
    let library = shim::build();
    println!("nanoseconds for dlsym; medians of {ROUNDS} rounds of {CALLS}");
    for name in NAMES {
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            without.push(measured(folder.path(), name, None));
            with.push(measured(folder.path(), name, Some(&library)));
        }
        let [with, without] = [with, without].map(median);
        println!("{name:16} {with:6.1} with, {without:6.1} without, {:6.1} added", with - without);
    }
}

fn measured(driver: &Path, name: &str, shim: Option<&Path>) -> f64 {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env("OMNI_BENCH_NAME", name).env("LD_LIBRARY_PATH", driver);
    if let Some(shim) = shim {
        command.env("LD_PRELOAD", shim).env("OMNI_GPU_DRIVER", driver).env("OMNI_GPU_LIMIT_BYTES", "1000000000000");
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

/// For one call, in this process.
fn nanoseconds(name: &str) -> f64 {
    // SAFETY: a string that ends with a zero.
    let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    let handle = if name.starts_with("cu") { driver } else { libc::RTLD_DEFAULT };
    let name = CString::new(name).unwrap();
    let look_up = || {
        // SAFETY: a handle of the loader's, and a string that ends with a zero.
        let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
        assert!(!found.is_null(), "{name:?}");
    };
    look_up();
    let begin = thread_time();
    (0..CALLS).for_each(|_| look_up());
    (thread_time() - begin).as_secs_f64() * 1e9 / f64::from(CALLS)
}
