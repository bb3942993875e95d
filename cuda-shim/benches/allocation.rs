//! What the shim adds to `cuMemAlloc` and `cuMemFree`: the same program with and without it, over a driver that does
//! nothing, so that what is left is the shim.
//!
//! `cargo bench -p omni-cuda --bench allocation`. Prints nanoseconds for a call, as medians over rounds that take
//! turns, in time of the thread; more processes with memory make the sum over their slots longer, so that is measured too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step is a failed run")]
#![allow(unsafe_code, reason = "functions of the driver, found by name")]

mod shim;

use shim::{ROUNDS, median, thread_time};
use std::ffi::c_void;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Allocations before they are freed again.
const BATCH: usize = 100;
const BATCHES: usize = 2000;
/// Allocations that are there all the time: what a table of ranges holds in a model.
const HELD: usize = 1000;

/// A driver whose allocations cost nothing. It has what the shim asks for on the way.
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
    if let Some(role) = std::env::var_os("OMNI_BENCH_CLIENT") {
        client(role == "holds");
        return;
    }
    let dir = TempDir::new().unwrap();
    build_driver(dir.path());
    let library = shim::build();
    println!("nanoseconds for a call, 1 MiB each, {HELD} other ranges held; medians of {ROUNDS} rounds");
    for (mode, others) in [("device", 0), ("device", 8), ("unified", 0), ("unified", 8)] {
        let account = dir.path().join(format!("account-{mode}-{others}"));
        let shimmed = |role| {
            let mut command = client_command(dir.path(), role);
            command.env("LD_PRELOAD", &library).env("OMNI_GPU_DRIVER", dir.path()).env("OMNI_GPU_MODE", mode);
            command.env("OMNI_GPU_ACCOUNT", &account).env("OMNI_GPU_LIMIT_BYTES", "1000000000000");
            command
        };
        let holders: Vec<Child> = (0..others).map(|_| holder(shimmed("holds"))).collect();
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            without.push(measured(client_command(dir.path(), "measures")));
            with.push(measured(shimmed("measures")));
        }
        for mut holder in holders {
            drop(holder.stdin.take());
            holder.wait().unwrap();
        }
        for (number, call) in ["cuMemAlloc", "cuMemFree"].into_iter().enumerate() {
            let of_call = |all: &[[f64; 2]]| median(all.iter().map(|both| both[number]).collect());
            let (with, without) = (of_call(&with), of_call(&without));
            let added = with - without;
            println!("{mode:8} {others} others  {call:10} {with:6.1} with, {without:5.1} without: {added:6.1} added");
        }
    }
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

fn client_command(dir: &Path, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env("OMNI_BENCH_CLIENT", role).env("LD_LIBRARY_PATH", dir);
    command
}

/// A process that has memory until its standard input ends.
fn holder(mut client: Command) -> Child {
    let mut holder = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(holder.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    holder
}

/// Nanoseconds of an allocation, and of a free.
fn measured(mut command: Command) -> [f64; 2] {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    let mut numbers = said.split_whitespace().map(|number| number.parse().unwrap());
    [numbers.next().unwrap(), numbers.next().unwrap()]
}

/// Prints nanoseconds for each of the calls, or holds memory.
fn client(holds: bool) {
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
    if holds {
        println!("ready");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        return;
    }
    let (mut allocating, mut freeing) = (Duration::ZERO, Duration::ZERO);
    let mut addresses = [0; BATCH];
    for _ in 0..BATCHES {
        let begin = thread_time();
        for address in &mut addresses {
            // SAFETY: a place of ours.
            assert_eq!(unsafe { allocate(address, 1 << 20) }, 0);
        }
        let between = thread_time();
        for address in addresses {
            // SAFETY: what was allocated.
            assert_eq!(unsafe { free(address) }, 0);
        }
        allocating += between - begin;
        freeing += thread_time() - between;
    }
    let nanos = |time: Duration| time.as_secs_f64() * 1e9 / (BATCH * BATCHES) as f64;
    println!("{} {}", nanos(allocating), nanos(freeing));
}
