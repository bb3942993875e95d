//! Reach of a model through a whole node: not other models, not the node, not the machine. The attempts are made by the
//! model's own code, and their targets are checked from outside. `worker/tests` tries every wall on its own; here they
//! stand as a node builds them. Single calls and tricks are tried in `tests/security/escape`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::Node;
use omni_tests::probe::{self, assert_found, probe};
use omni_tests::process::{is_alive, parent};
use serde_json::json;
use std::fs;

/// A word that is only in the victim's memory, environment and files.
const SECRET: &str = "9f1c-secret-of-the-victim";
/// Added to the probe: a setup that leaves the word wherever a model can leave something.
const SECRETIVE: &str = r#"
import socket
from pathlib import Path

def setup(context):
    for folder in ("/tmp", "/dev/shm", context.cache_dir):
        Path(folder, "victims-own").write_text(os.environ["WORD"])
    global listeners
    listeners = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    for listener, name in zip(listeners, ("/tmp/victims-socket", "\0victims-socket")):
        listener.bind(name)
        listener.listen()
"#;
const PROBE: &[(&str, &str)] = &[("model.py", probe::MODEL)];

/// Attempts on the processes with these numbers.
const PROCESSES: &str = r#"
import ctypes, glob, socket
pids = [NUMBERS]
processes = {int(name) for name in os.listdir("/proc") if name.isdigit()}
tell(processes=sorted(processes))
own = processes | {int(name) for name in os.listdir("/proc/self/task")}
tell(seen=[pid for pid in pids if os.path.exists(f"/proc/{pid}")])
def reached(act):
    hits = []
    for pid in set(pids) | set(range(1 << 16)):
        if pid not in own and pid:
            try:
                act(pid)
                hits.append(pid)
            except ProcessLookupError:
                pass
    return hits
tell(signalled=reached(lambda pid: os.kill(pid, 9)))
tell(groups=reached(lambda pid: os.killpg(pid, 9)))
tell(scheduled=reached(lambda pid: os.sched_setaffinity(pid, {0})))
attempt("everybody", lambda: os.kill(-1, 9))
victim = pids[0]
call("ptrace", 101, 16, victim, None, None)
class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
room = ctypes.create_string_buffer(64)
here, there = Part(ctypes.addressof(room), 64), Part(0x400000, 64)
for name, number in (("read_memory", 310), ("write_memory", 311)):
    call(name, number, victim, bytes(here), 1, bytes(there), 1, 0)
call("pidfd_open", 434, victim, 0)
call("kcmp", 312, os.getpid(), victim, 0, 0, 0)
for name in ("mem", "environ", "root", "cwd", "fd", "exe", "maps"):
    attempt("proc_" + name, lambda: os.open(f"/proc/{victim}/{name}", os.O_RDONLY))
"#;

/// Searches for another model by name, by content, and by its mounts, sockets and segments.
const FILES: &str = r#"
import socket
names, said = [], []
own = ("/usr", "/sys", sys.base_prefix, "/proc/self", "/proc/thread-self", f"/proc/{os.getpid()}")
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if os.path.join(folder, name) not in own]
    names += [os.path.join(folder, name) for name in folders + files if "victim" in name]
    for name in files:
        path = os.path.join(folder, name)
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                if b"WORD" in file.read(1 << 20):
                    said.append(path)
        except (OSError, ValueError):
            pass
tell(names=sorted(names), said=sorted(said), environment=[name for name, value in os.environ.items() if "WORD" in value])
tell(mounts="DIGEST" in open("/proc/self/mountinfo").read())
tell(shared=os.listdir("/dev/shm") + sorted(os.listdir(context.cache_dir)))
def reach(address):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(address)
attempt("socket", lambda: reach("/tmp/victims-socket"))
attempt("abstract", lambda: reach("\0victims-socket"))
tell(segments=open("/proc/sysvipc/shm").read().count("\n"))
"#;

