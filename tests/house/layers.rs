//! Layer rules of the design: what only one layer may name, and what a pure module may not.

use crate::rust::lines_with;
use crate::tree::is_test;

/// Words of the code that belong to some places only. Tests may prepare their own world.
struct Confined {
    words: &'static [&'static str],
    only: &'static [&'static str],
    why: &'static str,
}

const CONFINED: &[Confined] = &[
    Confined {
        words: &[
            "clone3",
            "nix::sched",
            "setns",
            "unshare",
            "pivot_root",
            "chroot",
            "nix::unistd::execve",
            "execveat",
            "fexecve",
        ],
        only: &["worker/sandbox/src/"],
        why: "only omni-sandbox makes namespaces and starts programs in them",
    },
    Confined {
        words: &["nix::mount", "fsopen", "fsmount", "open_tree", "move_mount", "mount_setattr", "umount2"],
        only: &["worker/sandbox/src/", "meminfo-fs/src/mount.rs"],
        why: "only omni-sandbox mounts; meminfo-fs makes the one mount that is its own, for the worker to attach",
    },
    Confined {
        words: &["process::Command", "posix_spawn"],
        only: &[
            "worker/src/",
            "worker/environment/src/",
            "worker/launcher/src/",
            "worker/process/src/",
            "scheduler/src/startup/programs.rs",
            "scheduler/takeover/src/program.rs",
            "omnictl/src/commands/check/",
            "omnictl/src/commands/doctor/",
            "cuda-shim/proxy/build.rs", // the linker
        ],
        why: "programs are started by the privileged side, by a scheduler that starts its launcher, by the author's check, and by the \
              doctor, who asks the node's own programs",
    },
    Confined { words: &["fuser"], only: &["meminfo-fs/src/"], why: "only meminfo-fs knows FUSE" },
    Confined { words: &["rusqlite"], only: &["scheduler/jobs/src/"], why: "only omni-jobs has a database" },
    Confined { words: &["cgroups_rs"], only: &["worker/cgroup/src/"], why: "control groups are behind omni-cgroup" },
    Confined {
        words: &["SystemTime", "ClockId::CLOCK_REALTIME"],
        only: &[
            "engine/server/src/alone/service.rs",         // when an answer was made
            "omnictl/src/commands/deploy/publish.rs",     // the name of a draft
            "omnictl/src/commands/usage.rs",              // how far back records are read
            "scheduler/usage/src/log.rs",                 // when a file was begun, beside times of files
            "scheduler/supervisor/src/clock.rs",          // since when something is
            "scheduler/traces/src/tracer.rs",             // times of spans
            "worker/snapshot/src/content.rs",             // beside times of files, which are of the same clock
            "worker/snapshot/src/tree.rs",                // the same
            "worker/launcher/src/caches.rs",              // the same
            "worker/weights/downloader/src/signature.rs", // a signature says when it was made
            "worker/launcher/src/main_loop/instances.rs", // the same, for caches.rs
            "worker/environment/src/build.rs",            // when an environment was made
            "worker/launcher/src/main_loop/builds.rs",    // since when a build waits or runs
            "worker/instance/src/setup.rs",               // when a line was logged
            "worker/sandbox/src/proc_files.rs",           // since when the machine runs, for /proc/stat
        ],
        why: "the time of day jumps: it is for people to read, and no decision rests on it",
    },
    Confined {
        words: &["StatusCode"],
        only: &["gateway/", "scheduler/inference/src/", "scheduler/admin/src/", "omnictl/src/client.rs"],
        why: "status codes belong to the HTTP module and the client",
    },
];

/// Names that a pure module may not use: the runtime, system calls, the clock, files, sockets, threads, the
/// environment, chance. (Constants of libc and writers into memory are plain values.)
const IMPURE: &[&str] = &[
    "tokio",
    "hyper",
    "nix",
    "async",
    "await",
    "Instant::now",
    ".elapsed()",
    "SystemTime",
    "std::fs",
    "std::net",
    "std::env",
    "std::thread",
    "std::process",
    "std::os::fd",
    "fastrand",
    "tracing",
    // A list could hide one of the above.
    "std::{",
];

