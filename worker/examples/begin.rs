//! How long it takes until a program has begun: in a sandbox of ours, or under a command that makes one of its own.
//!
//! `begin WORKER PARENT`, for `bench/sandbox.py`. Each line of standard input is one start, a JSON array with the words of
//! the command, or an empty one for ours: two control groups below PARENT and the program WORKER (`omni-worker`) with a
//! specification, as the launcher does it. Each line of standard output is its time in nanoseconds, up to the first byte
//! that the program writes. What a start made is gone before the next one begins.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a benchmark stops at the first surprise")]

use omni_cgroup::{Cgroupfs, Driver, Group, GroupName, Limits, Part};
use omni_sandbox::SandboxSpec;
use omni_worker_spec::{BuildSpec, WorkerSpec};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, io, thread};

/// Settings that the peers have, too: see `bench/sandbox.py`.
const LIMITS: Limits = Limits { memory_bytes: Some(256 << 20), pids: Some(64), cpu_millis: Some(1000) };
const TMP_BYTES: u64 = 16 << 20;
/// A user that nobody has.
const UID: u32 = 3_999_999;
/// All that the program does is to write, and to end.
const PROGRAM: [&str; 2] = ["/usr/bin/echo", "begun"];

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [worker, parent] = &arguments[..] else { panic!("usage: begin WORKER PARENT") };
    let driver = Cgroupfs::detect(parent).expect("control groups, as root");
    for (number, line) in io::stdin().lines().enumerate() {
        let words: Vec<String> = serde_json::from_str(&line.unwrap()).expect("the words of a command");
        let took = match &words[..] {
            [] => ours(Path::new(worker), &driver, &format!("{number:012x}")),
            [program, arguments @ ..] => theirs(Command::new(program).args(arguments)),
        };
        println!("{}", took.as_nanos());
    }
}

fn theirs(command: &mut Command) -> Duration {
    let begun = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    await_word(&mut child);
    let took = begun.elapsed();
    end(child);
    took
}

fn ours(worker: &Path, driver: &Cgroupfs, instance: &str) -> Duration {
    let begun = Instant::now();
    let own = driver.create(&GroupName::new(instance, Part::Worker).unwrap(), &Limits::default()).unwrap();
    let cgroup = driver.create(&GroupName::new(instance, Part::Model).unwrap(), &LIMITS).unwrap();
    let spec = serde_json::to_vec(&WorkerSpec::Build(Box::new(BuildSpec { cgroup, sandbox: sandbox() }))).unwrap();
    let mut child = Command::new(worker).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&spec).unwrap();
    let pid = child.id().cast_signed();
    let took = thread::scope(|scope| {
        // The launcher waits for this, too; the program does not.
        let taken = scope.spawn(|| Group::open(&own).unwrap().take(pid));
        await_word(&mut child);
        let took = begun.elapsed();
        taken.join().unwrap().unwrap();
        took
    });
    end(child);
    driver.destroy(instance).unwrap();
    took
}

fn sandbox() -> SandboxSpec {
    SandboxSpec {
        hostname: "begin".to_owned(),
        uid: UID,
        gid: UID,
        binds: Vec::new(),
        devices: Vec::new(),
        cache: None,
        weights: None,
        tmp_bytes: TMP_BYTES,
        host_network: false,
        env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
        argv: PROGRAM.map(str::to_owned).into(),
        cwd: "/".into(),
    }
}

fn await_word(child: &mut Child) {
    let read = child.stdout.as_mut().unwrap().read(&mut [0; 64]).unwrap();
    assert!(read > 0, "no word of the program: {:?}", child.wait());
}

fn end(mut child: Child) {
    let status = child.wait().unwrap();
    assert!(status.success(), "it ended with {status}");
}
