//! `unsafe` only where it must be, and each time with the reason why it holds.

use crate::rust::{code, lines_with};
use crate::tree::Files;

/// Files that may have it, each with what needs it.
const FENCED: &[(&str, &str)] = &[
    ("cuda-shim/benches/allocation.rs", "calls of the GPU driver"),
    ("cuda-shim/benches/lookup.rs", "the loader's functions"),
    ("cuda-shim/src/abi.rs", "pointers that callers of the driver give"),
    ("cuda-shim/src/account/identity.rs", "the auxiliary vector"),
    ("cuda-shim/src/account/mod.rs", "a function that the loader calls"),
    ("cuda-shim/src/account/shared.rs", "mmap, and a mutex that processes share"),
    ("cuda-shim/src/control/mod.rs", "masks of signals: not in std"),
    ("cuda-shim/src/control/socket.rs", "a socket that may stop being ours: not in std"),
    ("cuda-shim/src/driver.rs", "the driver's functions, with the header's types"),
    ("cuda-shim/src/hooks/entry.rs", "exported functions with the driver's signatures"),
    ("cuda-shim/src/loader/elf.rs", "symbol tables of loaded libraries"),
    ("cuda-shim/src/loader/libc_own.rs", "libc's dlsym, known by address"),
    ("cuda-shim/src/moves/ending.rs", "atexit: not in std"),
    ("cuda-shim/tests/control/calls.rs", "calls of the GPU driver, fork, descriptors of others"),
    ("cuda-shim/src/nvml.rs", "exported functions, and what NVML has written"),
    ("cuda-shim/src/process.rs", "mmap of a page that a fork wipes"),
    ("cuda-shim/src/real.rs", "the loader's functions, and addresses that become functions"),
    ("cuda-shim/src/resolve/dlsym.rs", "functions without a frame, and the loader's arguments"),
    ("cuda-shim/src/resolve/proc_address.rs", "exported functions with the driver's signatures"),
    ("cuda-shim/tests/differential/calls.rs", "calls of the GPU driver"),
    ("cuda-shim/tests/memory/calls.rs", "calls of the GPU driver"),
    ("cuda-shim/tests/memory/imports.rs", "a file without a name"),
    ("cuda-shim/tests/memory/processes.rs", "fork, waitpid, dlmopen"),
    ("cuda-shim/src/runtime/bodies.rs", "functions of the CUDA runtime and what their callers point to"),
    ("cuda-shim/src/runtime/loaded.rs", "a library that is in use is kept loaded"),
    ("cuda-shim/src/runtime/mod.rs", "functions without a frame"),
    ("engine/batcher/tests/steady.rs", "an allocator that counts"),
    ("engine/checkpoint/src/map.rs", "mmap of files of weights"),
    ("engine/kernels/cpu/src/attention/tile.rs", "outputs of heads that threads share"),
    ("engine/kernels/cpu/src/cache.rs", "blocks that the threads of a step write"),
    ("engine/kernels/cpu/src/detect/trial.rs", "fork, and instructions that may not be there"),
    ("engine/kernels/cpu/src/forward/attend.rs", "rows that the threads of a step share"),
    ("engine/kernels/cpu/src/forward/rows.rs", "rows that the threads of a step share"),
    ("engine/kernels/cpu/src/matrix/kernel.rs", "functions for instructions that were found"),
    ("engine/kernels/cpu/src/matrix/line.rs", "aligned memory, seen as numbers"),
    ("engine/kernels/cpu/src/matrix/multiply.rs", "outputs that threads share"),
    ("engine/kernels/cpu/src/matrix/simd_amx.rs", "instructions of AMX"),
    ("engine/kernels/cpu/src/matrix/simd_avx2.rs", "vector loads and stores"),
    ("engine/kernels/cpu/src/matrix/simd_avx512.rs", "vector loads and stores"),
    ("engine/kernels/cpu/src/matrix/simd_avx512_input.rs", "vector loads and stores"),
    ("engine/kernels/cpu/src/matrix/tests/tiles.rs", "a signal handler that computes instructions"),
    ("engine/kernels/cpu/src/pages.rs", "mmap"),
    ("engine/kernels/cpu/src/shared.rs", "memory that several threads write"),
    ("engine/kernels/cpu/src/simd/x86.rs", "vector instructions"),
    ("engine/kernels/cpu/src/threads.rs", "work that is borrowed by other threads"),
    ("engine/sampler/src/vector.rs", "functions for instructions that were found"),
    ("engine/kernels/cpu/tests/memory.rs", "an allocator that counts"),
    ("engine/server/src/descriptor.rs", "a descriptor of the process's start"),
    ("gateway/auth/src/peer.rs", "SO_PEERGROUPS: not in nix"),
    ("meminfo-fs/src/mount.rs", "fsopen, fsconfig, fsmount: not in nix"),
    ("scheduler/src/allocator.rs", "mallinfo2, malloc_trim: not in nix"),
    ("scheduler/gpu/src/cuda.rs", "calls into the GPU driver"),
    ("scheduler/gpu/src/nvml.rs", "calls into the GPU driver"),
    ("scheduler/packet-socket/src/lib.rs", "registering a descriptor with the runtime"),
    ("scheduler/src/startup/sockets.rs", "listening sockets from the service manager"),
    ("scheduler/usage/src/segment.rs", "mmap of a file that records are stored in"),
    ("tests/cuda-sim/runtime/src/device.rs", "exported C functions, calls of the driver"),
    ("tests/cuda-sim/runtime/src/driver.rs", "a library opened at run time"),
    ("tests/cuda-sim/runtime/src/error.rs", "exported C functions"),
    ("tests/cuda-sim/runtime/src/memory.rs", "exported C functions, calls of the driver"),
    ("tests/cuda-sim/runtime/src/properties.rs", "exported C functions, calls of the driver"),
    ("tests/cuda-sim/runtime/src/stream.rs", "exported C functions, calls of the driver"),
    ("tests/cuda-sim/card/src/kernel.rs", "mmap, byte-range locks, the monotonic clock"),
    ("tests/cuda-sim/src/abi.rs", "the C side of every entry: exported symbols, pointers of callers"),
    ("tests/cuda-sim/tests/driver/caller.rs", "calls of the driver by name, as a C program's"),
    ("tests/cuda-sim/src/backing.rs", "mappings that stand for device memory, copies between addresses"),
    ("tests/cuda-sim/src/nvml/entries.rs", "exported C functions"),
    ("tests/cuda-sim/src/nvml/telemetry.rs", "exported C functions"),
    ("tests/cuda-sim/src/nvml/telemetry.rs", "exported C functions"),
    ("tests/cuda-sim/src/sharable.rs", "memfd, mappings at fixed places"),
    ("tests/properties/src/memory.rs", "an allocator that counts"),
    ("worker/cgroup/src/placeholder.rs", "fork: the child only waits"),
    ("worker/cgroup/tests/support/mod.rs", "children join their group between fork and exec"),
    ("protocol/engine/src/packet.rs", "descriptors that arrive with a message"),
    ("worker/process/src/pidfd.rs", "pidfd_open, pidfd_send_signal: not in nix"),
    ("worker/sandbox/src/kernel.rs", "system calls that are not in nix"),
    ("worker/sandbox/src/loop_device.rs", "ioctls of loop devices"),
    ("worker/sandbox/src/pid1.rs", "fork, raw wait status, signal handler"),
];

