//! Commands about GPU memory: from the scheduler through the worker to the shims of a sandbox and back. The shims are
//! Python here, honest ones and such as a hostile model would bring.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail the test")]

#[path = "sandbox_support/mod.rs"]
mod support;

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, socket};
use omni_gpu_protocol::env::inside;
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::instance::{
    FromWorker, GpuUsage, LogStream, ResidencyCommand, ResidencyReport, Stats, ToWorker,
};
use omni_node_protocol::launcher::{GpuMode, GpuSpec};
use omni_sandbox::Bind;
use serde_json::{Value, json};
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use support::{Host, Instance, MIB, Scheduler, Setup, body, wait_until};

const SHIM: &str = include_str!("sandbox_support/shim.py");
const ALL: ResidencyCommand = ResidencyCommand::Evict { bytes: u64::MAX };

/// An instance with a GPU whose engine runs this Python after it has said that it is ready.
fn start(host: &Host, python: &str) -> (Instance, Scheduler) {
    let control = Bind { source: host.dir.path().join("0.gpu"), target: inside::CONTROL.into(), writable: false };
    let spec = GpuSpec { uuid: "GPU-0".into(), minor: 0, limit_bytes: 64 * MIB, mode: GpuMode::Unified };
    let setup = Setup { binds: vec![control], gpu: Some(spec), ..body(&format!("{SHIM}\nready()\n{python}\nhear()")) };
    let instance = host.start(setup);
    let mut scheduler = instance.connect();
    scheduler.ready();
    (instance, scheduler)
}

fn end(mut instance: Instance) {
    let scheduler = instance.connect();
    scheduler.send(&ToWorker::Kill);
    assert_eq!(scheduler.run().1, ExitCause::Signaled { signal: 9 });
    instance.wait();
    assert!(!instance.spec.gpu.as_ref().unwrap().control.exists(), "the socket is removed");
}

/// The model has come this far: a line of its own, and what it says.
fn hears(scheduler: &mut Scheduler, key: &str) -> Value {
    let mut fact = scheduler.fact();
    fact.get_mut(key).unwrap_or_else(|| panic!("no {key}")).take()
}

fn report_of(scheduler: &mut Scheduler, number: u64, command: ResidencyCommand) -> ResidencyReport {
    scheduler.send(&ToWorker::Gpu { number, command });
    answer(scheduler)
}

fn answer(scheduler: &mut Scheduler) -> ResidencyReport {
    match scheduler.next() {
        FromWorker::Gpu(report) => report,
        other => panic!("{other:?} instead of an answer"),
    }
}

fn stats(scheduler: &mut Scheduler) -> Stats {
    scheduler.send(&ToWorker::Stats);
    match scheduler.next() {
        FromWorker::Stats(stats) => stats,
        other => panic!("{other:?} instead of stats"),
    }
}

fn descriptors(instance: &Instance) -> usize {
    fs::read_dir(format!("/proc/{}/fd", instance.worker.id())).unwrap().count()
}

#[test]
fn commands_reach_the_shim_and_answers_the_scheduler() {
    let host = Host::new();
    let (instance, mut scheduler) = start(
        &host,
        "shim = Shim(managed=100, device=7, host=3).hello().record()
tell(connected=True)
tell(commands=shim.serve(4))",
    );
    assert_eq!(scheduler.welcome.gpu, instance.spec.gpu.as_ref().map(|gpu| gpu.spec.clone()));
    assert_eq!(hears(&mut scheduler, "connected"), true);
    let usage = |resident_bytes| GpuUsage { managed_bytes: 100, resident_bytes, device_bytes: 7, host_bytes: 3 };
    assert_eq!(stats(&mut scheduler).gpu, Some(usage(100)));
    let commands = [
        (ResidencyCommand::Evict { bytes: 30 }, 30, 70),
        (ALL, 70, 0),
        (ResidencyCommand::Restore, 100, 100),
        (ResidencyCommand::Report, 0, 100),
    ];
    for (number, (what, moved, resident)) in (10..).zip(commands) {
        let report = report_of(&mut scheduler, number, what);
        assert_eq!((report.number, report.moved_bytes, report.error, report.unanswered), (number, moved, 0, 0));
        assert_eq!(report.usage, usage(resident));
    }
    let seen = json!([[1, 30], [1, u64::MAX], [2, 0], [3, 0]]);
    assert_eq!(hears(&mut scheduler, "commands"), seen);
    end(instance);
}

