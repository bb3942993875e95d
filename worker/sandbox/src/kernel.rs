//! The system calls of a sandbox that have no safe wrapper in nix. Each function is one call, named like it.
//!
//! Called by the other modules of the sandbox only; with [`super::pid1`] and [`super::loop_device`] the only
//! `unsafe` of it.
#![allow(unsafe_code, reason = "clone3, the mount API, capset and LOOP_* have no safe wrapper")]

use nix::errno::Errno;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::stat::stat;
use nix::unistd::Pid;
use std::ffi::{CStr, c_int, c_long, c_uint};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

/// The `CLONE_*` flags of [`clone3`], which libc gives with another type, or not at all.
pub(super) mod clone_flags {
    /// The namespaces that every sandbox has. Its control group namespace comes after it has joined its group.
    pub(crate) const SANDBOX: u64 =
        (libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS) as u64;
    pub(crate) const NEWNET: u64 = libc::CLONE_NEWNET as u64;
    pub(crate) const NEWUSER: u64 = libc::CLONE_NEWUSER as u64;
    pub(super) const PIDFD: u64 = libc::CLONE_PIDFD as u64;
    pub(super) const INTO_CGROUP: u64 = 0x2_0000_0000; // libc has it as a c_int, which it does not fit
}

/// Makes a process in the namespaces of `flags` and, when given, in a control group of the unified tree. It is a copy of
/// this one, as fork makes it, runs `child` and exits with its result; this one gets its id and descriptor.
///
/// `EBUSY` when this process has several threads: the copy has only one, and locks that others hold would stay locked.
pub(super) fn clone3(
    flags: u64,
    cgroup: Option<BorrowedFd<'_>>,
    child: impl FnOnce() -> c_int,
) -> Result<(Pid, OwnedFd), Errno> {
    if threads()? != 1 {
        return Err(Errno::EBUSY);
    }
    let mut pidfd: RawFd = -1;
    let (into, cgroup) = match cgroup {
        Some(fd) => (clone_flags::INTO_CGROUP, fd.as_raw_fd().unsigned_abs().into()),
        None => (0, 0),
    };
    let mut args = libc::clone_args {
        flags: flags | into | clone_flags::PIDFD,
        pidfd: ptr::from_mut(&mut pidfd) as u64,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: libc::SIGCHLD as u64,
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup,
    };
    // SAFETY: `args` lives for the call and `pidfd` is room for one descriptor. Without CLONE_VM and with no stack
    // given the child goes on here on its own copy of this stack, and there is one thread only, so no lock is held.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, ptr::from_mut(&mut args), size_of::<libc::clone_args>()) };
    match check(pid)? {
        0 => {
            let _never = NeverUnwind;
            exit(child())
        }
        // SAFETY: the kernel has just installed this descriptor for us; no other code knows it.
        pid => Ok((Pid::from_raw(pid), unsafe { OwnedFd::from_raw_fd(pidfd) })),
    }
}

/// Ends a child that is unwound: the stack below it is the worker's, and its destructors would undo the worker's things,
/// such as its socket.
struct NeverUnwind;

impl Drop for NeverUnwind {
    fn drop(&mut self) {
        exit(101)
    }
}

/// Ends this process without running anything of the process it is a copy of.
pub(super) fn exit(code: c_int) -> ! {
    // SAFETY: ends the process; nothing is unwound or flushed, which is the intent.
    unsafe { libc::_exit(code) }
}

/// Threads of this process: its task directory has as many entries, beside `.` and `..`.
fn threads() -> Result<u64, Errno> {
    Ok(stat("/proc/self/task")?.st_nlink.saturating_sub(2))
}

pub(super) fn fsopen(kind: &CStr) -> Result<OwnedFd, Errno> {
    // SAFETY: `kind` ends with 0 and outlives the call.
    descriptor(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), libc::FSOPEN_CLOEXEC) })
}

/// Sets an option, which is a string with a value and a flag without one.
pub(super) fn fsconfig_set(context: BorrowedFd<'_>, key: &CStr, value: Option<&CStr>) -> Result<(), Errno> {
    let command = if value.is_some() { libc::FSCONFIG_SET_STRING } else { libc::FSCONFIG_SET_FLAG };
    fsconfig(context, command, key.as_ptr(), value.map_or(ptr::null(), CStr::as_ptr))
}

pub(super) fn fsconfig_create(context: BorrowedFd<'_>) -> Result<(), Errno> {
    fsconfig(context, libc::FSCONFIG_CMD_CREATE, ptr::null(), ptr::null())
}

fn fsconfig(
    context: BorrowedFd<'_>,
    command: c_uint,
    key: *const libc::c_char,
    value: *const libc::c_char,
) -> Result<(), Errno> {
    let fd = context.as_raw_fd();
    // SAFETY: both callers above pass null where the command takes none, else strings that end with 0 and outlive this.
    check(unsafe { libc::syscall(libc::SYS_fsconfig, fd, command, key, value, 0) }).map(drop)
}

pub(super) fn fsmount(context: BorrowedFd<'_>, attributes: u64) -> Result<OwnedFd, Errno> {
    let fd = context.as_raw_fd();
    // SAFETY: plain numbers.
    descriptor(unsafe { libc::syscall(libc::SYS_fsmount, fd, libc::FSMOUNT_CLOEXEC, attributes) })
}

