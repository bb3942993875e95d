//! The lasting directory: kept over instances with different users, bounded, shared, and without traces.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

#[path = "sandbox_support/mod.rs"]
mod support;

use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::instance::ToWorker;
use omni_sandbox::Cache;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use support::{Host, MIB, Setup, body, wait_until};

fn with_cache(host: &Host, text: &str, uid: u32) -> Setup {
    let mut setup = body(text);
    setup.cache = Some(Cache { image: host.dir.path().join("cache.img"), bytes: 32 * MIB });
    setup.uid = Some(uid);
    setup
}

fn run(host: &Host, text: &str, uid: u32) -> Vec<Value> {
    let (facts, cause) = host.run(with_cache(host, text, uid));
    assert_eq!(cause, ExitCause::Exited { code: 0 });
    facts
}

/// Loop devices whose image is below `dir`.
fn devices(dir: &Path) -> usize {
    let backing = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
    let entries = fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap());
    entries.map(backing).filter(|file| file.starts_with(dir.to_str().unwrap())).count()
}

#[test]
fn files_last_and_belong_to_each_next_instance() {
    let host = Host::new();
    let write = "open('/cache/kept', 'w').write('x'); os.mkdir('/cache/dir')\ntell(owner=os.stat('/cache/kept').st_uid == os.getuid())";
    assert_eq!(run(&host, write, 3_100_001), [json!({"owner": true})]);
    let read = "tell(kept=open('/cache/kept').read(), owner=os.stat('/cache/kept').st_uid == os.getuid())
open('/cache/kept', 'a').write('y'); os.rmdir('/cache/dir'); tell(now=open('/cache/kept').read())";
    assert_eq!(run(&host, read, 3_100_002), [json!({"kept": "x", "owner": true}), json!({"now": "xy"})]);
    wait_until("the loop device detaches itself", || devices(host.dir.path()) == 0);
}

#[test]
fn the_quota_holds() {
    let host = Host::new();
    let fill = "import errno
written = 0
try:
    with open('/cache/big', 'wb', buffering=0) as big:
        while True: written += big.write(b'x' * (1 << 20))
except OSError as error: tell(end=errno.errorcode[error.errno], bounded=written < 32 << 20)";
    assert_eq!(run(&host, fill, 3_100_003), [json!({"end": "ENOSPC", "bounded": true})]);
}

#[test]
fn two_instances_at_once_see_one_file_system() {
    let host = Host::new();
    let write = "import time\nopen('/cache/first', 'w').write('x')\nready()\nhear()";
    let mut first = host.start(with_cache(&host, write, 3_100_004));
    first.connect().ready();
    let read = "tell(first=open('/cache/first').read(), owner=os.stat('/cache/first').st_uid == os.getuid())";
    assert_eq!(run(&host, read, 3_100_005), [json!({"first": "x", "owner": true})]);
    assert_eq!(devices(host.dir.path()), 1);
    first.connect().send(&ToWorker::Kill);
    first.wait();
    wait_until("the loop device detaches itself", || devices(host.dir.path()) == 0);
}

#[test]
fn programs_with_special_rights_have_none_in_it() {
    let host = Host::new();
    let probe = "import shutil, subprocess
shutil.copy('/usr/bin/id', '/cache/id'); os.chmod('/cache/id', 0o4755)
tell(id=subprocess.check_output(['/cache/id', '-u']).decode().strip() == str(os.getuid()))
import errno
flags = [line.split()[5] for line in open('/proc/self/mountinfo') if line.split()[4] == '/cache'][0]
tell(nosuid='nosuid' in flags, nodev='nodev' in flags)";
    assert_eq!(run(&host, probe, 3_100_006), [json!({"id": true}), json!({"nosuid": true, "nodev": true})]);
}

#[test]
fn an_image_that_was_not_finished_is_made_anew() {
    let host = Host::new();
    fs::write(host.dir.path().join("cache.img"), vec![0; 1 << 20]).unwrap();
    assert_eq!(run(&host, "open('/cache/x', 'w'); tell(ok=True)", 3_100_007), [json!({"ok": true})]);
}