/// How far above its block an explanation may begin, in lines.
const ABOVE: usize = 6;

pub(crate) fn fenced(path: &str, source: &str) -> Vec<String> {
    if FENCED.iter().any(|(file, _)| *file == path) {
        return Vec::new();
    }
    lines_with(source, "unsafe")
        .into_iter()
        .map(|line| format!("{path}:{line}: unsafe outside the named files"))
        .collect()
}

/// Names in the list that need no exception any more.
pub(crate) fn stale(files: &Files) -> Vec<String> {
    let uses = |path: &str| files.get(path).is_some_and(|source| !lines_with(source, "unsafe").is_empty());
    FENCED
        .iter()
        .filter(|(path, _)| !uses(path))
        .map(|(path, _)| format!("{path}: has no unsafe; take it off the list"))
        .collect()
}

pub(crate) fn explained(path: &str, source: &str) -> Vec<String> {
    let (blank, lines) = (code(source), source.lines().collect::<Vec<_>>());
    // A function says what its caller must hold under "# Safety", which clippy checks.
    let is_block = |line: &str| {
        line.split("unsafe").skip(1).any(|after| {
            let after = after.trim_start();
            after.starts_with('{') || after.starts_with("impl") || after.is_empty()
        })
    };
    let is_explained = |at: usize| lines[at.saturating_sub(ABOVE)..=at].iter().any(|line| line.contains("SAFETY:"));
    let found = blank.lines().enumerate().filter(|(at, line)| is_block(line) && !is_explained(*at));
    found.map(|(at, _)| format!("{path}:{}: unsafe without `// SAFETY:`", at + 1)).collect()
}

#[test]
fn unsafe_elsewhere_is_found() {
    assert_eq!(fenced("scheduler/src/main.rs", "fn f() {}\nunsafe { f() }").len(), 1);
    assert_eq!(fenced("scheduler/src/main.rs", "// unsafe\n\"unsafe\"; unsafe_code"), Vec::<String>::new());
    assert_eq!(fenced("worker/cgroup/src/placeholder.rs", "unsafe { f() }"), Vec::<String>::new());
}

#[test]
fn an_exception_without_use_is_found() {
    assert_eq!(stale(&Files::new()).len(), FENCED.len());
    let all = FENCED.iter().map(|(path, _)| ((*path).to_owned(), "unsafe {}".to_owned())).collect();
    assert_eq!(stale(&all), Vec::<String>::new());
}

#[test]
fn an_unexplained_block_is_found() {
    assert_eq!(explained("a.rs", "fn f() {\n    unsafe { g() }\n}").len(), 1);
    assert_eq!(explained("a.rs", "unsafe impl Send for X {}").len(), 1);
    assert_eq!(explained("a.rs", "// SAFETY: g takes no memory.\nunsafe { g() }"), Vec::<String>::new());
    assert_eq!(explained("a.rs", "/// # Safety\n/// Only once.\nunsafe fn g() {}"), Vec::<String>::new());
    assert_eq!(explained("a.rs", &format!("// SAFETY: far\n{}unsafe {{ g() }}", "\n".repeat(10))).len(), 1);
}