/// A detached copy of the mounts at and below `path`.
pub(super) fn open_tree_clone(dir: impl AsFd, path: &CStr) -> Result<OwnedFd, Errno> {
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_RECURSIVE as c_uint;
    // SAFETY: `path` ends with 0 and outlives the call.
    descriptor(unsafe { libc::syscall(libc::SYS_open_tree, dir.as_fd().as_raw_fd(), path.as_ptr(), flags) })
}

/// Attaches a detached mount at `target`, an open file or directory.
pub(super) fn move_mount(mount: impl AsFd, target: impl AsFd) -> Result<(), Errno> {
    let flags = libc::MOVE_MOUNT_F_EMPTY_PATH | libc::MOVE_MOUNT_T_EMPTY_PATH;
    let (mount, target) = (mount.as_fd().as_raw_fd(), target.as_fd().as_raw_fd());
    // SAFETY: both paths are static strings that end with 0.
    let result = unsafe { libc::syscall(libc::SYS_move_mount, mount, c"".as_ptr(), target, c"".as_ptr(), flags) };
    check(result).map(drop)
}

/// Sets attributes of the mount of `mount`, and of those below it when `recursive`.
pub(super) fn mount_setattr(
    mount: impl AsFd,
    recursive: bool,
    set: u64,
    user_namespace: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let attributes = libc::mount_attr {
        attr_set: set,
        attr_clr: 0,
        propagation: 0,
        userns_fd: user_namespace.map_or(0, |fd| fd.as_raw_fd().unsigned_abs().into()),
    };
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is static, `attributes` lives for the call and its size is given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            ptr::from_ref(&attributes),
            size_of::<libc::mount_attr>(),
        )
    };
    check(result).map(drop)
}

/// Closes every descriptor but `kept`. For a process just cloned, which never uses or drops what it inherited.
pub(super) fn close_except(kept: &[RawFd]) -> Result<(), Errno> {
    let mut kept: Vec<c_uint> = kept.iter().map(|fd| fd.unsigned_abs()).collect();
    kept.sort_unstable();
    let mut first = 0;
    for fd in kept {
        if first < fd {
            close_range(first, fd - 1)?;
        }
        first = fd + 1;
    }
    close_range(first, c_uint::MAX)
}

fn close_range(first: c_uint, last: c_uint) -> Result<(), Errno> {
    // SAFETY: plain numbers; the caller above decides which descriptors may be closed.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(drop)
}

/// Waits for a child, or for any with -1. Its id and raw wait status.
pub fn wait(pid: i32) -> Result<(i32, i32), Errno> {
    let mut status = 0;
    // SAFETY: `status` is room for one status; __WALL also waits for children without SIGCHLD.
    let pid = Errno::result(unsafe { libc::waitpid(pid, ptr::from_mut(&mut status), libc::__WALL) })?;
    Ok((pid, status))
}

/// Makes `to` a copy of `from` that survives exec.
pub(super) fn dup2(from: impl AsFd, to: RawFd) -> Result<(), Errno> {
    // SAFETY: plain numbers. What `to` was is closed, as the caller wants.
    Errno::result(unsafe { libc::dup2(from.as_fd().as_raw_fd(), to) }).map(drop)
}

/// Drops one capability from the bounding set; `EINVAL` when the kernel knows none of this number.
pub(super) fn drop_bounding(capability: c_int) -> Result<(), Errno> {
    // SAFETY: plain numbers.
    Errno::result(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) }).map(drop)
}

pub(super) fn clear_ambient() -> Result<(), Errno> {
    // SAFETY: plain numbers.
    Errno::result(unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) }).map(drop)
}

/// Empties the effective, permitted and inheritable sets of this thread.
pub(super) fn clear_capabilities() -> Result<(), Errno> {
    /// `struct __user_cap_header_struct` and two `struct __user_cap_data_struct` of `linux/capability.h`, version 3.
    const VERSION_3: u32 = 0x2008_0522;
    let header: [u32; 2] = [VERSION_3, 0];
    let sets = [0_u32; 6];
    // SAFETY: the layouts are those of version 3, which reads a header of two words and two times three words.
    check(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) }).map(drop)
}

/// Gives every signal its default action: exec keeps "ignored", and Rust programs ignore SIGPIPE.
pub(super) fn default_signals() -> Result<(), Errno> {
    for number in Signal::iterator() {
        if matches!(number, Signal::SIGKILL | Signal::SIGSTOP) {
            continue;
        }
        // SAFETY: the default action runs no code of ours.
        unsafe { signal(number, SigHandler::SigDfl) }?;
    }
    Ok(())
}

/// Marks the loop-back interface of this network namespace as up.
pub(super) fn loopback_up(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: all bytes zero is a value of this plain C struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(c"lo".to_bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: `request` is what SIOCSIFFLAGS reads, and lives for the call.
    Errno::result(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, ptr::from_ref(&request)) }).map(drop)
}

fn descriptor(result: c_long) -> Result<OwnedFd, Errno> {
    // SAFETY: every caller passes the result of a call that returns a new descriptor, which no other code knows.
    check(result).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn check(result: c_long) -> Result<c_int, Errno> {
    Errno::result(result).map(|value| c_int::try_from(value).unwrap_or(c_int::MAX))
}
