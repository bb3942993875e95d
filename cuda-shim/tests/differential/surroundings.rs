//! Surroundings of the driver in programs: threads of all sizes, children of every sort, descriptors and memory that
//! run out.

use crate::calls::{at, call};
use crate::instance::{Instance, MIB, say, wait};
use omni_gpu_protocol::account::Use;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;

const LIMIT: u64 = 10 * MIB;

fn each(test: impl Fn(&Instance)) {
    for (driver, mode) in [(12_090, "device"), (12_090, "unified"), (13_050, "unified")] {
        test(&Instance::new(driver, mode, LIMIT));
    }
}

/// Runs a client with expected output that leaves nothing in the account.
fn expect(instance: &Instance, scenario: &str, said: &[&str]) {
    let mut client = instance.start(scenario);
    said.iter().for_each(|said| client.expect(said));
    assert_eq!(instance.used(), Use::default(), "{scenario}");
    client.go_on();
    client.end();
}

#[test]
fn a_thread_with_the_smallest_stack_allocates() {
    each(|instance| expect(instance, "small-stack", &["allocated and freed"]));
}

pub(crate) fn small_stack() {
    let context = begin();
    // Stack as small as the system allows: the number is rounded up to that.
    let small = thread::Builder::new().stack_size(1).spawn(move || churn(context)).unwrap();
    small.join().unwrap();
    say("allocated and freed");
    wait();
}

#[test]
fn a_thousand_threads_allocate() {
    each(|instance| expect(instance, "many-threads", &["allocated and freed"]));
}

pub(crate) fn many_threads() {
    let context = begin();
    let threads: Vec<_> =
        (0..1000).map(|_| thread::Builder::new().stack_size(64 << 10).spawn(move || churn(context)).unwrap()).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    say("allocated and freed");
    wait();
}

#[test]
fn nothing_is_allocated_without_the_named_account() {
    each(|instance| {
        let mut client = instance.start_with("hold", &[("OMNI_GPU_ACCOUNT", "/nowhere/account")]);
        client.expect("2, pinned 0");
    });
}

pub(crate) fn hold() {
    begin();
    let mut address = 0_u64;
    let result = call("cuMemAlloc_v2", &[at(&mut address), 1]);
    say(&format!("{result}, pinned {}", call("cuMemAllocHost_v2", &[at(&mut address), 1])));
}

#[test]
fn children_of_every_sort_share_the_limit() {
    each(|instance| {
        expect(instance, "python children", &["fork: 0 2", "spawn: 0 2", "forkserver: 0 2", "parent: 0 2"]);
    });
}

#[test]
fn programs_that_are_started_change_nothing() {
    each(|instance| expect(instance, "python programs", &["system 0, spawned 0, run 0", "6 MiB freed: 0"]));
}

#[test]
fn no_descriptor_is_needed_to_allocate() {
    each(|instance| expect(instance, "python descriptors", &["taken: 0, freed: 0"]));
}

#[test]
fn a_process_that_becomes_another_user_goes_on() {
    each(|instance| expect(instance, "python user", &["taken: 0, freed: 0"]));
}

#[test]
fn a_reset_of_a_primary_context_in_use_crashes_nothing() {
    each(|instance| {
        let mut client = instance.start("python reset");
        client.expect("lived");
        client.end();
    });
}

pub(crate) fn python(scenario: &str) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/differential/surroundings.py");
    panic!("{}", Command::new("python3").args(["-B", script, scenario]).exec());
}

fn begin() -> u64 {
    let mut context = 0_u64;
    assert_eq!((call("cuInit", &[0]), call("cuCtxCreate_v2", &[at(&mut context), 0, 0])), (0, 0));
    context
}

fn churn(context: u64) {
    assert_eq!(call("cuCtxSetCurrent", &[context]), 0);
    let mut address = 0_u64;
    for name in ["cuMemAlloc_v2", "cuMemAllocManaged"] {
        // A thousand of them may reach the limit.
        if call(name, &[at(&mut address), 5000, 1]) == 0 {
            assert_eq!(call("cuMemFree_v2", &[address]), 0);
        }
    }
}
