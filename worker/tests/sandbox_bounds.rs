//! Bounds of a model's resources: bytes, inodes, processes, descriptors. And everything it needs to work is there.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

#[path = "sandbox_support/mod.rs"]
mod support;

use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::instance::ToWorker;
use omni_sandbox::Bind;
use serde_json::{Value, json};
use std::fs;
use std::process::Command;
use support::{Host, MIB, body};

fn facts(setup: support::Setup) -> Vec<Value> {
    let (facts, cause) = Host::new().run(setup);
    assert_eq!(cause, ExitCause::Exited { code: 0 });
    facts
}

#[test]
fn tmp_and_shm_have_bounded_bytes_and_inodes() {
    let mut setup = body(
        "import errno
for place in ['/tmp', '/dev/shm']:
    written = 0
    try:
        with open(place + '/big', 'wb') as big:
            while True: written += big.write(b'x' * (1 << 20))
    except OSError as error: bytes_end = errno.errorcode[error.errno]
    os.unlink(place + '/big')
    made = 0
    try:
        while True:
            open(f'{place}/{made}', 'w').close()
            made += 1
    except OSError as error: inodes_end = errno.errorcode[error.errno]
    tell(place=place, bytes=bytes_end, written=written <= 8 << 20, inodes=inodes_end, made=made < 2000)",
    );
    setup.tmp_bytes = 8 * MIB;
    let expected = ["/tmp", "/dev/shm"]
        .map(|place| json!({"place": place, "bytes": "ENOSPC", "written": true, "inodes": "ENOSPC", "made": true}));
    assert_eq!(facts(setup), expected);
}

/// A limit holds for who is in the group, so everybody must be, wherever it has a directory.
#[test]
fn an_instance_is_in_its_group_in_every_hierarchy() {
    let host = Host::new();
    let mut instance = host.start(body("if os.fork() == 0: os.read(3, 1)\ntell(begun=True)\nhear()"));
    let mut scheduler = instance.connect();
    assert_eq!(scheduler.fact(), json!({"begun": true}));
    let engine = scheduler.welcome.engine_pid.unwrap();
    let mut members = instance.group_pids();
    members.sort_unstable();
    assert!(members.len() == 3 && members.contains(&engine), "pid 1, the engine and its child: {members:?}");
    for dir in instance.spec.cgroup.dirs() {
        let procs = fs::read_to_string(dir.join("cgroup.procs")).unwrap();
        let mut here: Vec<i32> = procs.lines().map(|line| line.parse().unwrap()).collect();
        here.sort_unstable();
        assert_eq!(here, members, "{}", dir.display());
    }
    scheduler.send(&ToWorker::Kill);
    assert_eq!(scheduler.run().1, ExitCause::Signaled { signal: 9 });
    instance.wait();
}

#[test]
fn a_fork_bomb_stops_at_the_limit_of_processes() {
    let mut setup = body(
        "import errno, signal
made = 0
try:
    while True:
        pid = os.fork()
        if pid == 0: signal.pause()
        made += 1
except OSError as error: tell(made=made, error=errno.errorcode[error.errno])",
    );
    setup.pids = 16;
    // Pid 1 and the engine are two of the sixteen. The kernel ends the children with pid 1.
    assert_eq!(facts(setup), [json!({"made": 14, "error": "EAGAIN"})]);
}

#[test]
fn open_files_are_bounded() {
    let count = "import errno
files = []
try:
    while True: files.append(os.open('/dev/null', os.O_RDONLY))
except OSError as error: end = errno.errorcode[error.errno]
for file in files: os.close(file)
tell(end=end, bounded=len(files) <= 16384)";
    assert_eq!(facts(body(count)), [json!({"end": "EMFILE", "bounded": true})]);
}

