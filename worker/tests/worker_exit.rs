//! Every end of an instance has its one right cause, and nothing stays.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

#[path = "sandbox_support/mod.rs"]
mod support;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::instance::ToWorker;
use std::time::{Duration, Instant};
use support::{Host, MIB, body, is_gone, rounds, status_field, wait_until};

/// Runs the body some times; each end must have this cause, in the exit file as on the wire.
fn always(what: &str, expected: &ExitCause) {
    let host = Host::new();
    for round in 0..rounds(20, 100) {
        let mut setup = body(what);
        setup.memory_bytes = 64 * MIB;
        let mut instance = host.start(setup);
        let (lines, cause) = instance.connect().run();
        assert_eq!(&cause, expected, "round {round}: {lines:?}");
        assert_eq!(&instance.wait(), expected, "round {round}");
    }
}

#[test]
fn an_exit_code() {
    always("sys.exit(3)", &ExitCause::Exited { code: 3 });
}

#[test]
fn an_exit_without_a_message() {
    always("os._exit(0)", &ExitCause::Exited { code: 0 });
}

#[test]
fn abort() {
    always("os.abort()", &ExitCause::Signaled { signal: 6 });
}

#[test]
fn a_signal_of_its_own() {
    always("os.kill(os.getpid(), 15)", &ExitCause::Signaled { signal: 15 });
}

#[test]
fn a_real_time_signal() {
    always("os.kill(os.getpid(), 40)", &ExitCause::Signaled { signal: 40 });
}

#[test]
fn out_of_memory() {
    always("x = bytearray(256 << 20)", &ExitCause::OomKilled);
}

#[test]
fn out_of_memory_of_a_child_ends_the_whole_instance() {
    let eat = "import time\nif os.fork() == 0:\n    x = bytearray(256 << 20)\ntime.sleep(3600)";
    always(eat, &ExitCause::OomKilled);
}

#[test]
fn a_kill_from_outside() {
    let host = Host::new();
    for _ in 0..rounds(20, 100) {
        let mut instance = host.start(body("ready()\nhear()"));
        instance.connect().ready();
        let scheduler = instance.connect();
        kill(Pid::from_raw(scheduler.welcome.engine_pid.unwrap()), Signal::SIGKILL).unwrap();
        assert_eq!(scheduler.run().1, ExitCause::Signaled { signal: 9 });
        assert_eq!(instance.wait(), ExitCause::Signaled { signal: 9 });
    }
}

#[test]
fn a_missing_program_fails_the_start() {
    let host = Host::new();
    let mut setup = body("");
    setup.env = vec![("BAD".into(), "nul\0byte".into())];
    let (_, cause) = host.run(setup);
    assert!(matches!(&cause, ExitCause::StartFailed { message } if message.contains("environment")), "{cause}");
}

#[test]
fn a_missing_directory_fails_the_start_and_is_named() {
    let host = Host::new();
    let mut setup = body("");
    setup.binds = vec![omni_sandbox::Bind { source: "/nowhere".into(), target: "/x".into(), writable: false }];
    let (_, cause) = host.run(setup);
    assert!(
        matches!(&cause, ExitCause::StartFailed { message } if message.contains("mount /nowhere at /x: ENOENT")),
        "{cause}"
    );
}

#[test]
fn an_engine_that_stops_when_told_is_not_killed() {
    let host = Host::new();
    let mut instance =
        host.start(body("ready()\nmessage, _ = hear()\nsys.exit(0 if message['type'] == 'stop' else 1)"));
    let scheduler = instance.connect();
    scheduler.send(&ToWorker::Stop { grace_ms: 20_000 });
    let begun = Instant::now();
    assert_eq!(instance.wait(), ExitCause::Exited { code: 0 });
    assert!(begun.elapsed() < Duration::from_secs(20), "its own end, not the grace's");
}

