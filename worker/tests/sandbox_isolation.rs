//! Isolation of a model: every attempt is made from inside a real sandbox, as the model's own code would.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

#[path = "sandbox_support/mod.rs"]
mod support;

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::instance::ToWorker;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsRawFd;
use support::{Host, MIB, body, status_field};

/// Lets a model try things; `attempt(name, function)` in the body records the error's name, or what was returned.
fn attempts(setup: support::Setup) -> BTreeMap<String, Value> {
    let host = Host::new();
    attempts_on(&host, setup)
}

fn attempts_on(host: &Host, mut setup: support::Setup) -> BTreeMap<String, Value> {
    setup.body = format!("{}\n{}", include_str!("sandbox_support/attempts.py"), setup.body);
    let (facts, cause) = host.run(setup);
    assert_eq!(cause, ExitCause::Exited { code: 0 });
    facts.into_iter().flat_map(|fact| fact.as_object().unwrap().clone()).collect()
}

/// Asserts the outcome of each attempt by its name: the symbol of an errno, or a value.
fn assert_outcomes(found: &BTreeMap<String, Value>, expected: &[(&str, &str)]) {
    let found: Vec<(&str, String)> = found
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str().map_or(value.to_string(), str::to_owned)))
        .collect();
    let mut expected: Vec<(&str, String)> = expected.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn exactly_the_listed_descriptors_are_open() {
    let host = Host::new();
    let instance = host.start(body("ready()\nhear()"));
    instance.connect().ready();
    let scheduler = instance.connect();
    let engine = scheduler.welcome.engine_pid.unwrap();
    let mut open: Vec<(i32, String)> = fs::read_dir(format!("/proc/{engine}/fd"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            let kind = fs::read_link(entry.path()).unwrap().to_string_lossy().split(':').next().unwrap().to_owned();
            (entry.file_name().to_str().unwrap().parse().unwrap(), kind)
        })
        .collect();
    open.sort();
    let allowed = [(0, "/dev/null"), (1, "pipe"), (2, "pipe"), (3, "socket")].map(|(fd, kind)| (fd, kind.to_owned()));
    assert_eq!(open, allowed);
    let init: i32 = status_field(engine, "PPid").parse().unwrap();
    assert_eq!(fs::read_dir(format!("/proc/{init}/fd")).unwrap().count(), 1, "pid 1 has its report socket only");
}

#[test]
fn no_privilege_is_left() {
    let host = Host::new();
    let instance = host.start(body("ready()\nhear()"));
    instance.connect().ready();
    let engine = instance.connect().welcome.engine_pid.unwrap();
    let init: i32 = status_field(engine, "PPid").parse().unwrap();
    let uid = instance.spec.sandbox.uid.to_string();
    for pid in [engine, init] {
        for field in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(status_field(pid, field), "0000000000000000", "{field} of {pid}");
        }
        assert_eq!(status_field(pid, "NoNewPrivs"), "1");
        assert_eq!(status_field(pid, "Seccomp"), "2");
        for field in ["Uid", "Gid"] {
            assert_eq!(status_field(pid, field).split_whitespace().collect::<Vec<_>>(), [uid.as_str(); 4]);
        }
        assert_eq!(status_field(pid, "Groups"), "");
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let core: Vec<&str> = limits.lines().find(|l| l.starts_with("Max core")).unwrap().split_whitespace().collect();
        assert_eq!(core.get(4..6), Some(&["1", "1"][..]), "{core:?}");
        assert_eq!(fs::read_to_string(format!("/proc/{pid}/coredump_filter")).unwrap().trim(), "00000000");
        assert_eq!(fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim(), "500");
    }
    for namespace in ["pid", "mnt", "ipc", "uts", "cgroup", "net"] {
        let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{namespace}")).unwrap();
        assert_ne!(of(&engine.to_string()), of("self"), "{namespace}");
    }
}

#[test]
fn a_model_sees_its_limit_as_the_machines_memory() {
    let host = Host::new();
    let before = first_line(&fs::read_to_string("/proc/meminfo").unwrap());
    let mut setup = body("tell(meminfo=open('/proc/meminfo').readline().split())");
    setup.memory_bytes = 7 * 1024 * MIB;
    let (facts, _) = host.run(setup);
    assert_eq!(facts, [serde_json::json!({"meminfo": ["MemTotal:", "7340032", "kB"]})]);
    assert_eq!(first_line(&fs::read_to_string("/proc/meminfo").unwrap()), before);
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap().to_owned()
}