#[test]
fn an_eviction_takes_from_the_process_that_has_the_most() {
    let host = Host::new();
    let (instance, mut scheduler) = start(
        &host,
        "for managed in (10, 1000, 200):
    if os.fork() == 0:
        shim = Shim(managed=0).hello()
        shim.managed = shim.resident = managed  # allocated since
        shim.record()
        tell(connected=managed)
        tell(commands=[managed, *shim.serve(2 if managed > 10 else 1)])
        os._exit(0)
while True:
    try: os.wait()
    except ChildProcessError: break",
    );
    for _ in 0..3 {
        hears(&mut scheduler, "connected");
    }
    let report = report_of(&mut scheduler, 1, ResidencyCommand::Evict { bytes: 1100 });
    assert_eq!((report.moved_bytes, report.unanswered), (1100, 0));
    let mut seen: Vec<Value> = (0..3).map(|_| hears(&mut scheduler, "commands")).collect();
    seen.sort_by_key(|commands| commands[0].as_u64());
    assert_eq!(seen, [json!([10, [3, 0]]), json!([200, [3, 0], [1, 100]]), json!([1000, [3, 0], [1, 1000]])]);
    wait_until("the children are gone", || {
        let report = report_of(&mut scheduler, 2, ResidencyCommand::Report);
        report.usage == GpuUsage::default() && stats(&mut scheduler).pids == 2 // the engine and pid 1
    });
    end(instance);
}

#[test]
fn a_command_without_shims_to_ask_is_answered_at_once() {
    let host = Host::new();
    let (instance, mut scheduler) = start(&host, "");
    for (number, what) in (1..).zip([ALL, ResidencyCommand::Restore, ResidencyCommand::Report]) {
        let report = report_of(&mut scheduler, number, what);
        assert_eq!((report.number, report.moved_bytes, report.unanswered), (number, 0, 0));
    }
    end(instance);
    let instance = host.start(body("ready()\nhear()"));
    let mut scheduler = instance.connect();
    scheduler.ready();
    assert_eq!(
        report_of(&mut scheduler, 5, ALL),
        ResidencyReport { number: 5, ..ResidencyReport::default() },
        "no GPU at all"
    );
    assert_eq!(stats(&mut scheduler).gpu, None);
    scheduler.send(&ToWorker::Kill);
    scheduler.run();
}

#[test]
fn a_process_that_dies_ends_its_part_of_the_command() {
    let host = Host::new();
    let (instance, mut scheduler) = start(
        &host,
        "keeps = Shim(managed=5).hello()
if os.fork() == 0:
    # A copy of the parent's connection: only its own counts.
    shim = Shim(managed=9).hello()
    tell(connected=os.getpid())
    shim.next_command()
    os._exit(0)
os.wait()
tell(commands=keeps.serve(1))",
    );
    hears(&mut scheduler, "connected");
    let report = report_of(&mut scheduler, 1, ALL);
    assert_eq!((report.moved_bytes, report.unanswered), (5, 0));
    end(instance);
}

#[test]
fn a_connection_that_outlives_its_process_is_not_asked() {
    let host = Host::new();
    let (instance, mut scheduler) = start(
        &host,
        "if os.fork() == 0:
    shim, parent = Shim(managed=9).hello(), os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent: time.sleep(0.01)
        tell(orphan=True)  # with a copy of the connection of a process that is gone
        while True: time.sleep(3600)
    os._exit(0)
os.wait()",
    );
    hears(&mut scheduler, "orphan");
    let report = report_of(&mut scheduler, 1, ALL);
    assert_eq!((report.moved_bytes, report.unanswered), (0, 0), "nobody is waited for");
    end(instance);
}

#[test]
fn a_silent_connection_does_not_block_others() {
    let host = Host::new();
    let (instance, mut scheduler) = start(
        &host,
        "silent = Shim()
shim = Shim(managed=9).hello()
tell(connected=True)
tell(commands=shim.serve(1))",
    );
    hears(&mut scheduler, "connected");
    let report = report_of(&mut scheduler, 1, ResidencyCommand::Evict { bytes: 5 });
    assert_eq!((report.moved_bytes, report.unanswered), (5, 0));
    assert_eq!(hears(&mut scheduler, "commands"), json!([[1, 5]]), "no question first: there is one shim");
    end(instance);
}

#[test]
fn a_shim_that_never_answers_delays_only_its_command() {
    let host = Host::new();
    let (instance, mut scheduler) = start(
        &host,
        "if os.fork() == 0:
    shim = Shim(managed=9).hello()
    tell(connected=True)
    while True: time.sleep(3600)
",
    );
    hears(&mut scheduler, "connected");
    for number in 1..=9 {
        scheduler.send(&ToWorker::Gpu { number, command: ALL });
    }
    stats(&mut scheduler);
    scheduler.send(&ToWorker::Gpu { number: 10, command: ALL });
    let refused = answer(&mut scheduler);
    assert_eq!((refused.number, refused.unanswered), (10, 1), "the queue has a bound");
    let mut second = instance.connect();
    second.send(&ToWorker::Gpu { number: 1, command: ResidencyCommand::Report });
    stats(&mut second);
    end(instance);
}

