//! The root that a model sees: a fresh tmpfs with read-only parts of the host, made in the new mount namespace and
//! then pivoted to. Called once by [`super::child`].
//!
//! Order matters: `/proc` comes before the files over some of its own, and everything before the pivot, because the
//! host's paths are gone after it. The root itself ends read-only: what a model can write is `/tmp`, `/dev/shm`,
//! `/cache`, binds that say so and, with a GPU, its device files and the accounting file.

use super::ProcFiles;
use super::etc::{self, HostNetwork};
use super::mount::{Mount, PLAIN, READ_ONLY};
use super::nvidia::{self, Shown};
use super::step::{Step, StepError, invalid};
use super::tree::Tree;
use super::weights::{self, WEIGHTS};
use crate::spec::{Bind, SandboxSpec};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{Gid, Uid, chdir, fchdir, fchown, pivot_root, symlinkat};
use omni_gpu_protocol::env::inside;
use omni_meminfo_fs::File;
use std::ffi::{CStr, CString};
use std::fs;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Where the new root is attached until the pivot: a directory that every Linux system has.
const PIVOT: &str = "/proc";
/// The home directory of a model's user.
pub const HOME: &str = "/tmp/home";
/// Cache of libraries, in the lasting cache beside the author's own files. [`super::child`] makes it.
pub const CACHE_HOME: &str = "/cache/.cache";
/// Directories of the system; where the host has links (merged /usr), so has the sandbox.
const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
/// Parts of the host's `/etc` that programs read and that hold no secret.
const ETC: [&str; 12] = [
    "/etc/alternatives",
    "/etc/crypto-policies",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/pki/ca-trust/extracted",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/timezone",
];
/// Processor and memory topology: libraries size their thread pools by it.
const PROCESSORS: &str = "/sys/devices/system/cpu";
const NODES: &str = "/sys/devices/system/node";
/// Where files that show a control group as a machine are until each is at its place.
const FILES: &str = "/run";
/// Devices without state: name, major, minor (`Documentation/admin-guide/devices.txt`).
const DEVICES: [(&str, u64, u64); 5] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9)];
/// Where device files work; nothing is executable or set-user-id.
const DEVICE_FILES: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC;
const DEVICE_LINKS: [(&str, &str); 4] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];
/// Parts of `/proc` that are read-only where `/proc` is not: all that changes more than the process which writes.
const READ_ONLY_PROC: [&CStr; 5] = [c"bus", c"fs", c"irq", c"sys", c"sysrq-trigger"];
/// Files of `/proc` about the whole host that container runtimes hide.
const MASKED_FILES: [&str; 7] = ["kcore", "kmsg", "keys", "key-users", "timer_list", "sched_debug", "latency_stats"];
const MASKED_DIRECTORIES: [&str; 4] = ["acpi", "asound", "driver", "scsi"];
/// The most that is read of the host's `hosts` and `resolv.conf`, in bytes.
const HOST_FILE_MAX: u64 = 64 * 1024;

/// Mounts that the worker made because they belong to its world, not to the sandbox's.
pub(super) struct PreparedMounts<'a> {
    /// Files over those of `/proc` and `/sys`.
    pub(super) proc_files: Option<ProcFiles<'a>>,
    /// The file system at `/cache`.
    pub(super) cache: Option<&'a Mount>,
    /// The file system at `/gpu`.
    pub(super) gpu: Option<&'a Mount>,
}

