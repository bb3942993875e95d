//! Sandbox of a model with a GPU, and of one without: device files, the directory `/gpu`, and how far the accounting
//! file can be abused.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

#[path = "sandbox_support/mod.rs"]
mod support;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use omni_gpu_protocol::account::{FILE_BYTES, Settings};
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::launcher::{GpuMode, GpuSpec};
use omni_sandbox::Bind;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use support::{Host, MIB, Setup, body};

fn spec() -> GpuSpec {
    GpuSpec {
        uuid: "GPU-00000000-0000-0000-0000-000000000000".into(),
        minor: 1,
        limit_bytes: 64 * MIB,
        mode: GpuMode::Unified,
    }
}

/// A model with a GPU: plain files stand for the device files.
fn with_gpu(host: &Host, python: &str) -> Setup {
    let dir = host.dir.path().join("dev");
    fs::create_dir_all(&dir).unwrap();
    for name in ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"] {
        fs::write(dir.join(name), name).unwrap();
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o666)).unwrap();
    }
    let devices = ["nvidia1", "nvidiactl", "nvidia-uvm"].map(|name| dir.join(name)).into();
    Setup { devices, gpu: Some(spec()), ..body(&format!("{ATTEMPTS}\n{python}")) }
}

const ATTEMPTS: &str = include_str!("sandbox_support/attempts.py");

fn facts(host: &Host, setup: Setup) -> BTreeMap<String, Value> {
    let (facts, cause) = host.run(setup);
    assert_eq!(cause, ExitCause::Exited { code: 0 });
    facts.into_iter().flat_map(|fact| fact.as_object().unwrap().clone()).collect()
}

#[test]
fn the_devices_of_the_assigned_card_are_there_and_no_others() {
    let host = Host::new();
    let found = facts(
        &host,
        with_gpu(
            &host,
            "import mmap
tell(devices=sorted(name for name in os.listdir('/dev') if 'nvidia' in name))
with open('/dev/nvidia1', 'r+b') as card:
    shared = mmap.mmap(card.fileno(), 7)
    tell(content=shared[:].decode())
    shared[:] = b'written'
attempt('make', lambda: open('/dev/nvidia0', 'x'))
attempt('mknod', lambda: os.mknod('/tmp/nvidia0', 0o020666, os.makedev(195, 0)))
attempt('remove', lambda: os.remove('/dev/nvidia1'))
",
        ),
    );
    assert_eq!(found["devices"], json!(["nvidia-uvm", "nvidia1", "nvidiactl"]));
    assert_eq!(found["content"], "nvidia1");
    assert_eq!((&found["make"], &found["mknod"]), (&json!("EROFS"), &json!("EPERM")));
    assert_eq!(found["remove"], "EROFS");
    assert_eq!(fs::read(host.dir.path().join("dev/nvidia1")).unwrap(), b"written");
}

/// A model that may use a card gets no more of the system's calls, and every one that the driver and PyTorch make.
#[test]
fn system_calls_of_cuda_work() {
    let host = Host::new();
    let mut setup = with_gpu(
        &host,
        "import mmap, fcntl
room = mmap.mmap(-1, 1 << 16)
address = ctypes.addressof(ctypes.c_char.from_buffer(room))
policy = ctypes.c_int()
call('mbind', 237, address, 1 << 16, 0, None, 0, 0)
call('set_mempolicy', 238, 0, None, 0)
call('get_mempolicy', 239, ctypes.addressof(policy), None, 0, None, 0)
call('mlock', 149, address, 4096)
call('madvise', 28, address, 4096, 10)
mask = ctypes.c_long(-1)
call('sched_setaffinity', 203, 0, 8, ctypes.addressof(mask))
call('userfaultfd', 323, 0)
attempt('memfd', lambda: os.memfd_create('x') > 2)
attempt('eventfd', lambda: os.eventfd(0) > 2)
attempt('pidfd', lambda: os.pidfd_open(os.getpid()) > 2)
attempt('epoll', lambda: __import__('select').epoll().fileno() > 2)
attempt('fixed', lambda: mmap.mmap(-1, 1 << 40, flags=mmap.MAP_PRIVATE | 0x4000, prot=0) is not None)
device = os.open('/dev/nvidia-real', os.O_RDWR)
attempt('ioctl', lambda: fcntl.ioctl(device, 0x5401, bytes(64)))
",
    );
    // A device file that is one, the null device: an ioctl arrives at its driver, which knows none.
    let real = host.dir.path().join("dev/nvidia-real");
    mknod(&real, SFlag::S_IFCHR, Mode::empty(), makedev(1, 3)).unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o666)).unwrap();
    setup.devices.push(real);
    let found = facts(&host, setup);
    for call in ["mbind", "set_mempolicy", "get_mempolicy", "mlock", "madvise", "sched_setaffinity"] {
        assert_eq!(found[call], 0, "{call}");
    }
    for call in ["memfd", "eventfd", "pidfd", "epoll", "fixed"] {
        assert_eq!(found[call], true, "{call}");
    }
    assert_eq!((&found["ioctl"], &found["userfaultfd"]), (&json!("ENOTTY"), &json!("EPERM")));
}