#[test]
fn another_model_is_out_of_reach() {
    let manifest = format!("schema = 1\n[env]\nWORD = \"{SECRET}\"\n");
    let victim = format!("{}{SECRETIVE}", probe::MODEL);
    let node = Node::builder()
        .model("victim", &[("model.py", &victim), ("omni.toml", &manifest)])
        .model("probe", PROBE)
        .start();
    assert!(probe(&node, "victim", "").is_empty());
    let victim = node.engine("victim").expect("a process");
    let keepers = [victim, parent(victim).unwrap(), node.worker(victim).unwrap(), node.launcher().unwrap(), node.pid()];

    // The process, by the number that the host has for it and by any other.
    let numbers = keepers.map(|pid| pid.to_string()).join(", ");
    let code = PROCESSES;
    let found = probe(&node, "probe", &code.replace("NUMBERS", &numbers));
    let expected = json!({
        "processes": [1, 2], "seen": [], "signalled": [], "groups": [], "scheduled": [], "everybody": "ESRCH",
        "ptrace": "EPERM", "read_memory": "EPERM", "write_memory": "EPERM", "pidfd_open": "ESRCH", "kcmp": "EPERM",
        "proc_mem": "ENOENT", "proc_environ": "ENOENT", "proc_root": "ENOENT", "proc_cwd": "ENOENT",
        "proc_fd": "ENOENT", "proc_exe": "ENOENT", "proc_maps": "ENOENT",
    });
    assert_eq!(json!(found), expected);

    // The files, wherever they might show: by name, and by their content in anything readable.
    let code = FILES;
    // Split, or this request's own text would be found.
    let code = code
        .replace("b\"WORD\"", "b\"secret\" b\"-of-the-victim\"")
        .replace("\"WORD\"", "\"secret\" \"-of-the-victim\"");
    // The digest of the victim's copy is in its own list of mounts.
    let code = code.replace("DIGEST", &node.model("victim").version.unwrap());
    let nothing = json!({
        "names": [], "said": [], "environment": [], "mounts": false, "shared": [".cache", "lost+found"],
        "socket": "ENOENT", "abstract": "ECONNREFUSED", "segments": 1,
    });
    assert_found(&node, "probe", &code, &nothing);
    // The victim finds all of it with the same search.
    let everything = json!({
        "names": ["/cache/victims-own", "/dev/shm/victims-own", "/tmp/victims-own", "/tmp/victims-socket"],
        "said": ["/cache/victims-own", "/dev/shm/victims-own", "/model/omni.toml", "/tmp/victims-own"],
        "environment": ["WORD"], "mounts": true, "shared": ["victims-own", ".cache", "lost+found", "victims-own"],
        "socket": null, "abstract": null, "segments": 1,
    });
    assert_found(&node, "victim", &code, &everything);

    assert!(keepers.into_iter().all(is_alive), "{}", node.log());
    assert_eq!((node.model("victim").restarts, node.engine("victim")), (0, Some(victim)));
    node.stop();
}

/// Attempts on the node's folders, sockets and ports, and on the root of the sandbox.
const REACHES: &str = r#"
import socket
folder, run = FOLDER, RUN
tell(places=[path for path in (run, "/home", "/opt", "/boot", "/sys/fs", "/sys/kernel") if os.path.exists(path)])
# Of the node's own folder, nothing but the one environment.
tell(node=[os.listdir(folder + below) for below in ("", "/cache", "/cache/environments")])
def reach(family, address):
    with socket.socket(family) as sock:
        sock.connect(address)
for name in ("control.sock", "launcher.sock"):
    attempt(name, lambda: reach(socket.AF_UNIX, f"{run}/{name}"))
for name, port in (("data", DATA), ("admin", ADMIN)):
    attempt(name, lambda: reach(socket.AF_INET, ("127.0.0.1", port)))
attempt("outside", lambda: reach(socket.AF_INET, ("192.0.2.1", 80)))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
tell(interfaces=[name for _, name in socket.if_nameindex()])

# Ways out of the root, and into what others run.
attempt("exe", lambda: open("/proc/self/exe", "r+b"))
attempt("pid 1", lambda: open("/proc/1/exe", "rb"))
attempt("pid 1's root", lambda: os.listdir("/proc/1/root"))
attempt("chroot", lambda: os.chroot("/tmp"))
attempt("above", lambda: os.stat("/..").st_ino == os.stat("/").st_ino)
directories = []
for number in os.listdir("/proc/self/fd"):
    try:
        os.listdir(f"/proc/self/fd/{number}")
        directories.append(os.readlink(f"/proc/self/fd/{number}"))
    except OSError:
        pass
