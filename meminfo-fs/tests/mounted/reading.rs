//! Files as a model sees them, through a real mount in a mount namespace of its own.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::os::unix::process::CommandExt as _;
use std::process::{self, Command};

use crate::support::{GIB, Group, groups, line, output, seven_gib, until, view, with_meminfo};
use nix::libc;
use omni_meminfo_fs::{Groups, OPEN_FILES_MAX, prepare};

const MEMINFO: &str = "/proc/meminfo";

#[test]
fn common_programs_show_the_limit() {
    let packages = tempfile::tempdir().unwrap();
    if !Command::new("python3").args(["-c", "import psutil"]).output().unwrap().status.success() {
        let pip = Command::new("python3")
            .args(["-m", "pip", "install", "--quiet", "--root-user-action=ignore", "--disable-pip-version-check"])
            .args(["psutil", "--target"])
            .arg(packages.path())
            .output()
            .unwrap();
        assert!(pip.status.success(), "this test needs psutil: {}", String::from_utf8_lossy(&pip.stderr));
    }
    let host = fs::read_to_string(MEMINFO).unwrap();

    let group = Group::new("programs", 7 * GIB);
    let (mount, connection) = prepare().unwrap();
    let _server = connection.serve(groups(group.source())).unwrap();
    with_meminfo(mount, || {
        let text = fs::read_to_string(MEMINFO).unwrap();
        assert!(text.starts_with("MemTotal:        7340032 kB\n"), "{text}");
        // Columns as in the kernel's own lines.
        let width = |text: &str| text.lines().next().unwrap().len();
        assert!(line(&host, "MemTotal") > 99_999_999 || width(&host) == width(&text));

        let free = output(Command::new("free").arg("-m").env("LC_ALL", "C"));
        let memory: Vec<_> = free.lines().find(|line| line.starts_with("Mem:")).unwrap().split_whitespace().collect();
        assert_eq!(memory[1], "7168", "{free}");

        let psutil = "import psutil; m = psutil.virtual_memory(); s = psutil.swap_memory()\n\
                      assert 0 <= m.used <= m.total and m.available <= m.total, m\n\
                      print(m.total, s.total)";
        let said =
            output(Command::new("python3").args(["-W", "error", "-c", psutil]).env("PYTHONPATH", packages.path()));
        assert_eq!(said, "7516192768 0\n");
    });
    // Nothing of it is seen outside.
    assert_eq!(line(&host, "MemTotal"), line(&fs::read_to_string(MEMINFO).unwrap(), "MemTotal"));
}

#[test]
fn the_host_keeps_its_file_while_the_model_has_its_own() {
    let before = fs::metadata(MEMINFO).unwrap();
    let (mount, connection) = prepare().unwrap();
    let _server = connection.serve(groups(seven_gib())).unwrap();
    let pid = process::id();
    with_meminfo(mount, || {
        assert_ne!(fs::metadata(MEMINFO).unwrap().dev(), before.dev());
        assert_eq!(fs::metadata("/proc/version").unwrap().dev(), before.dev());
        // The first thread stayed outside, and sees the host's.
        let outside = fs::metadata(format!("/proc/{pid}/root/proc/meminfo")).unwrap();
        assert_eq!(outside.dev(), before.dev());
    });
    assert_eq!(fs::metadata(MEMINFO).unwrap().dev(), before.dev());
}

#[test]
fn all_files_agree_on_the_number_of_processors() {
    let (mount, connection) = prepare().unwrap();
    let _server = connection.serve(groups(seven_gib())).unwrap();
    with_meminfo(mount, || {
        for name in ["online", "possible", "present"] {
            assert_eq!(fs::read_to_string(format!("/sys/devices/system/cpu/{name}")).unwrap(), "0\n");
        }
        let lines = |file: &str, start: &str| {
            fs::read_to_string(file).unwrap().lines().filter(|line| line.starts_with(start)).count()
        };
        assert_eq!((lines("/proc/cpuinfo", "processor"), lines("/proc/stat", "cpu")), (1, 2));
        assert_eq!(output(Command::new("getconf").arg("_NPROCESSORS_ONLN")), "1\n");
        assert_eq!(output(Command::new("getconf").arg("_NPROCESSORS_CONF")), "1\n");
        assert_eq!(fs::read_to_string("/proc/swaps").unwrap().lines().count(), 1);
        let uptime = fs::read_to_string("/proc/uptime").unwrap();
        assert!(uptime.split(' ').next().unwrap().parse::<f64>().unwrap() < 20.0, "since the start: {uptime}");
        assert!(fs::read_to_string("/proc/loadavg").unwrap().starts_with("0.00 0.00 0.00 "));
    });
}