#[expect(clippy::too_many_lines, reason = "a line for each system call")]
#[test]
fn system_calls_that_undo_a_sandbox_are_refused() {
    let found = attempts(body(
        "call('mount', 165, b'none', b'/tmp', b'tmpfs', 0, None)
call('umount', 166, b'/proc/meminfo', 2)
call('pivot_root', 155, b'/', b'/')
call('chroot', 161, b'/tmp')
call('unshare_user', 272, 0x10000000)
call('unshare_mount', 272, 0x00020000)
call('setns', 308, 3, 0)
call('clone_newuser', 56, 0x10000000 | 17, None, None, None, None)
call('clone3', 435, None, 0)
call('fsopen', 430, b'tmpfs', 0)
call('open_tree', 428, -100, b'/', 1)
call('move_mount', 429, -1, b'', -1, b'', 0)
call('mount_setattr', 442, -100, b'/tmp', 0, None, 0)
call('ptrace', 101, 16, 1, None, None)
call('process_vm_readv', 310, 1, None, 0, None, 0, 0)
call('pidfd_getfd', 438, 3, 0, 0)
call('bpf', 321, 0, None, 0)
call('io_uring_setup', 425, 1, None)
call('userfaultfd', 323, 0)
call('perf_event_open', 298, None, 0, -1, -1, 0)
call('keyctl', 250, 0, -3, 0, 0, 0)
call('add_key', 248, b'user', b'x', b'y', 1, -3)
call('open_by_handle_at', 304, -100, None, 0)
call('init_module', 175, None, 0, b'')
call('kexec_load', 246, 0, 0, None, 0)
call('reboot', 169, 0, 0, 0, None)
call('swapon', 167, b'/tmp/x', 0)
call('settimeofday', 164, None, None)
call('sethostname', 170, b'x', 1)
call('quotactl', 179, 0, None, 0, None)
call('acct', 163, None)
call('x32_getpid', 0x40000000 + 39)
call('tiocsti', 16, 0, 0x5412, b'x')
call('tiocsti_high_bits', 16, 0, 0x100005412, b'x')
call('personality', 135, 0x0040000)
call('vsock', 41, 40, 1, 0)
call('packet', 41, 17, 3, 0)
call('tipc_pair', 53, 30, 1, 0, bytes(8))
call('vsock_pair', 53, 40, 1, 0, bytes(8))
for option in [26, 50, 51, 52]: call(f'socket_program_{option}', 54, -1, 1, option, None, 0)
call('socket_program_high_bits', 54, -1, 0x100000001, 26, None, 0)
call('socket_buffer', 54, -1, 1, 7, bytes(4), 4)
attempt('mknod_char', lambda: os.mknod('/tmp/null', 0o20666, os.makedev(1, 3)))
attempt('mknod_block', lambda: os.mknod('/tmp/disk', 0o60666, os.makedev(254, 0)))
attempt('mkfifo', lambda: os.mkfifo('/tmp/fifo'))",
    ));
    let refused = [
        "mount",
        "umount",
        "pivot_root",
        "chroot",
        "unshare_user",
        "unshare_mount",
        "setns",
        "clone_newuser",
        "fsopen",
        "open_tree",
        "move_mount",
        "mount_setattr",
        "ptrace",
        "process_vm_readv",
        "pidfd_getfd",
        "bpf",
        "userfaultfd",
        "perf_event_open",
        "keyctl",
        "add_key",
        "open_by_handle_at",
        "init_module",
        "kexec_load",
        "reboot",
        "swapon",
        "settimeofday",
        "sethostname",
        "quotactl",
        "acct",
        "tiocsti",
        "tiocsti_high_bits",
        "personality",
        "vsock",
        "packet",
        "tipc_pair",
        "vsock_pair",
        "socket_program_26",
        "socket_program_50",
        "socket_program_51",
        "socket_program_52",
        "socket_program_high_bits",
        "mknod_char",
        "mknod_block",
    ];
    let mut expected: Vec<(&str, &str)> = refused.map(|name| (name, "EPERM")).into();
    expected.extend([("clone3", "ENOSYS"), ("io_uring_setup", "ENOSYS"), ("x32_getpid", "ENOSYS"), ("mkfifo", "null")]);
    expected.push(("socket_buffer", "EBADF"));
    assert_outcomes(&found, &expected);
}