/// Builds the root and makes it this process's. The host's tree is gone when it returns.
pub(super) fn enter(spec: &SandboxSpec, mounts: &PreparedMounts<'_>) -> Result<(), StepError> {
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .step(|| "make all mounts private".into())?;
    let host_network = if spec.host_network { Some(host_network()?) } else { None };
    let card = nvidia::card(&spec.devices)?;
    let host = Tree::at("/").step(|| "open the host's root".into())?;
    let root_mount = tmpfs("/", c"1m", c"2k", c"755", PLAIN)?;
    root_mount.attach(Tree::at(PIVOT).step(|| format!("open {PIVOT}"))?).step(|| "attach the new root".into())?;
    let root = Tree::at(PIVOT).step(|| "open the new root".into())?;

    for path in SYSTEM.iter().chain(&ETC).chain([&NODES]) {
        bind_from_host(&host, &root, Path::new(path))?;
    }
    written(&root, spec, host_network)?;
    devices(&host, &root, spec)?;
    scratch(&root, "/tmp", spec)?;
    root.link(Path::new("/var/tmp"), Path::new("/tmp")).step(|| "link /var/tmp".into())?;
    root.directory(Path::new("/run")).step(|| "make /run".into())?;
    home(&root, spec)?;
    proc(&root, !spec.devices.is_empty())?;
    match &mounts.proc_files {
        Some(files) => shown_as_machine(&host, &root, files)?,
        None => bind_from_host(&host, &root, Path::new(PROCESSORS))?,
    }
    if !spec.devices.is_empty() {
        shown(&host, &root, &card)?;
    }
    if let Some(gpu) = mounts.gpu {
        let place = root.directory(Path::new(inside::DIR)).step(|| format!("make {}", inside::DIR))?;
        gpu.attach(place).step(|| format!("attach {}", inside::DIR))?;
        let preload = format!("{}\n", inside::SHIM);
        root.write(Path::new(inside::PRELOAD), preload.as_bytes()).step(|| format!("write {}", inside::PRELOAD))?;
    }
    for bind in &spec.binds {
        bound(&host, &root, bind)?;
    }
    if let Some(folder) = &spec.weights {
        let weights = weights::mount(folder)?;
        let place = root.directory(Path::new(WEIGHTS)).step(|| format!("make {WEIGHTS}"))?;
        weights.attach(place).step(|| format!("attach {WEIGHTS}"))?;
    }
    if let Some(cache) = mounts.cache {
        let place = root.directory(Path::new("/cache")).step(|| "make /cache".into())?;
        cache.attach(place).step(|| "attach /cache".into())?;
    }
    root_mount.restrict(READ_ONLY).step(|| "make the root read-only".into())?;
    pivot(&root)
}

fn pivot(root: &Tree) -> Result<(), StepError> {
    fchdir(root).step(|| "enter the new root".into())?;
    // With "." twice the old root ends up on top of the new one, and unmounting "." uncovers it (pivot_root(2)).
    pivot_root(".", ".").step(|| "pivot to the new root".into())?;
    umount2(".", MntFlags::MNT_DETACH).step(|| "detach the host's root".into())?;
    chdir("/").step(|| "enter /".into())
}

/// A file or directory of the host at the same path inside, read-only; a link as the same link; nothing where the host
/// has nothing.
fn bind_from_host(host: &Tree, root: &Tree, path: &Path) -> Result<(), StepError> {
    let step = || format!("bring {}", path.display());
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).step(step),
        Ok(found) if found.is_symlink() => {
            let target = fs::read_link(path).step(step)?;
            root.link(path, &target).step(step)
        }
        Ok(_) => copy(host, root, path, path, READ_ONLY),
    }
}

fn bound(host: &Tree, root: &Tree, bind: &Bind) -> Result<(), StepError> {
    let attributes = if bind.writable { PLAIN } else { READ_ONLY };
    copy(host, root, &bind.source, &bind.target, attributes)
}

fn copy(host: &Tree, root: &Tree, source: &Path, target: &Path, attributes: u64) -> Result<(), StepError> {
    let step = || format!("mount {} at {}", source.display(), target.display());
    // An absolute path: it is resolved from this process's root, which still is the host's.
    let mount = Mount::copy_of(host, &c_path(source)?, attributes).step(step)?;
    let place = root.place_for(mount.as_fd(), target).step(step)?;
    mount.attach(place).step(step)
}

