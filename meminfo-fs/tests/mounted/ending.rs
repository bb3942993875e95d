//! End of a server: no reader is left waiting, and nothing stays behind.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};

use crate::support::{
    ALL, GIB, Group, Reader, attach, groups, in_own_namespace, seven_gib, stuck, until, with_meminfo,
};
use nix::libc;
use nix::mount::umount;
use omni_meminfo_fs::{CgroupV2, DetachedMount, File as Shown, SampleError, ServeError, prepare};

const MEMINFO: &str = "/proc/meminfo";

#[test]
fn after_the_server_is_dropped_readers_get_an_error() {
    let (mount, connection) = prepare().unwrap();
    let server = connection.serve(groups(seven_gib())).unwrap();
    with_meminfo(mount, || {
        let mut open = File::open(MEMINFO).unwrap();
        drop(server);
        let read = open.read(&mut [0; 10]).unwrap_err();
        assert!(matches!(read.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED)), "{read}");
        assert_eq!(File::open(MEMINFO).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    });
}

#[test]
fn an_unserved_connection_ends_when_it_is_dropped() {
    let (mount, connection) = prepare().unwrap();
    drop(connection);
    assert_nobody_serves(mount);
}

#[test]
fn a_source_without_a_sample_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [("memory.max", "max\n"), ("memory.current", "0\n"), ("memory.stat", "")] {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let (mount, connection) = prepare().unwrap();
    let error = connection.serve(groups(CgroupV2::open(dir.path(), None).unwrap())).unwrap_err();
    assert!(matches!(error, ServeError::Sample(SampleError::Malformed { .. })), "{error:?}");
    assert_nobody_serves(mount);
}

#[test]
fn a_removed_group_is_an_error_and_not_an_old_number() {
    let group = Group::new("removed", GIB);
    let (mount, connection) = prepare().unwrap();
    let _server = connection.serve(groups(group.source())).unwrap();
    with_meminfo(mount, || {
        File::open(MEMINFO).unwrap();
        drop(group);
        assert_eq!(File::open(MEMINFO).unwrap_err().raw_os_error(), Some(libc::EIO));
    });
}

#[test]
fn the_end_of_the_models_namespace_ends_the_server() {
    let (mount, connection) = prepare().unwrap();
    let server = connection.serve(groups(seven_gib())).unwrap();
    with_meminfo(mount, || {
        fs::read(MEMINFO).unwrap();
        assert!(!server.is_finished());
    });
    server.join().unwrap();
}

#[test]
fn an_abort_frees_a_reader_whose_request_was_taken() {
    let (mount, connection) = prepare().unwrap();
    let (source, handle) = stuck();
    let server = &connection.serve(groups(source)).unwrap();
    with_meminfo(mount, move || {
        let mut reader = cat();
        handle.asked.recv().unwrap();
        server.abort().unwrap();
        let status = reader.0.wait().unwrap();
        assert_eq!(status.code(), Some(1), "cat reports the error that it got");
        server.abort().unwrap();
        drop(handle.go_on);
    });
}

#[test]
fn a_reader_killed_in_mid_request_is_gone_after_the_abort() {
    let (mount, connection) = prepare().unwrap();
    let (source, handle) = stuck();
    let server = &connection.serve(groups(source)).unwrap();
    with_meminfo(mount, move || {
        let mut reader = cat();
        handle.asked.recv().unwrap();
        reader.0.kill().unwrap();
        // Without the abort it would stay so: the kernel waits for the answer to a request that was taken.
        until("the killed reader waits without interruption", || state(reader.0.id()) == 'D');
        server.abort().unwrap();
        assert_eq!(reader.0.wait().unwrap().signal(), Some(libc::SIGKILL));
        drop(handle.go_on);
    });
}

#[test]
fn readers_killed_at_any_moment_leave_nothing() {
    let (mount, connection) = prepare().unwrap();
    let server = connection.serve(groups(seven_gib())).unwrap();
    with_meminfo(mount, || {
        for _ in 0..50 {
            let mut reader = Command::new("sh")
                .args(["-c", "echo; while :; do read -r line < /proc/meminfo; done"])
                .stdout(Stdio::piped())
                .spawn()
                .map(Reader)
                .unwrap();
            reader.0.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
            reader.0.kill().unwrap();
            assert_eq!(reader.0.wait().unwrap().signal(), Some(libc::SIGKILL));
        }
        assert!(fs::read_to_string(MEMINFO).unwrap().starts_with("MemTotal:"));
    });
    server.join().unwrap();
}

#[test]
fn a_hundred_mounts_leave_nothing() {
    in_own_namespace(|| {
        let before = census();
        for round in 0..100 {
            let (mount, connection) = prepare().unwrap();
            let server = connection.serve(groups(seven_gib())).unwrap();
            attach(&mount);
            drop(mount);
            assert!(fs::read_to_string(MEMINFO).unwrap().starts_with("MemTotal:        7340032 kB\n"));
            Shown::ALL.iter().for_each(|file| umount(file.place()).unwrap());
            if round % 2 == 0 { server.join().unwrap() } else { drop(server) }
        }
        let after = census();
        assert_eq!(before, after);
    });
}

/// Not even names are answered.
fn assert_nobody_serves(mount: DetachedMount) {
    in_own_namespace(move || {
        mount.attach(c"/mnt").unwrap();
        drop(mount);
        assert_eq!(fs::read_dir(ALL).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
        assert_eq!(fs::metadata("/mnt/meminfo").unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    });
}

fn cat() -> Reader {
    Reader(Command::new("cat").arg(MEMINFO).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

/// Letter after the command's name in `/proc/<pid>/stat`.
fn state(pid: u32) -> char {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

/// Descriptors, threads and mounts of this process, as this thread sees them.
fn census() -> [usize; 3] {
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap().lines().count();
    [fs::read_dir("/proc/self/fd").unwrap().count(), fs::read_dir("/proc/self/task").unwrap().count(), mounts]
}