#[test]
fn the_accounting_file_is_the_models_to_write_and_bounded() {
    let host = Host::new();
    let found = facts(
        &host,
        with_gpu(
            &host,
            "import mmap, struct
file = os.open('/gpu/account', os.O_RDWR)
header = list(struct.unpack('<2Q', os.pread(file, 16, 88)))
tell(size=os.fstat(file).st_size, header=header, zeros=not any(os.pread(file, 88, 0) + os.pread(file, 1 << 20, 104)))
tell(preload=open('/etc/ld.so.preload').read())
attempt('preload-write', lambda: open('/etc/ld.so.preload', 'w'))
shared = mmap.mmap(file, os.fstat(file).st_size)
shared[0:4] = b'omni'
def child():
    with open('/gpu/account', 'rb') as again:
        return again.read(4).decode()
tell(shared=child())
attempt('more', lambda: os.pwrite(file, b'x' * 65536, os.fstat(file).st_size + 65536))
attempt('mode', lambda: os.chmod('/gpu/account', 0o777))
attempt('beside', lambda: open('/gpu/other', 'x'))
attempt('library', lambda: open('/gpu/lib.so', 'r+b'))
attempt('remove', lambda: os.remove('/gpu/account'))
attempt('move', lambda: os.rename('/gpu/account', '/gpu/account2'))
used = os.statvfs('/gpu')
tell(room=used.f_blocks * used.f_frsize, free=used.f_bfree)
",
        ),
    );
    assert_eq!((&found["size"], &found["zeros"]), (&json!(FILE_BYTES), &json!(true)));
    // The limit and the mode, so that no variable has to say them.
    assert_eq!((&found["header"], Settings::AT), (&json!([4, 64 * MIB]), 88));
    assert_eq!(found["preload"], "/gpu/libomni_cuda.so\n");
    assert_eq!(found["preload-write"], "EROFS");
    assert_eq!(found["shared"], "omni");
    assert_eq!(found["more"], "ENOSPC");
    for name in ["mode", "beside", "library", "remove", "move"] {
        let refused = ["EACCES", "EPERM", "ENOENT", "EROFS"].map(Value::from);
        assert!(refused.contains(&found[name]), "{name}: {}", found[name]);
    }
    assert_eq!((&found["room"], &found["free"]), (&json!(FILE_BYTES.next_multiple_of(4096)), &json!(0)));
}

/// Managed memory that waits in the host's may be charged to the group.
#[test]
fn use_beyond_what_is_shown_is_a_full_machine_and_no_more() {
    let host = Host::new();
    let python = "filled = bytearray(os.urandom(1 << 20)) * 128
lines = (line.split() for line in open('/proc/meminfo'))
tell(**{words[0].rstrip(':'): int(words[1]) for words in lines})";
    let setup = Setup { memory_bytes: 64 * MIB, unseen_bytes: 192 * MIB, ..with_gpu(&host, python) };
    let found = facts(&host, setup);
    let kib = |name: &str| found[name].as_u64().unwrap();
    assert_eq!((kib("MemTotal"), kib("MemFree")), (64 * 1024, 0));
    let used = kib("MemTotal").checked_sub(kib("MemFree") + kib("Buffers") + kib("Cached") + kib("SReclaimable"));
    assert!(used.is_some_and(|used| used > 0), "{found:?}");
    assert!(found.values().all(|value| value.as_u64().unwrap() <= 64 * 1024), "{found:?}");
}

#[test]
fn a_bind_covers_a_file_of_the_system() {
    let host = Host::new();
    let cover = host.dir.path().join("cover");
    fs::write(&cover, "covered").unwrap();
    let covered = fs::canonicalize("/usr/lib/os-release").unwrap();
    let before = fs::read(&covered).unwrap();
    let mut setup = with_gpu(&host, "tell(text=open('/usr/lib/os-release').read())");
    setup.binds.push(Bind { source: cover, target: covered.clone(), writable: false });
    assert_eq!(facts(&host, setup)["text"], "covered");
    assert_eq!(fs::read(covered).unwrap(), before);
}

#[test]
fn a_model_without_a_gpu_sees_no_gpu_files() {
    let host = Host::new();
    let setup = body(
        "tell(gpu=os.path.exists('/gpu'), devices=sorted(os.listdir('/dev')),
             environment=sorted(line.split('=')[0] for line in open('/proc/self/environ').read().split('\\0') if line), sys=sorted(os.listdir('/sys')), driver=os.listdir('/proc/driver'),
             mapped=[line for line in open('/proc/self/maps') if 'cuda' in line])",
    );
    let found = facts(&host, setup);
    assert_eq!((&found["gpu"], &found["mapped"]), (&json!(false), &json!([])));
    let devices = ["fd", "full", "null", "random", "shm", "stderr", "stdin", "stdout", "urandom", "zero"];
    assert_eq!(found["devices"], json!(devices));
    assert_eq!(found["environment"], json!(["HOME", "PATH"]));
    assert_eq!((&found["sys"], &found["driver"]), (&json!(["devices"]), &json!([])));
}