#[test]
fn files_that_programs_expect_of_a_system_are_there() {
    let expected = json!({
        "user": "model", "home": "/tmp/home", "home_is_own": true, "cwd": "/model", "temp": true, "executable_tmp": true,
        "zone": "UTC+1", "certificates": true, "cpus": true, "null": true, "random": 8, "localhost": true, "umask": 18,
        "host": "test", "stdin": "",
    });
    let probe = "import getpass, pathlib, pwd, socket, ssl, stat, subprocess, sys, tempfile, zoneinfo, datetime
home = pathlib.Path.home()
with tempfile.NamedTemporaryFile() as file: temp = file.name.startswith('/tmp/')
pathlib.Path('/tmp/run').write_text('#!/bin/sh\\nexit 5\\n'); os.chmod('/tmp/run', 0o755)
with socket.create_server(('localhost', 0)) as server: socket.create_connection(server.getsockname()).close()
zone = datetime.datetime(2026, 1, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Paris')).utcoffset() // datetime.timedelta(hours=1)
mask = os.umask(0)
def all_open(dir): return all(open(f'{dir}/{name}').read(1) for name in os.listdir(dir) if name.endswith('.pem'))
tell(user=getpass.getuser(), home=str(home), home_is_own=home.stat().st_uid == os.getuid() and os.access(home, os.W_OK),
     cwd=os.getcwd(), temp=temp, executable_tmp=subprocess.run(['/tmp/run']).returncode == 5, zone=f'UTC+{zone}',
     certificates=len(os.listdir(ssl.get_default_verify_paths().capath)) > 50 and all_open(ssl.get_default_verify_paths().capath),
     cpus=os.path.exists('/sys/devices/system/cpu/online'), null=stat.S_ISCHR(os.stat('/dev/null').st_mode),
     random=len(open('/dev/urandom', 'rb').read(8)), localhost=True, umask=mask, host=socket.gethostname(),
     stdin=sys.stdin.read())";
    assert_eq!(facts(body(probe)), [expected]);
}

#[test]
fn processes_threads_and_loops_work() {
    let probe = "import asyncio, multiprocessing, threading, concurrent.futures, sys
sys.path.insert(0, '/model')
async def child():
    process = await asyncio.create_subprocess_exec(sys.executable, '-c', 'print(6 * 7)', stdout=asyncio.subprocess.PIPE)
    return (await process.communicate())[0].decode().strip()
def main():
    tell(subprocess=asyncio.run(child()))
    for method in ['fork', 'spawn', 'forkserver']:
        context = multiprocessing.get_context(method)
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
            tell(method=method, sum=sum(pool.map(abs, range(-10, 0))))
        lock, value = context.Semaphore(1), context.Value('i', 1)
        with lock: tell(shared=value.value)
    results = []
    threads = [threading.Thread(target=results.append, args=(n,)) for n in range(32)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    tell(threads=len(results))
if __name__ == '__main__': main()";
    let mut expected = vec![json!({"subprocess": "42"})];
    for method in ["fork", "spawn", "forkserver"] {
        expected.extend([json!({"method": method, "sum": 55}), json!({"shared": 1})]);
    }
    expected.push(json!({"threads": 32}));
    // A spawned child imports the main program again: that must be the test's, not the engine of the tests.
    let wrapper = format!(
        "import subprocess, sys\nopen('/tmp/main.py', 'w').write({})\n{}",
        json!(format!("{TELL}{probe}")),
        RUN
    );
    assert_eq!(facts(body(&wrapper)), expected);
}

const TELL: &str = "import json, os\ndef tell(**facts): print(json.dumps(facts), flush=True)\n";
const RUN: &str = "sys.exit(subprocess.run([sys.executable, '/tmp/main.py']).returncode)";

#[test]
fn orphans_are_reaped() {
    let probe = "import time
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0: os._exit(0)
        os._exit(0)
for _ in range(20): os.wait()
deadline = time.monotonic() + 20
def others(): return [p for p in os.listdir('/proc') if p.isdigit() and int(p) > 2]
while others() and time.monotonic() < deadline: time.sleep(0.005)
tell(left=others())";
    assert_eq!(facts(body(probe)), [json!({"left": []})]);
}

#[test]
fn numpy_computes_with_its_threads() {
    let host = Host::new();
    let packages = host.dir.path().join("packages");
    let pip = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"])
        .arg(&packages)
        .arg("numpy")
        .output()
        .unwrap();
    assert!(pip.status.success(), "{}", String::from_utf8_lossy(&pip.stderr));
    let mut setup = body(
        "sys.path.insert(0, '/packages')
import numpy, numpy.linalg, numpy.random
a = numpy.random.default_rng(1).random((300, 300))
tell(identity=bool(numpy.allclose(a @ numpy.linalg.inv(a), numpy.eye(300))))",
    );
    setup.memory_bytes = 512 * MIB;
    setup.binds = vec![Bind { source: packages, target: "/packages".into(), writable: false }];
    let (facts, cause) = host.run(setup);
    assert_eq!((facts, cause), (vec![json!({"identity": true})], ExitCause::Exited { code: 0 }));
}
