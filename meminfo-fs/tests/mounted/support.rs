//! Fixtures of the tests with the real kernel: a control group, a mount namespace, and controllable sources.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::mem;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use omni_meminfo_fs::{
    CgroupV1, CgroupV2, DetachedMount, File, Groups, MemorySample, MemorySource, Processors, SampleError, Shown, View,
};

pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// Directory of the files while they are attached.
pub(crate) const ALL: &str = "/mnt";

/// Runs `body` in a mount namespace of its own with each file over its place; all is gone when this returns. Processes
/// that `body` starts are in the namespace too.
pub(crate) fn with_meminfo<T: Send>(detached: DetachedMount, body: impl FnOnce() -> T + Send) -> T {
    in_own_namespace(move || {
        attach(&detached);
        drop(detached);
        body()
    })
}

/// Attaches each file over its place in this namespace.
pub(crate) fn attach(detached: &DetachedMount) {
    detached.attach(c"/mnt").unwrap();
    for file in File::ALL {
        let source = Path::new(ALL).join(file.name());
        mount(Some(&source), file.place(), None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    }
    umount2(ALL, MntFlags::MNT_DETACH).unwrap();
}

/// View of one group with this memory, and with some of two seconds used of all processors.
pub(crate) fn view(memory: impl MemorySource) -> View {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("cpu.stat"), "usage_usec 2000000\nuser_usec 1500000\nsystem_usec 500000\n").unwrap();
    View::new(memory, Processors::open_v2(dir.path(), Shown::by_limit(1000).unwrap(), 0).unwrap())
}

pub(crate) fn groups(memory: impl MemorySource) -> Groups {
    Groups::new(view(memory))
}

/// Runs `body` on a thread of its own in a mount namespace of its own.
pub(crate) fn in_own_namespace<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let inside = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
            body()
        });
        inside.join().unwrap()
    })
}

/// Standard output of a command that must succeed and print nothing to standard error.
pub(crate) fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{command:?}: {}: {errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Polls until `done`.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < DEADLINE, "{what}: not within {DEADLINE:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Number on a line of `/proc/meminfo`, in kB.
pub(crate) fn line(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Child that is killed and reaped when the test ends, however it ends.
pub(crate) struct Reader(pub(crate) Child);

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Control group of the machine's own memory controller, whichever version that is. Empty and gone after the test.
pub(crate) struct Group {
    dir: PathBuf,
    v1: bool,
}

impl Group {
    pub(crate) fn new(name: &str, limit: u64) -> Self {
        let (controller, v1) = controller();
        let dir = controller.join(format!("omni-meminfo-test-{name}-{}", process::id()));
        fs::create_dir(&dir).unwrap();
        let file = if v1 { "memory.limit_in_bytes" } else { "memory.max" };
        fs::write(dir.join(file), limit.to_string()).unwrap();
        Self { dir, v1 }
    }

    pub(crate) fn source(&self) -> Box<dyn MemorySource> {
        if self.v1 {
            Box::new(CgroupV1::open(&self.dir, None).unwrap())
        } else {
            Box::new(CgroupV2::open(&self.dir, None).unwrap())
        }
    }

    /// Name as [`omni_meminfo_fs::Groups`] takes it.
    pub(crate) fn name(&self) -> String {
        self.dir.file_name().unwrap().to_str().unwrap().to_owned()
    }

    /// Process that joins the group and prints a file.
    pub(crate) fn reader(&self, file: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec cat \"$1\""]).arg(&self.dir).arg(file);
        command
    }

    /// Process in the group that has touched so many bytes and keeps them until it is dropped.
    pub(crate) fn eater(&self, bytes: u64) -> Reader {
        let script = "echo $$ > \"$0/cgroup.procs\" && exec python3 -c \
                      'import sys; kept = b\"x\" * int(sys.argv[1]); print(\"full\", flush=True); sys.stdin.read()' \"$1\"";
        let child = Command::new("sh")
            .args([OsString::from("-c"), script.into(), self.dir.clone().into(), bytes.to_string().into()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut eater = Reader(child);
        let mut said = String::new();
        BufReader::new(eater.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "full\n");
        eater
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A reaped process may still be counted for a moment.
        until("the group is empty", || fs::remove_dir(&self.dir).is_ok());
    }
}

/// Directory in which groups are made, and `true` for v1.
fn controller() -> (&'static Path, bool) {
    static CONTROLLER: OnceLock<(PathBuf, bool)> = OnceLock::new();
    let (dir, v1) = CONTROLLER.get_or_init(|| {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mounts = || mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        if let Some(found) = mounts().find(|m| m[2] == "cgroup" && m[3].split(',').any(|o| o == "memory")) {
            return (found[1].into(), true);
        }
        let unified = mounts().find(|m| m[2] == "cgroup2").expect("no control groups are mounted");
        fs::write(Path::new(unified[1]).join("cgroup.subtree_control"), "+memory").unwrap();
        (unified[1].into(), false)
    });
    (dir, *v1)
}

/// Source with a constant sample.
pub(crate) struct Fixed(MemorySample);

impl MemorySource for Fixed {
    fn sample(&self) -> Result<MemorySample, SampleError> {
        Ok(self.0)
    }
}

pub(crate) fn seven_gib() -> Fixed {
    Fixed(MemorySample { limit: 7 * GIB, usage: GIB, file: GIB / 2, ..MemorySample::default() })
}

/// Source that, after its first answer, is stuck in each request until released: a dead server for its readers, with
/// the request taken and not answered.
pub(crate) struct Stuck {
    asked: SyncSender<()>,
    go_on: Mutex<Receiver<()>>,
    first: Mutex<bool>,
}

/// Control of a stuck source: `asked` reports that a request was taken; dropping `go_on` lets the source answer.
pub(crate) struct Handle {
    pub(crate) asked: Receiver<()>,
    pub(crate) go_on: SyncSender<()>,
}

pub(crate) fn stuck() -> (Stuck, Handle) {
    let (asked, asked_here) = sync_channel(16);
    let (go_on_here, go_on) = sync_channel(0);
    let source = Stuck { asked, go_on: Mutex::new(go_on), first: Mutex::new(true) };
    (source, Handle { asked: asked_here, go_on: go_on_here })
}

impl MemorySource for Stuck {
    fn sample(&self) -> Result<MemorySample, SampleError> {
        if !mem::take(&mut *self.first.lock().unwrap()) {
            let _ = self.asked.send(());
            let _ = self.go_on.lock().unwrap().recv();
        }
        seven_gib().sample()
    }
}