/// Modules that decide: they know time only as a number. A header that says "Pure." puts any other file under the same
/// rule, except that it may be given an `Instant`.
const POLICY: &[&str] = &["scheduler/policy/"];

pub(crate) fn confined(path: &str, source: &str) -> Vec<String> {
    if is_test(path) {
        return Vec::new();
    }
    let foreign = |rule: &&Confined| !rule.only.iter().any(|place| path.starts_with(place));
    let found = |rule: &Confined| {
        let lines = |word: &&'static str| {
            lines_with(source, word)
                .into_iter()
                .map(move |line| format!("{path}:{line}: `{word}`: {}", rule.why))
                .collect::<Vec<_>>()
        };
        rule.words.iter().flat_map(lines).collect::<Vec<_>>()
    };
    CONFINED.iter().filter(foreign).flat_map(found).collect()
}

pub(crate) fn pure(path: &str, source: &str) -> Vec<String> {
    let claims = source.lines().take_while(|line| line.starts_with("//!")).any(says_pure);
    let policy = POLICY.iter().any(|place| path.starts_with(place));
    if is_test(path) || !(claims || policy) {
        return Vec::new();
    }
    // A module's own tests, at the end of the file, may use what they need.
    let product = source.split("#[cfg(test)]").next().unwrap_or(source);
    let lines = |word: &&str| {
        lines_with(product, word)
            .into_iter()
            .map(|line| format!("{path}:{line}: `{word}` in a pure module"))
            .collect::<Vec<_>>()
    };
    IMPURE.iter().chain(policy.then_some(&"Instant")).flat_map(lines).collect()
}

fn says_pure(line: &str) -> bool {
    line.contains("Pure.") || line.contains("Pure:")
}

#[test]
fn a_layer_that_reaches_over_is_found() {
    let bad = [
        ("scheduler/src/main.rs", "use nix::mount::mount;"),
        ("omnictl/src/main.rs", "unsafe { clone3(args) };"),
        ("meminfo-fs/src/server.rs", "nix::sched::unshare(flags)?;"),
        ("worker/instance/src/lib.rs", "use fuser::Session;"),
        ("worker/launcher/src/start.rs", "cgroups_rs::fs::Cgroup::load(hier, path)"),
        ("scheduler/supervisor/src/model/actor/mod.rs", "hyper::StatusCode::OK"),
        ("scheduler/supervisor/src/model/actor/mod.rs", "std::process::Command::new(program)"),
        ("worker/launcher/src/keeper.rs", "SystemTime::now()"),
    ];
    for (path, source) in bad {
        assert!(!confined(path, source).is_empty(), "{path}: {source}");
    }
    let good = [
        ("worker/sandbox/src/root.rs", "use nix::mount::mount;"),
        ("meminfo-fs/src/mount.rs", "fsopen(name)"),
        ("meminfo-fs/tests/mounted/support.rs", "use nix::sched::unshare;"),
        ("gateway/workers-ai/src/error.rs", "StatusCode::NOT_FOUND"),
        ("scheduler/src/main.rs", "// the worker calls clone3\nlet remount = 1;"),
    ];
    for (path, source) in good {
        assert_eq!(confined(path, source), Vec::<String>::new());
    }
}

#[test]
fn an_impure_policy_is_found() {
    for bad in [
        "use tokio::sync;",
        "let now = Instant::now();",
        "start.elapsed();",
        "std::fs::read(path)",
        "async fn step() {}",
        "use std::{fs, fmt};",
        "fastrand::f64()",
    ] {
        assert!(!pure("scheduler/policy/src/liveness.rs", bad).is_empty(), "{bad}");
        assert_eq!(
            pure("worker/instance/src/journal/mod.rs", &format!("//! Bytes to lines. Pure.\n\n{bad}")).len(),
            1,
            "{bad}"
        );
        assert_eq!(pure("worker/instance/src/lib.rs", bad), Vec::<String>::new());
    }
    let good =
        "//! Pure.\nuse std::time::Duration;\n// not Instant\n#[cfg(test)]\nmod tests { use std::fs; use std::net; }";
    assert_eq!(pure("scheduler/policy/src/backoff.rs", good), Vec::<String>::new());
}