#[test]
fn memory_that_the_group_uses_shows() {
    const EATEN: u64 = 256 << 20;
    let group = Group::new("eater", GIB);
    let (mount, connection) = prepare().unwrap();
    let _server = connection.serve(groups(group.source())).unwrap();
    with_meminfo(mount, || {
        let before = fs::read_to_string(MEMINFO).unwrap();
        assert!(line(&before, "MemFree") > (GIB - EATEN / 2) / 1024, "{before}");
        let eater = group.eater(EATEN);
        let full = fs::read_to_string(MEMINFO).unwrap();
        assert!(line(&full, "MemFree") < (GIB - EATEN) / 1024, "{full}");
        assert_eq!(line(&full, "MemTotal"), 1 << 20);
        // The kernel may fold the counters of memory.stat into the group up to seconds later.
        until("the anonymous memory shows", || {
            line(&fs::read_to_string(MEMINFO).unwrap(), "AnonPages") >= EATEN / 1024
        });
        drop(eater);
        until("the freed memory shows", || {
            line(&fs::read_to_string(MEMINFO).unwrap(), "MemFree") > (GIB - EATEN / 2) / 1024
        });
    });
}

#[test]
fn every_way_of_reading_gives_the_same_text() {
    let (mount, connection) = prepare().unwrap();
    let _server = connection.serve(groups(seven_gib())).unwrap();
    with_meminfo(mount, || {
        let whole = output(Command::new("cat").arg(MEMINFO));
        assert!(whole.ends_with("Hugetlb:               0 kB\n"));
        assert_eq!(output(Command::new("dd").args(["if=/proc/meminfo", "bs=10", "status=none"])), whole);
        assert_eq!(output(Command::new("dd").args(["if=/proc/meminfo", "bs=1", "status=none"])), whole);
        assert_eq!(output(Command::new("cat").arg(MEMINFO).uid(60_001).gid(60_001)), whole);

        let mut file = File::open(MEMINFO).unwrap();
        let mut middle = [0; 40];
        file.read_exact_at(&mut middle, 100).unwrap();
        assert_eq!(middle, whole.as_bytes()[100..140]);
        assert_eq!(file.read_at(&mut middle, whole.len() as u64).unwrap(), 0);
        assert_eq!(file.read_at(&mut middle, 1 << 40).unwrap(), 0);
        let mut again = String::new();
        file.read_to_string(&mut again).unwrap();
        file.rewind().unwrap();
        again.clear();
        file.read_to_string(&mut again).unwrap();
        assert_eq!(again, whole);
    });
}

#[test]
fn an_open_file_shows_one_moment() {
    let group = Group::new("moment", GIB);
    let (mount, connection) = prepare().unwrap();
    let _server = connection.serve(groups(group.source())).unwrap();
    with_meminfo(mount, || {
        let mut early = File::open(MEMINFO).unwrap();
        let _eater = group.eater(64 << 20);
        let later = fs::read_to_string(MEMINFO).unwrap();
        let mut text = String::new();
        early.read_to_string(&mut text).unwrap();
        assert!(line(&text, "MemFree") >= line(&later, "MemFree") + (64 << 10), "{text}{later}");
    });
}

#[test]
fn the_files_are_read_only() {
    let (mount, connection) = prepare().unwrap();
    let _server = connection.serve(groups(seven_gib())).unwrap();
    with_meminfo(mount, || {
        let error = OpenOptions::new().write(true).open(MEMINFO).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem);
        let append = OpenOptions::new().append(true).open(MEMINFO).unwrap_err();
        assert_eq!(append.kind(), io::ErrorKind::ReadOnlyFilesystem);
        let metadata = fs::metadata(MEMINFO).unwrap();
        assert_eq!(metadata.mode(), 0o100_444);
        let chmod = fs::set_permissions(MEMINFO, metadata.permissions()).unwrap_err();
        assert_eq!(chmod.kind(), io::ErrorKind::ReadOnlyFilesystem);
    });
}

#[test]
fn open_files_are_bounded_and_closed_ones_make_room() {
    let (mount, connection) = prepare().unwrap();
    let _server = connection.serve(groups(seven_gib())).unwrap();
    with_meminfo(mount, || {
        for _ in 0..1000 {
            File::open(MEMINFO).unwrap();
        }
        // The kernel reports a close after close(2) has returned.
        let mut open = Vec::new();
        until("all places are taken", || {
            open.extend(File::open(MEMINFO));
            open.len() == OPEN_FILES_MAX
        });
        let error = File::open(MEMINFO).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENFILE));
        open.pop();
        until("a closed file makes room", || File::open(MEMINFO).is_ok());
        // Files that are open stay good.
        let mut text = String::new();
        open[0].read_to_string(&mut text).unwrap();
        assert_eq!(line(&text, "MemTotal"), 7_340_032);
    });
}

#[test]
fn each_reader_of_a_shared_file_sees_its_own_group() {
    let (one, two) = (Group::new("one", GIB), Group::new("two", 2 * GIB));
    let groups = Groups::new(view(seven_gib()));
    let (mount, connection) = prepare().unwrap();
    let _server = connection.serve(groups.clone()).unwrap();
    groups.add(one.name(), view(one.source()));
    groups.add(two.name(), view(two.source()));
    with_meminfo(mount, || {
        let seen = |group: &Group| line(&output(&mut group.reader(MEMINFO)), "MemTotal") * 1024;
        assert_eq!([seen(&one), seen(&two)], [GIB, 2 * GIB]);
        let outside = |text: String| line(&text, "MemTotal") * 1024;
        assert_eq!(outside(fs::read_to_string(MEMINFO).unwrap()), 7 * GIB, "in none of them");
        groups.remove(&one.name());
        assert_eq!([seen(&one), seen(&two)], [7 * GIB, 2 * GIB]);
    });
}
