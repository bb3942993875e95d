//! The worker and its scheduler: adoption, replacement, log, data connections, and schedulers that misbehave.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail the test")]

#[path = "sandbox_support/mod.rs"]
mod support;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, send, socketpair};
use nix::unistd::Pid;
use omni_engine_protocol::control::HandlerMode;
use omni_engine_protocol::packet::{PacketError, recv_packet, send_packet};
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::instance::{FromWorker, LogStream, PROTOCOL, ToWorker};
use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::process::Command;
use support::{Host, Instance, MIB, body, is_gone, status_field, wait_until};

/// Tests that the worker has closed this connection; packets that it had sent before are read and dropped.
fn is_closed(socket: &OwnedFd) -> bool {
    loop {
        match recv_packet::<FromWorker>(socket) {
            Ok(_) => {}
            Err(PacketError::Closed) => return true,
            Err(error) => panic!("{error}"),
        }
    }
}

fn end(mut instance: Instance) {
    let scheduler = instance.connect();
    scheduler.send(&ToWorker::Kill);
    assert_eq!(scheduler.run().1, ExitCause::Signaled { signal: 9 });
    instance.wait();
}

#[test]
fn the_last_message_before_a_hangup_is_handled() {
    let host = Host::new();
    let mut instance = host.start(body("ready()\nwhile True: print('line')"));
    instance.connect().send(&ToWorker::Kill);
    assert_eq!(instance.wait(), ExitCause::Signaled { signal: 9 });
}

#[test]
fn a_later_scheduler_finds_the_whole_state() {
    let host = Host::new();
    let instance =
        host.start(body("print('one', flush=True)\nprint('two', file=sys.stderr, flush=True)\nready()\nhear()"));
    let mut first = instance.connect();
    first.ready();
    wait_until("both lines are there", || {
        let mut scheduler = instance.connect();
        scheduler.send(&ToWorker::Stats);
        while !matches!(scheduler.next(), FromWorker::Stats(_)) {}
        scheduler.send(&ToWorker::Stats); // answers come before lines: the second one comes after the first's lines
        while !matches!(scheduler.next(), FromWorker::Stats(_)) {}
        scheduler.lines.len() == 2
    });
    let mut second = instance.connect_after(1);
    assert_eq!(second.welcome.ready, Some(HandlerMode::Serial));
    assert_eq!(second.welcome.protocol, PROTOCOL);
    assert_eq!(second.welcome.exited, None);
    let engine = second.welcome.engine_pid.unwrap();
    assert_eq!(status_field(engine, "NSpid").split_whitespace().nth(1), Some("2"));
    let FromWorker::Log(line) = recv_packet(&second.socket).unwrap().0 else { panic!() };
    assert_eq!(line.seq, 2, "the first line is known");
    second.send(&ToWorker::Stats);
    let FromWorker::Stats(stats) = second.next() else { panic!() };
    assert_eq!(stats.memory_limit_bytes, 256 * MIB);
    assert!(stats.pids >= 2 && stats.memory_bytes > MIB && stats.cpu_usec > 0, "{stats:?}");
    assert!(is_closed(&first.socket), "a newer connection replaces the older");
    end(instance);
}

#[test]
fn only_the_named_user_may_connect() {
    let host = Host::new();
    let mut setup = body("ready()\nhear()");
    setup.peer_uid = 3_999_999;
    let instance = host.start(setup);
    let socket = fs::metadata(&instance.spec.socket).unwrap();
    assert_eq!((socket.uid(), socket.permissions().mode() & 0o777), (3_999_999, 0o600));
    // The mode alone would stop a stranger; the worker's own check has to as well.
    fs::set_permissions(&instance.spec.socket, PermissionsExt::from_mode(0o666)).unwrap();
    let talk = "import os, socket, sys
os.setuid(int(sys.argv[2]))
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(20); s.connect(sys.argv[1])
try:
    s.send(b'{\"type\":\"hello\",\"protocol\":PROTOCOL,\"log_seen\":0}')
    print(bool(s.recv(65536)))
except (ConnectionResetError, BrokenPipeError): print(False)"
        .replace("PROTOCOL", &PROTOCOL.to_string());
    for (uid, expected) in [("3999998", "False\n"), ("3999999", "True\n")] {
        let output = Command::new("/usr/bin/env")
            .args(["python3", "-c", &talk, instance.spec.socket.to_str().unwrap(), uid])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected, "{}", String::from_utf8_lossy(&output.stderr));
    }
    end(instance);
}

