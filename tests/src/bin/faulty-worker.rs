//! Takes the place of `omni-worker` in tests of faults: see `omni_tests::fault`. With arguments it is the tracer.
#![allow(clippy::expect_used, reason = "a failed step of a test is a failed test")]

use nix::unistd::Pid;
use omni_tests::fault::trace::{tracer, worker};
use std::env;
use std::path::Path;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments[..] {
        [pid, plan] => tracer(Pid::from_raw(pid.parse().expect("a process id")), Path::new(plan)),
        _ => eprintln!("faulty-worker: {}", worker()),
    }
}