#[test]
fn a_shim_that_violates_the_protocol_is_disconnected_and_the_log_says_why() {
    let host = Host::new();
    let table = [
        ("shim.socket.send(b'x')", "it sent what is no report"),
        ("shim.socket.send(bytes(72))", "it sent what is no report"),
        ("shim.socket.send(b'x' * 70000)", "it sent what is no report"),
        ("shim.done(0)", "it did not say hello first"),
        ("shim.hello().hello()", "it said hello twice"),
        ("shim.hello().done(1)", "it answered a command that it was not given"),
    ];
    let breaches: String =
        table.iter().map(|(breach, _)| format!("shim = Shim()\n{breach}\nassert shim.is_closed()\n")).collect();
    let (instance, mut scheduler) = start(&host, &format!("{breaches}tell(broken=True)"));
    // The worker's notes and the model's line come in the order in which they were made.
    let mut notes = Vec::new();
    wait_until("all notes have come", || {
        stats(&mut scheduler);
        notes.extend(scheduler.lines.drain(..).filter(|line| line.stream == LogStream::Worker).map(|line| line.text));
        notes.len() >= table.len()
    });
    for (note, (breach, why)) in notes.iter().zip(table) {
        assert!(note.starts_with("GPU memory: process ") && note.ends_with(why), "{breach}: {note}");
    }
    end(instance);
}

#[test]
fn a_flood_of_anything_is_bounded() {
    let host = Host::new();
    let (instance, mut scheduler) = start(
        &host,
        "import array
shims = []
for _ in range(1000):
    try: shims.append(Shim().hello())
    except (BrokenPipeError, ConnectionResetError): pass  # closed already: one too many
tell(connected=True)
for shim in shims[:64]:
    fds = array.array('i', [0] * 100).tobytes()
    try: shim.socket.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
    except (BrokenPipeError, ConnectionResetError): pass
tell(sent=True)
while True:
    try:
        flood = Shim()
        while True: flood.socket.send(bytes(72))
    except OSError: pass",
    );
    let before = descriptors(&instance);
    let bounded = || {
        // For a moment there is one more: a connection that is accepted only to be closed.
        let now = descriptors(&instance);
        assert!(now <= before + 64 + 1, "{now} descriptors");
        wait_until("no more than 64 connections", || descriptors(&instance) <= before + 64);
    };
    hears(&mut scheduler, "connected");
    bounded();
    hears(&mut scheduler, "sent");
    for _ in 0..20 {
        assert!(stats(&mut scheduler).gpu.is_some());
        bounded();
    }
    let mut second = instance.connect(); // which hears the log from its beginning
    wait_until("the notes have ended", || {
        stats(&mut second);
        second.lines.iter().any(|line| line.text.ends_with("; no more such lines follow"))
    });
    for _ in 0..20 {
        stats(&mut second);
    }
    let notes = second.lines.iter().filter(|line| line.stream == LogStream::Worker).count();
    assert_eq!(notes, 16, "a model does not fill its log with the worker's lines");
    end(instance);
}

#[test]
fn an_account_full_of_nonsense_costs_its_model_alone() {
    let host = Host::new();
    let (instance, mut scheduler) = start(
        &host,
        "shim = Shim(managed=100).hello()
size = os.path.getsize(ACCOUNT)
def rewrite(content):
    with open(ACCOUNT, 'r+b', buffering=0) as account:
        try: account.truncate(0)
        except PermissionError: account.write(bytes(size))
        account.seek(0)
        account.write(content)
full = (1 << 64) - 1
own = struct.pack('<Q', os.getpid() | 77 << 32)
start = struct.pack('<Q', int(open('/proc/self/stat').read().rsplit(')', 1)[1].split()[19]))
slot = own + start + struct.pack('<5Q', 0, full, 0, full, full) + bytes(72)
for content in (b'', b'omnigpu2', b'\\xff' * size, os.urandom(size), b'omnigpu2' + bytes(HEADER - 8) + slot * 256):
    rewrite(content)
    tell(written=True)
    shim.serve(1)",
    );
    for number in 1..=5 {
        hears(&mut scheduler, "written");
        let full = if number == 5 { u64::MAX } else { 0 };
        let usage = stats(&mut scheduler).gpu.unwrap();
        assert_eq!((usage.managed_bytes, usage.resident_bytes), (full, full), "{number}");
        assert_eq!((usage.device_bytes, usage.host_bytes), (full, full), "{number}");
        let report = report_of(&mut scheduler, number, ResidencyCommand::Restore);
        assert_eq!((report.number, report.unanswered), (number, 0));
    }
    end(instance);
}

#[test]
fn only_the_instances_user_is_let_in() {
    let host = Host::new();
    let (instance, _scheduler) = start(&host, "");
    let path = &instance.spec.gpu.as_ref().unwrap().control;
    let file = fs::metadata(path).unwrap();
    assert!(file.file_type().is_socket());
    assert_eq!((file.uid(), file.permissions().mode() & 0o777), (instance.spec.sandbox.uid, 0o600));
    let stranger = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    connect(stranger.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap(); // root may do anything
    assert_eq!(recv(stranger.as_raw_fd(), &mut [0; 9], MsgFlags::empty()), Ok(0), "but is no shim");
    end(instance);
}