#[test]
fn a_data_connection_goes_to_the_engine_and_no_copy_stays() {
    let host = Host::new();
    let serve = "ready()
while True:
    message, fds = hear()
    if message['type'] == 'stop': break
    data = socket.socket(fileno=fds[0])
    data.sendall(data.recv(100).upper())
    for fd in fds[1:]: os.close(fd)
    data.close()";
    let mut instance = host.start(body(serve));
    let scheduler = instance.connect();
    for _ in 0..3 {
        let (mut data, theirs) = UnixStream::pair().unwrap();
        let (cancel, cancel_theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        scheduler.send_fds(&ToWorker::Attach, &[theirs.as_raw_fd(), cancel_theirs.as_raw_fd()]);
        drop((theirs, cancel_theirs));
        data.write_all(b"through").unwrap();
        let mut answer = String::new();
        data.read_to_string(&mut answer).unwrap(); // ends because no copy is left in the worker
        assert_eq!(answer, "THROUGH");
        drop(cancel);
    }
    scheduler.send(&ToWorker::Stop { grace_ms: 20_000 });
    assert_eq!(scheduler.run().1, ExitCause::Exited { code: 0 });
    instance.wait();
}

#[test]
fn an_engine_that_does_not_take_connections_costs_the_scheduler_its_own() {
    let host = Host::new();
    let instance = host.start(body("import time\nready()\ntime.sleep(3600)"));
    let scheduler = instance.connect();
    let (a, b) = UnixStream::pair().unwrap();
    loop {
        match send_packet(&scheduler.socket, &ToWorker::Attach, &[a.as_raw_fd(), b.as_raw_fd()]) {
            Ok(()) => {}
            Err(PacketError::Closed) => break,
            // The kernel bounds descriptors in flight for each user.
            Err(PacketError::Socket(Errno::ETOOMANYREFS)) => break,
            Err(error) => panic!("{error}"),
        }
    }
    end(instance);
}

/// The scheduler is slow: its data connection comes when the engine has ended, and before the worker has seen that.
#[test]
fn the_exit_cause_is_reported_although_a_data_connection_came_too_late() {
    let host = Host::new();
    let mut instance = host.start(body("ready()\nhear()"));
    instance.connect().ready();
    let scheduler = instance.connect();
    let engine = scheduler.welcome.engine_pid.unwrap();
    let parent = |pid| status_field(pid, "PPid").parse::<i32>().unwrap();
    let worker = parent(parent(engine));
    instance.signal_worker(Signal::SIGSTOP);
    wait_until("the worker to stand still", || status_field(worker, "State").starts_with('T'));
    kill(Pid::from_raw(engine), Signal::SIGKILL).unwrap();
    wait_until("the engine's end", || is_gone(engine));
    let (a, b) = UnixStream::pair().unwrap();
    scheduler.send_fds(&ToWorker::Attach, &[a.as_raw_fd(), b.as_raw_fd()]);
    instance.signal_worker(Signal::SIGCONT);
    let cause = scheduler.run().1;
    assert_eq!(cause, ExitCause::Signaled { signal: 9 });
    assert_eq!(instance.wait(), cause);
}

#[test]
fn wrong_messages_end_the_connection_and_nothing_else() {
    let host = Host::new();
    let instance = host.start(body("ready()\nhear()"));
    let (a, _b) = UnixStream::pair().unwrap();
    for wrong in 0..4 {
        let scheduler = instance.connect();
        match wrong {
            0 => drop(send(scheduler.socket.as_raw_fd(), b"{nonsense", MsgFlags::empty()).unwrap()),
            1 => scheduler.send(&ToWorker::Attach),
            2 => scheduler.send_fds(&ToWorker::Attach, &[a.as_raw_fd()]),
            _ => scheduler.send(&ToWorker::Hello { protocol: PROTOCOL + 1, oldest: None, log_seen: 0 }),
        }
        assert!(is_closed(&scheduler.socket), "{wrong}");
    }
    end(instance);
}

#[test]
fn a_scheduler_of_the_next_release_gets_the_common_version() {
    let host = Host::new();
    let instance = host.start(body("ready()\nhear()"));
    let newer = instance.connect_silently();
    let hello = ToWorker::Hello { protocol: PROTOCOL + 1, oldest: Some(PROTOCOL), log_seen: 0 };
    send_packet(&newer, &hello, &[]).unwrap();
    let (said, _) = recv_packet(&newer).unwrap();
    let FromWorker::Welcome(welcome) = said else { panic!("{said:?} before the welcome") };
    assert_eq!(welcome.protocol, PROTOCOL);
    drop(newer);
    end(instance);
}

#[test]
fn a_scheduler_that_does_not_read_cannot_hold_the_worker() {
    let host = Host::new();
    let instance = host.start(body("ready()\nhear()"));
    let deaf = instance.connect();
    // Asks on and on without reading: the worker's queue is short, and it lets go.
    while send_packet(&deaf.socket, &ToWorker::Stats, &[]).is_ok() {}
    end(instance);
}

#[test]
fn a_flood_of_lines_is_bounded_and_the_worker_stays_quick() {
    let host = Host::new();
    let mut setup = body("ready()\nline = b'x' * 200 + b'\\n'\nwhile True: os.write(1, line * 300)");
    setup.log_lines_per_second = 50;
    let instance = host.start(setup);
    instance.connect().ready();
    let worker = i32::try_from(instance.worker.id()).unwrap();
    let kib = |field: &str| status_field(worker, field).trim_end_matches(" kB").parse::<u64>().unwrap();
    let before = kib("VmRSS");
    let mut scheduler = instance.connect();
    let mut dropped = false;
    while !dropped {
        scheduler.send(&ToWorker::Stats);
        while !matches!(scheduler.next(), FromWorker::Stats(_)) {}
        dropped = scheduler.lines.iter().any(|l| l.stream == LogStream::Worker && l.text.contains("lines dropped"));
    }
    let grown = kib("VmRSS").saturating_sub(before);
    assert!(grown < 1024, "the worker grew by {grown} KiB");
    end(instance);
}

#[test]
fn a_late_scheduler_still_receives_the_end() {
    let host = Host::new();
    let mut instance = host
        .start(body("print('last words')\nsay({'type': 'failed', 'phase': 'import', 'message': 'm'})\nsys.exit(78)"));
    wait_until("the end is written", || instance.spec.exit_file.exists());
    let scheduler = instance.connect();
    assert_eq!(scheduler.welcome.exited, Some(ExitCause::Exited { code: 78 }));
    let (lines, cause) = scheduler.run();
    assert_eq!(cause, ExitCause::Exited { code: 78 });
    assert_eq!(lines.iter().map(|line| line.text.as_str()).collect::<Vec<_>>(), ["last words"]);
    assert_eq!(instance.wait(), cause);
}

#[test]
fn the_engines_own_failure_is_passed_on() {
    let host = Host::new();
    let mut instance =
        host.start(body("hear_nothing = 0\nsay({'type': 'failed', 'phase': 'setup', 'message': 'why'})\nsys.exit(1)"));
    let mut scheduler = instance.connect();
    let message = scheduler.next();
    if scheduler.welcome.exited.is_none() {
        let expected = FromWorker::EngineFailed { phase: "setup".into(), message: "why".into() };
        assert_eq!(message, expected);
    }
    drop(scheduler);
    assert_eq!(instance.wait(), ExitCause::Exited { code: 1 });
}