#[test]
fn a_model_cannot_write_files_of_others() {
    let found = attempts(body(
        "for path in ['/usr/x', '/x', '/etc/passwd', '/etc/x', '/dev/x', '/model/body.py', '/model/x', '/proc/sys/kernel/hostname',
             '/proc/sysrq-trigger', '/proc/self/oom_score_adj', '/proc/meminfo', '/proc/stat', '/sys/devices/system/cpu/online', '/sys/devices/system/cpu/cpu0/uevent', '/run/x', '/var/x']:
    attempt(path, lambda: open(path, 'w').write('1'))
for path in ['/tmp/x', '/dev/shm/x', '/tmp/home/x', '/dev/null']:
    attempt(path, lambda: open(path, 'w').write('1'))
attempt('chmod', lambda: os.chmod('/usr/bin/python3', 0o777))
attempt('link', lambda: os.link('/usr/bin/env', '/tmp/env'))",
    ));
    let value = |name: &str| found[name].as_str().map_or(found[name].to_string(), str::to_owned);
    for name in ["/tmp/x", "/dev/shm/x", "/tmp/home/x", "/dev/null"] {
        assert_eq!(value(name), "1", "{name}");
    }
    for (name, result) in &found {
        let writable = name.starts_with("/tmp") || name.starts_with("/dev/shm") || name == "/dev/null";
        let refused = ["EROFS", "EACCES", "EPERM", "EXDEV", "ENOENT"].contains(&value(name).as_str());
        assert!(writable || refused, "{name}: {result}");
    }
}

#[test]
fn limits_cannot_be_raised() {
    let found = attempts(body(
        "import resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
attempt('files', lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (hard + 1, hard + 1)))
attempt('core', lambda: resource.setrlimit(resource.RLIMIT_CORE, (2, 2)))
attempt('nice', lambda: os.nice(-1))
attempt('cgroup', lambda: os.listdir('/sys/fs/cgroup'))
attempt('own_group', lambda: [line.split(':')[2].strip() for line in open('/proc/self/cgroup')
                              if line.split(':')[1] in ('memory', 'pids')])",
    ));
    let expected = [
        ("files", "EPERM"),
        ("core", "EPERM"),
        ("nice", "EPERM"),
        ("cgroup", "ENOENT"),
        ("own_group", "[\"/\",\"/\"]"),
    ];
    // Python turns EPERM of setrlimit into ValueError.
    let found = found
        .into_iter()
        .map(|(name, value)| (name, if value == "ValueError" { "EPERM".into() } else { value }))
        .collect();
    assert_outcomes(&found, &expected);
}

#[test]
fn pid_1_is_out_of_reach_though_it_has_the_same_user() {
    let found = attempts(body(
        "for name in ['environ', 'mem', 'maps', 'exe', 'fd', 'root', 'cwd', 'ns/mnt']:
    path = '/proc/1/' + name
    attempt(name, lambda: os.listdir(path) if name == 'fd' else os.readlink(path) if name in ('exe', 'root', 'cwd', 'ns/mnt') else open(path, 'rb').read(1))
attempt('kill', lambda: os.kill(1, 9))
attempt('stop', lambda: os.kill(1, 19))
attempt('after', lambda: os.getppid())
attempt('pids', lambda: sorted(int(name) for name in os.listdir('/proc') if name.isdigit()))",
    ));
    let denied = ["environ", "mem", "maps", "exe", "fd", "root", "cwd", "ns/mnt"];
    let mut expected: Vec<(&str, &str)> = denied.map(|name| (name, "EACCES")).into();
    expected.extend([("kill", "null"), ("stop", "null"), ("after", "1"), ("pids", "[1,2]")]);
    assert_outcomes(&found, &expected);
}

