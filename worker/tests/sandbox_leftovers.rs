//! Starting and stopping instances leaves nothing: no process, mount, group, loop device, descriptor or file.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

#[path = "sandbox_support/mod.rs"]
mod support;

use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::instance::ToWorker;
use omni_sandbox::Cache;
use std::fs;
use std::path::Path;
use support::{Host, MIB, body, rounds, wait_until};

/// Resources of the machine that belong to this test, by a name that only it uses.
fn traces(dir: &Path) -> Vec<String> {
    let name = dir.to_str().unwrap();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mut found: Vec<String> = mounts.lines().filter(|line| line.contains(name)).map(str::to_owned).collect();
    for device in fs::read_dir("/sys/block").unwrap() {
        let image = fs::read_to_string(device.unwrap().path().join("loop/backing_file")).unwrap_or_default();
        found.extend(image.contains(name).then_some(image));
    }
    for process in fs::read_dir("/proc").unwrap() {
        let process = process.unwrap().path();
        let of = |what: &str| fs::read(process.join(what)).unwrap_or_default();
        if String::from_utf8_lossy(&of("environ")).contains(name) && !process.ends_with(std::process::id().to_string())
        {
            found.push(process.display().to_string());
        }
    }
    found
}

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn many_starts_and_stops_leave_nothing() {
    let host = Host::new();
    let dir = host.dir.path().to_owned();
    let before = open_files();
    for round in 0..rounds(50, 1000) {
        let mut setup = body("import time\nif os.fork() == 0: time.sleep(3600)\nready()\nhear()");
        setup.cache = Some(Cache { image: dir.join("cache.img"), bytes: 16 * MIB });
        setup.env = vec![("OMNI_TEST".into(), dir.to_str().unwrap().into())];
        let mut instance = host.start(setup);
        let mut scheduler = instance.connect();
        scheduler.ready();
        assert!(!traces(&dir).is_empty(), "the look for traces finds what runs");
        let (stop, expected) = match round % 2 {
            0 => (ToWorker::Kill, ExitCause::Signaled { signal: 9 }),
            _ => (ToWorker::Stop { grace_ms: 20_000 }, ExitCause::Exited { code: 0 }),
        };
        scheduler.send(&stop);
        assert_eq!(scheduler.run().1, expected);
        instance.wait();
    }
    wait_until("the last loop device detaches itself", || traces(&dir).is_empty());
    assert_eq!(open_files(), before);
    let files = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let left: Vec<String> = files.filter(|name| !name.ends_with(".exit") && !name.starts_with("model")).collect();
    assert_eq!(left, ["cache.img"], "exit files are the launcher's to read and remove");
}