fn written(root: &Tree, spec: &SandboxSpec, host: Option<HostNetwork>) -> Result<(), StepError> {
    for (name, content) in etc::files(spec, host) {
        let path = Path::new("/etc").join(name);
        root.write(&path, content.as_bytes()).step(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

fn devices(host: &Tree, root: &Tree, spec: &SandboxSpec) -> Result<(), StepError> {
    let step = || "make /dev".to_owned();
    let dev = tmpfs("/dev", c"64k", c"64", c"755", DEVICE_FILES)?;
    dev.attach(root.directory(Path::new("/dev")).step(step)?).step(step)?;
    for (name, major, minor) in DEVICES {
        root.device(&Path::new("/dev").join(name), major, minor).step(|| format!("make /dev/{name}"))?;
    }
    for (name, target) in DEVICE_LINKS {
        root.link(&Path::new("/dev").join(name), Path::new(target)).step(|| format!("link /dev/{name}"))?;
    }
    scratch(root, "/dev/shm", spec)?;
    for device in &spec.devices {
        let name = device.file_name().ok_or_else(|| invalid(format!("bring the device {}", device.display())))?;
        copy(host, root, device, &Path::new("/dev").join(name), DEVICE_FILES)?;
    }
    dev.restrict(libc::MOUNT_ATTR_RDONLY).step(|| "make /dev read-only".into())
}

/// Makes a writable directory of bounded bytes and inodes, open to every user and with the sticky bit, as `/tmp` is
/// everywhere.
fn scratch(root: &Tree, path: &'static str, spec: &SandboxSpec) -> Result<(), StepError> {
    let inodes = (spec.tmp_bytes / 8192).clamp(1024, 1 << 20);
    let (bytes, inodes) = (number(spec.tmp_bytes)?, number(inodes)?);
    let mount = tmpfs(path, &bytes, &inodes, c"1777", PLAIN)?;
    let place = root.directory(Path::new(path)).step(|| format!("make {path}"))?;
    mount.attach(place).step(|| format!("attach {path}"))
}

fn home(root: &Tree, spec: &SandboxSpec) -> Result<(), StepError> {
    let home = Path::new(etc::home(spec));
    let Ok(below) = home.strip_prefix("/tmp") else { return Ok(()) };
    if below.as_os_str().is_empty() {
        return Ok(());
    }
    let step = || format!("make the home directory {}", home.display());
    let (Some(parent), Some(name)) = (home.parent(), home.file_name()) else { return Err(invalid(step())) };
    let parent = root.directory(parent).step(step)?;
    mkdirat(&parent, name, Mode::from_bits_truncate(0o700)).step(step)?;
    let flags = nix::fcntl::OFlag::O_DIRECTORY | nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_CLOEXEC;
    let dir = nix::fcntl::openat(&parent, name, flags, Mode::empty()).step(step)?;
    if spec.cache.is_some() {
        symlinkat(CACHE_HOME, &dir, ".cache").step(step)?;
    }
    fchown(&dir, Some(Uid::from_raw(spec.uid)), Some(Gid::from_raw(spec.gid))).step(step)
}

/// The processes of the sandbox. CUDA's driver names a thread by `/proc/self/task/<tid>/comm` and gives up where that cannot be
/// written (`cuInit` answers 304 with driver 580), so that files of processes are writable for a model with a `gpu`; the
/// kernel lets a process write its own alone.
fn proc(root: &Tree, gpu: bool) -> Result<(), StepError> {
    let attributes = if gpu { PLAIN } else { READ_ONLY } | libc::MOUNT_ATTR_NOEXEC;
    let proc = Mount::new(c"proc", &[(c"source", Some(c"proc"))], attributes).step(|| "make /proc".into())?;
    let place = root.directory(Path::new("/proc")).step(|| "make /proc".into())?;
    proc.attach(place).step(|| "attach /proc".into())?;
    for name in READ_ONLY_PROC.iter().filter(|_| gpu) {
        let copy = || Mount::copy_of(root.find(Path::new("/proc"))?, name, READ_ONLY | libc::MOUNT_ATTR_NOEXEC);
        mask(root, &name.to_string_lossy(), copy)?;
    }
    for name in MASKED_FILES {
        mask(root, name, || Mount::copy_of(root, c"dev/null", libc::MOUNT_ATTR_RDONLY))?;
    }
    for name in MASKED_DIRECTORIES {
        mask(root, name, || Mount::new(c"tmpfs", &[(c"size", Some(c"4k"))], READ_ONLY))?;
    }
    Ok(())
}

/// Each file over its place, and the directories of the processors that are shown. The directory with the files is
/// mounted only meanwhile: the kernel takes parts of what is mounted.
fn shown_as_machine(host: &Tree, root: &Tree, files: &ProcFiles<'_>) -> Result<(), StepError> {
    for number in files.processors {
        bind_from_host(host, root, &Path::new(PROCESSORS).join(format!("cpu{number}")))?;
    }
    let step = || "mount the files of /proc".to_owned();
    super::kernel::move_mount(files.mount, root.directory(Path::new(FILES)).step(step)?).step(step)?;
    let all = format!("{PIVOT}{FILES}");
    // A single request to the server of the files instead of one for each name.
    let _ = fs::read_dir(&all).step(step)?.next();
    for file in File::ALL {
        let step = || format!("attach {}", file.place());
        let place = Path::new(file.place());
        let place = match if place.starts_with("/proc") { root.find(place) } else { root.file(place) } {
            Err(nix::errno::Errno::ENOENT) => continue, // a kernel without swap has no /proc/swaps
            found => found.step(step)?,
        };
        let name = CString::new(file.name()).step(step)?;
        let mount = Mount::copy_of(files.mount, &name, READ_ONLY | libc::MOUNT_ATTR_NOEXEC).step(step)?;
        mount.attach(place).step(step)?;
    }
    umount2(all.as_str(), MntFlags::MNT_DETACH).step(step)
}

/// Shows the kernel's files about the model's card: its part of `/proc/driver`, in place of the empty directory there,
/// and of `/sys`.
fn shown(host: &Tree, root: &Tree, card: &Shown) -> Result<(), StepError> {
    for path in nvidia::SYS {
        bind_from_host(host, root, Path::new(path))?;
    }
    if let Some(bus) = &card.bus {
        let link = Path::new("/sys/bus/pci/devices").join(bus);
        let device = fs::canonicalize(&link).step(|| format!("find {}", link.display()))?;
        bind_from_host(host, root, &link)?;
        copy(host, root, &device, &device, READ_ONLY)?;
    }
    if card.files.is_empty() {
        return Ok(());
    }
    let proc = Path::new(nvidia::PROC);
    let step = || format!("make {}", proc.display());
    let mount = tmpfs(nvidia::PROC, c"512k", c"32", c"755", PLAIN | libc::MOUNT_ATTR_NOEXEC)?;
    mount.attach(root.directory(proc.parent().unwrap_or(proc)).step(step)?).step(step)?;
    for (name, content) in &card.files {
        root.write(&proc.join(name), content.as_bytes()).step(step)?;
    }
    mount.restrict(READ_ONLY).step(step)
}

fn mask(root: &Tree, name: &str, cover: impl FnOnce() -> Result<Mount, nix::errno::Errno>) -> Result<(), StepError> {
    let step = || format!("mask /proc/{name}");
    match root.find(&Path::new("/proc").join(name)) {
        Err(nix::errno::Errno::ENOENT) => Ok(()), // not every kernel has it
        Err(errno) => Err(errno).step(step),
        Ok(place) => cover().step(step)?.attach(place).step(step),
    }
}

fn tmpfs(path: &str, bytes: &CStr, inodes: &CStr, mode: &CStr, attributes: u64) -> Result<Mount, StepError> {
    let options =
        [(c"source", Some(c"omni")), (c"size", Some(bytes)), (c"nr_inodes", Some(inodes)), (c"mode", Some(mode))];
    Mount::new(c"tmpfs", &options, attributes).step(|| format!("make a tmpfs for {path}"))
}

fn host_network() -> Result<HostNetwork, StepError> {
    let read = |path: &str| {
        let mut text = String::new();
        match fs::File::open(path).and_then(|file| file.take(HOST_FILE_MAX).read_to_string(&mut text)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            other => other.map(|_| text).step(|| format!("read the host's {path}")),
        }
    };
    Ok(HostNetwork { hosts: read("/etc/hosts")?, resolv_conf: read("/etc/resolv.conf")? })
}

fn number(value: u64) -> Result<CString, StepError> {
    CString::new(value.to_string()).step(|| format!("write the number {value}"))
}

fn c_path(path: &Path) -> Result<CString, StepError> {
    CString::new(path.as_os_str().as_bytes()).step(|| format!("use the path {}", path.display()))
}