#[test]
fn a_sibling_and_the_host_are_out_of_reach() {
    let host = Host::new();
    let mut sibling = body("open('/tmp/secret', 'w').write('x')\nready()\nhear()");
    sibling.env = vec![("SECRET".into(), "x".into())];
    let mut neighbour = host.start(sibling);
    neighbour.connect().ready();
    let engine = neighbour.connect().welcome.engine_pid.unwrap();
    // An abstract socket and a port of the host.
    let name = format!("omni-test-{}", std::process::id());
    let abstract_socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(abstract_socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes()).unwrap()).unwrap();
    listen(&abstract_socket, Backlog::new(1).unwrap()).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dir = host.dir.path().to_str().unwrap();
    let worker = neighbour.worker.id();
    let found = attempts_on(
        &host,
        body(&format!(
            "import socket
def reach(family, address):
    with socket.socket(family) as s: s.connect(address)
attempt('signal', lambda: os.kill({engine}, 0))
attempt('signal_worker', lambda: os.kill({worker}, 0))
attempt('environ', lambda: open('/proc/{engine}/environ').read())
attempt('mem', lambda: open('/proc/{engine}/mem').read())
attempt('root', lambda: os.listdir('/proc/{engine}/root'))
attempt('files', lambda: os.path.exists('/tmp/secret'))
attempt('folder', lambda: os.listdir('{dir}'))
attempt('socket', lambda: reach(socket.AF_UNIX, '{dir}/0.sock'))
attempt('abstract', lambda: reach(socket.AF_UNIX, '\\0{name}'))
attempt('port', lambda: reach(socket.AF_INET, ('127.0.0.1', {port})))
attempt('outside', lambda: reach(socket.AF_INET, ('192.0.2.1', 80)))
attempt('interfaces', lambda: [name for _, name in socket.if_nameindex()])
attempt('hostname', lambda: socket.gethostname())
attempt('shm', lambda: os.listdir('/dev/shm'))",
            port = port.local_addr().unwrap().port()
        )),
    );
    let expected = [
        ("signal", "ESRCH"),
        ("signal_worker", "ESRCH"),
        ("environ", "ENOENT"),
        ("mem", "ENOENT"),
        ("root", "ENOENT"),
        ("files", "false"),
        ("folder", "ENOENT"),
        ("socket", "ENOENT"),
        ("abstract", "ECONNREFUSED"),
        ("port", "ECONNREFUSED"),
        ("outside", "ENETUNREACH"),
        ("interfaces", "[\"lo\"]"),
        ("hostname", "test"),
        ("shm", "[]"),
    ];
    assert_outcomes(&found, &expected);
    neighbour.connect().send(&ToWorker::Kill);
    neighbour.wait();
}

#[test]
fn in_the_hosts_network_abstract_sockets_stay_out_of_reach() {
    let name = format!("omni-test-host-{}", std::process::id());
    let abstract_socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(abstract_socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes()).unwrap()).unwrap();
    listen(&abstract_socket, Backlog::new(1).unwrap()).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut setup = body(&format!(
        "import socket
def reach(family, address):
    with socket.socket(family) as s: s.connect(address)
attempt('abstract', lambda: reach(socket.AF_UNIX, '\\0{name}'))
attempt('port', lambda: reach(socket.AF_INET, ('127.0.0.1', {port})))
attempt('resolv_conf', lambda: os.path.exists('/etc/resolv.conf'))",
        port = port.local_addr().unwrap().port()
    ));
    setup.host_network = true;
    assert_outcomes(&attempts(setup), &[("abstract", "EPERM"), ("port", "null"), ("resolv_conf", "true")]);
}

#[test]
fn the_worker_cannot_be_traced_and_its_program_is_not_inside() {
    let host = Host::new();
    let instance = host.start(body("ready()\nhear()"));
    instance.connect().ready();
    let worker = instance.worker.id();
    let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(format!("/proc/{worker}/exe")).unwrap());
    assert_eq!(owner, 0);
    let found = attempts_on(
        &host,
        body("attempt('exe', lambda: open('/proc/1/exe', 'rb'))\nattempt('write', lambda: open('/proc/1/exe', 'r+b'))"),
    );
    assert_outcomes(&found, &[("exe", "EACCES"), ("write", "EACCES")]);
}