#[test]
fn an_engine_that_ignores_the_stop_is_killed_after_the_grace() {
    let host = Host::new();
    let stubborn = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nready()\nwhile True: time.sleep(1)";
    let mut instance = host.start(body(stubborn));
    let mut scheduler = instance.connect();
    scheduler.ready();
    scheduler.send(&ToWorker::Stop { grace_ms: 50 });
    let (lines, cause) = scheduler.run();
    assert_eq!(cause, ExitCause::Signaled { signal: 9 });
    assert!(lines.iter().any(|line| line.text.contains("did not stop in time")), "{lines:?}");
    instance.wait();
}

#[test]
fn sigterm_to_the_worker_stops_the_model() {
    let host = Host::new();
    let mut instance = host.start(body("ready()\nhear()\nsys.exit(4)"));
    let mut scheduler = instance.connect();
    scheduler.ready();
    instance.signal_worker(Signal::SIGTERM);
    assert_eq!(scheduler.run().1, ExitCause::Exited { code: 4 });
    assert_eq!(instance.wait(), ExitCause::Exited { code: 4 });
}

#[test]
fn garbage_on_the_engines_socket_ends_the_instance() {
    let host = Host::new();
    for garbage in
        ["worker.send(b'{nonsense')", "worker.send(b'x' * 140000)", "ready(); ready()", "say({'type': 'boot'})"]
    {
        let (_, cause) = host.run(body(&format!("import time\n{garbage}\ntime.sleep(3600)")));
        assert_eq!(cause, ExitCause::Signaled { signal: 9 }, "{garbage}");
    }
}

#[test]
fn descriptors_from_the_engine_are_refused() {
    let host = Host::new();
    let send = "import array\nr, w = os.pipe()\nworker.sendmsg([json.dumps({'type': 'ready', 'mode': 'serial'}).encode()],\n \
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [w] * 100))])\nos.close(w)\n\
                tell(ended=os.read(r, 1) == b'')";
    let (facts, cause) = host.run(body(send));
    assert_eq!(facts, [serde_json::json!({"ended": true})], "no copy is kept by the worker");
    assert_eq!(cause, ExitCause::Exited { code: 0 });
}

#[test]
fn a_killed_worker_takes_the_model_with_it() {
    let host = Host::new();
    for _ in 0..rounds(5, 100) {
        let mut instance =
            host.start(body("import time\nif os.fork() == 0: time.sleep(3600)\nready()\ntime.sleep(3600)"));
        let mut scheduler = instance.connect();
        scheduler.ready();
        assert!(instance.group_pids().len() >= 3);
        instance.signal_worker(Signal::SIGKILL);
        instance.worker.wait().unwrap();
        wait_until("the model goes with its worker", || instance.group_pids().is_empty());
    }
}

#[test]
fn a_model_killed_while_it_reads_meminfo_blocks_no_reader() {
    let host = Host::new();
    let read = "import os\nfor _ in range(4):\n    if os.fork() == 0:\n        while True: open('/proc/meminfo').read()\n\
                ready()\nwhile True: open('/proc/meminfo').read()";
    for _ in 0..rounds(10, 100) {
        let mut instance = host.start(body(read));
        let mut scheduler = instance.connect();
        scheduler.ready();
        let pids = instance.group_pids();
        scheduler.send(&ToWorker::Kill);
        assert_eq!(instance.wait(), ExitCause::Signaled { signal: 9 });
        for pid in pids {
            assert!(is_gone(pid), "{pid} is {}", status_field(pid, "State"));
        }
    }
}

#[test]
fn a_worker_killed_while_the_model_reads_meminfo_blocks_no_reader() {
    let host = Host::new();
    for _ in 0..rounds(5, 100) {
        let mut instance = host.start(body("ready()\nwhile True: open('/proc/meminfo').read()"));
        let mut scheduler = instance.connect();
        scheduler.ready();
        instance.signal_worker(Signal::SIGKILL);
        instance.worker.wait().unwrap();
        wait_until("no reader stays", || instance.group_pids().is_empty());
    }
}