# The one that lists them is gone when it is asked.
tell(directories=directories, cwd=os.getcwd())
"#;

/// Attempts to write anything outside the model's own folders.
const CHANGES: &str = r#"
import shutil
places = ["/usr/x", "/bin/sh", "/x", "/etc/passwd", "/etc/x", "/dev/x", "/run/x", "/var/x", "/model/model.py", "/model/x",
          "/omni/x", "/omni/python/omni/__init__.py", sys.prefix + "/x", sys.prefix + "/pyvenv.cfg", sys.executable,
          "/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/proc/meminfo",
          "/proc/self/oom_score_adj", "/proc/1/oom_score_adj", "/sys/devices/system/cpu/cpu0/online"]
written = []
for path in places:
    for act in (lambda: open(path, "ab"), lambda: os.unlink(path), lambda: os.rename(path, path + "-"),
                lambda: os.chmod(path, 0o777), lambda: os.symlink("/tmp", path + ".link")):
        try:
            act()
            written.append(path)
        except OSError:
            pass
tell(written=written, listed=len(places))
tell(special=[path for folder, _, files in os.walk("/usr/bin") for path in (os.path.join(folder, name) for name in files)
              if os.path.exists(path) and os.stat(path).st_mode & 0o6000 and os.statvfs(path).f_flag & os.ST_NOSUID == 0])
def visible(name):
    path = "/proc/" + name
    return os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1).decode()
for name in ("kcore", "keys", "key-users", "timer_list", "acpi", "scsi"):
    attempt(name, lambda: visible(name) if os.path.exists("/proc/" + name) else "")
"#;

#[test]
fn the_node_and_the_machine_are_out_of_reach() {
    let node = Node::builder().model("probe", PROBE).start();
    let folder = node.folder().parent().unwrap().to_owned();
    let control = node.control_socket();
    assert!(probe(&node, "probe", "").is_empty());
    let environments = folder.join("cache/environments");
    let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let environment = fs::read_dir(&environments).unwrap().map(|entry| entry.unwrap()).find(is_folder).unwrap();
    let environment = environment.file_name().into_string().unwrap();
    fs::create_dir(environments.join("a".repeat(64))).unwrap();
    let code = REACHES;
    let code = code
        .replace("FOLDER", &format!("{folder:?}"))
        .replace("RUN", &format!("{:?}", control.parent().unwrap()))
        .replace("DATA", &node.data_address().port().to_string())
        .replace("ADMIN", &node.admin_address().port().to_string());
    assert_found(
        &node,
        "probe",
        &code,
        &json!({
            "places": [], "node": [["cache"], ["environments"], [environment]], "control.sock": "ENOENT", "launcher.sock": "ENOENT",
            "data": "ECONNREFUSED", "admin": "ECONNREFUSED", "outside": "ENETUNREACH",
            "raw": "EPERM", "packet": "EPERM", "interfaces": ["lo"],
            "exe": "EACCES", "pid 1": "EACCES", "pid 1's root": "EACCES", "chroot": "EPERM", "above": true,
            "directories": [], "cwd": "/model",
        }),
    );

    // Files and sockets that could change a node.
    let code = CHANGES;
    let mut found = probe(&node, "probe", code);
    assert_eq!(found.remove("special"), Some(json!([])), "programs with rights of their own");
    assert_eq!((found.remove("written"), found.remove("listed")), (Some(json!([])), Some(json!(22))));
    for (name, shown) in found {
        assert!([json!(""), json!([]), json!("EACCES"), json!("EPERM")].contains(&shown), "/proc/{name}: {shown}");
    }
    node.stop();
}

