//! Cost of the shim in `cuMemAlloc` and `cuMemFree`: the same program with and without it, over a driver that does
//! nothing, so that the difference is the shim.
//!
//! `cargo bench -p omni-cuda --bench allocation`. Alone, and beside eight other processes of the instance that have
//! memory: they are in the sum that has to stay below the limit.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step is a failed run")]
#![allow(unsafe_code, reason = "functions of the driver, found by name")]

mod shim;

use shim::{BATCH, added, report, time};
use std::ffi::c_void;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Live allocations during the measurement, as many as a model's table of ranges holds.
const HELD: usize = 1000;
/// Limit of a card of 24 GiB: nine processes have 9 of them, and the rest is gone through again and again.
const LIMIT_BYTES: &str = "25769803776";
const ROLE: &str = "OMNI_BENCH_CLIENT";

/// Driver whose allocations cost nothing, with the entries that the shim calls on the way.
const DRIVER: &str = r"
static unsigned long long next = 1ull << 40;
int cuInit(unsigned flags) { return flags ? 1 : 0; }
int cuDriverGetVersion(int *version) { *version = 12090; return 0; }
int cuCtxGetCurrent(void **context) { *context = (void *)1; return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { (void)attribute; (void)device; *value = 1; return 0; }
int cuMemAlloc_v2(unsigned long long *address, unsigned long long bytes) { *address = next; next += bytes; return 0; }
int cuMemAllocManaged(unsigned long long *address, unsigned long long bytes, unsigned flags) {
    (void)flags; return cuMemAlloc_v2(address, bytes);
}
struct location { int kind, id; };
int cuMemAdvise_v2(unsigned long long at, unsigned long long bytes, int advice, struct location where) {
    (void)at; (void)bytes; (void)advice; (void)where; return 0;
}
int cuMemFree_v2(unsigned long long address) { (void)address; return 0; }
";

fn main() {
    if let Ok(role) = std::env::var(ROLE) {
        client(&role);
        return;
    }
    let dir = TempDir::new().unwrap();
    build_driver(dir.path());
    let library = shim::build();
    let mut criterion = shim::criterion();
    for (mode, others) in [("device", 0), ("device", 8), ("unified", 0), ("unified", 8)] {
        let account = dir.path().join(format!("account-{mode}-{others}"));
        let plain = |role: &str| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.env(ROLE, role).env("LD_LIBRARY_PATH", dir.path());
            command
        };
        let shimmed = |role: &str| {
            let mut command = plain(role);
            command.env("LD_PRELOAD", &library).env("OMNI_GPU_DRIVER", dir.path()).env("OMNI_GPU_MODE", mode);
            command.env("OMNI_GPU_ACCOUNT", &account).env("OMNI_GPU_LIMIT_BYTES", LIMIT_BYTES);
            command
        };
        let holders: Vec<Child> = (0..others).map(|_| holder(shimmed("holds"))).collect();
        let mut group = criterion.benchmark_group(format!("added, {mode}, {others} others"));
        for call in ["cuMemAlloc", "cuMemFree"] {
            group.bench_function(call, |bencher| {
                bencher.iter_custom(|calls| added(calls, plain(call), shimmed(call)));
            });
        }
        group.finish();
        for mut holder in holders {
            drop(holder.stdin.take());
            holder.wait().unwrap();
        }
    }
    criterion.final_summary();
}

fn build_driver(dir: &Path) {
    let source = dir.join("driver.c");
    std::fs::write(&source, DRIVER).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic", "-o"])
        .arg(dir.join("libcuda.so.1"))
        .arg(source);
    assert!(cc.status().unwrap().success());
}

/// Process that holds memory until its standard input ends.
fn holder(mut client: Command) -> Child {
    let mut holder = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(holder.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    holder
}

/// Measures one of the calls, or holds memory.
fn client(role: &str) {
    // SAFETY: a string that ends with a zero.
    let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    assert!(!driver.is_null(), "no driver");
    let find = |name: &std::ffi::CStr| {
        // SAFETY: a string that ends with a zero.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        assert!(!address.is_null(), "{name:?}");
        address
    };
    type Allocate = unsafe extern "C" fn(*mut u64, usize) -> i32;
    type Free = unsafe extern "C" fn(u64) -> i32;
    // SAFETY: the type is the header's.
    let allocate = unsafe { std::mem::transmute::<*mut c_void, Allocate>(find(c"cuMemAlloc_v2")) };
    // SAFETY: the type is the header's.
    let free = unsafe { std::mem::transmute::<*mut c_void, Free>(find(c"cuMemFree_v2")) };
    let mut address = 0;
    for _ in 0..HELD {
        // SAFETY: a place of ours.
        assert_eq!(unsafe { allocate(&raw mut address, 1 << 20) }, 0);
    }
    if role == "holds" {
        println!("ready");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        return;
    }
    let mut addresses = [0; BATCH];
    report(|| {
        let allocating = time(|| {
            for address in &mut addresses {
                // SAFETY: a place of ours.
                assert_eq!(unsafe { allocate(address, 1 << 20) }, 0);
            }
        });
        let freeing = time(|| {
            for address in addresses {
                // SAFETY: what was allocated.
                assert_eq!(unsafe { free(address) }, 0);
            }
        });
        if role == "cuMemAlloc" { allocating } else { freeing }
    });
}