#[test]
fn limits_cannot_be_raised() {
    let manifest = "schema = 1\n[resources]\nmemory = \"256MiB\"\npids = 40\n[limits]\ntmp = \"8MiB\"\n";
    let node = Node::builder().model("probe", &[PROBE[0], ("omni.toml", manifest)]).start();
    let code = r#"
import resource, subprocess, threading
def more(which):
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        resource.setrlimit(which, (hard + 1, hard + 1))
attempt("files", lambda: more(resource.RLIMIT_NOFILE))
attempt("core", lambda: more(resource.RLIMIT_CORE))
attempt("nice", lambda: os.nice(-1))
attempt("real time", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
attempt("groups", lambda: os.listdir("/sys/fs/cgroup"))
tell(group=sorted({line.split(":")[2].strip() for line in open("/proc/self/cgroup") if line.split(":")[1] in ("memory", "pids", "")}))
def fill(folder):
    size = 0
    try:
        with open(folder + "/big", "wb", buffering=0) as big:
            while True:
                size += big.write(bytes(1 << 20))
    finally:
        os.unlink(folder + "/big")
        tell(**{folder: size})
attempt("full /tmp", lambda: fill("/tmp"))
attempt("full /dev/shm", lambda: fill("/dev/shm"))
children = []
def breed():
    while len(children) < 1000:
        children.append(subprocess.Popen(["sleep", "1000"]))
attempt("processes", breed)
for child in children:
    child.kill()
    child.wait()
tell(bred=len(children) < 40)
"#;
    assert_found(
        &node,
        "probe",
        code,
        &json!({
            "files": "ValueError", "core": "ValueError", "nice": "EPERM", "real time": "EPERM", "groups": "ENOENT",
            "group": ["/"], "full /tmp": "ENOSPC", "/tmp": 8 << 20, "full /dev/shm": "ENOSPC", "/dev/shm": 8 << 20,
            "processes": "EAGAIN", "bred": true,
        }),
    );
    node.stop();
}

/// Files that this machine may have open.
fn machine_files() -> u64 {
    let machine = fs::read_to_string("/proc/sys/fs/file-nr").unwrap();
    machine.split_ascii_whitespace().last().unwrap().parse().unwrap()
}

/// A model that opens so many files dies of it, and the node's log says so. Another model does not notice.
fn dies_of_its_files(model: &str, files: u64, said: &str) {
    let node = Node::builder().model("hoards", &[("model.py", model)]).model("probe", PROBE).start();
    let answer = node.http().run("hoards", &json!(files));
    assert_eq!((answer.status, answer.error_code()), (502, Some(3050)), "{}\n{}", answer.text(), node.log());
    assert!(node.log().contains(said), "{}", node.log());
    assert!(probe(&node, "probe", "").is_empty());
    node.stop();
}

/// Processes of one model, each with as many files as one may have, until they have twice the share of an instance.
const HOARD: &str = r#"
import os, time

def handle_request(request, context):
    wanted, children = request.body.json, []
    for _ in range(wanted // 16_000 + 1):
        child = os.fork()
        if child == 0:
            try:
                while True:
                    os.open("/dev/null", os.O_RDONLY)
            except OSError:
                time.sleep(60)
            os._exit(0)
        children.append(child)
    time.sleep(20)
    for child in children:
        os.kill(child, 9)
    return len(children)
"#;

#[test]
fn an_instance_beyond_its_share_of_the_machines_open_files_is_ended() {
    let max = machine_files();
    let share = max / 32;
    if share > 250_000 {
        println!("NOT TRIED: this machine may have {max} files open, and the test would need {share} of them");
        return;
    }
    let said = format!("an instance may have {share} of the {max} that the machine has");
    dies_of_its_files(HOARD, 2 * share, &said);
}

/// The same by files that are mapped and closed: more than a quarter of what the machine may have open.
const MAPPED: &str = r#"
import ctypes, os, time

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]

def handle_request(request, context):
    wanted, children = request.body.json, []
    for _ in range(wanted // 60_000 + 1):
        child = os.fork()
        if child == 0:
            mapped = 0
            while mapped not in (None, ctypes.c_void_p(-1).value):
                file = os.open("/usr/bin/env", os.O_RDONLY)
                mapped = libc.mmap(None, 4096, 1, 2, file, 0)
                os.close(file)
            time.sleep(60)
            os._exit(0)
        children.append(child)
    time.sleep(30)
    for child in children:
        os.kill(child, 9)
    return len(children)
"#;

#[test]
fn an_instance_that_maps_the_machines_open_files_is_ended() {
    let max = machine_files();
    if max > 4_000_000 {
        println!(
            "NOT TRIED: this machine may have {max} files open, and the test would need more than a quarter of them"
        );
        return;
    }
    dies_of_its_files(MAPPED, max / 3, "killed for its open files");
}
