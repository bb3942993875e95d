//! Mount of the file system: made detached, attached in the model's namespace, served by the worker.
//!
//! The kernel's mount calls have no wrapper in nix, so this module makes them itself; it is the only one with `unsafe`.
//! Every descriptor is close-on-exec. A process forked without exec must close its copy of [`Connection`]'s
//! descriptors: while a copy is open, readers wait for a server that may be dead.
#![allow(unsafe_code, reason = "fsopen, fsconfig, fsmount, move_mount and statx have no safe wrapper")]

use std::ffi::{CStr, CString, c_int, c_uint};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::ptr;

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

/// Root of the file system: a directory, mode 0555, in octal as the kernel wants it.
const ROOT_MODE: &CStr = c"40555";

/// Makes the file system and its detached mount, and the connection to serve it.
///
/// Needs `CAP_SYS_ADMIN`. If nothing is attached and the mount is dropped, nothing of it stays.
///
/// # Errors
/// [`PrepareError`] names the step that failed.
pub fn prepare() -> Result<(DetachedMount, Connection), PrepareError> {
    let fuse: OwnedFd =
        OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(PrepareError::Device)?.into();
    let mount = fuse_mount(&fuse).map_err(PrepareError::Mount)?;
    let abort = Abort::of(mount.as_fd()).map_err(PrepareError::Control)?;
    Ok((DetachedMount(mount), Connection { fuse, abort }))
}

/// Mount that is in no mount namespace yet.
///
/// Drop it once it is attached: while it is held, the end of the model's namespace does not end the server.
#[derive(Debug)]
pub struct DetachedMount(OwnedFd);

impl DetachedMount {
    /// Attaches the mount over the directory at `target` in the caller's mount namespace. Meant to be called once.
    ///
    /// # Errors
    /// The kernel's error: for example `ENOENT` if there is no `target`.
    pub fn attach(&self, target: &CStr) -> io::Result<()> {
        move_mount(self.0.as_fd(), target)
    }
}

impl AsFd for DetachedMount {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Server's end of a prepared mount, not served yet. Dropping it ends the files: readers get `ENOTCONN`.
#[derive(Debug)]
#[must_use = "files that nobody serves keep its readers waiting"]
pub struct Connection {
    fuse: OwnedFd,
    abort: Abort,
}

impl Connection {
    pub(crate) fn into_parts(self) -> (OwnedFd, Abort) {
        (self.fuse, self.abort)
    }
}

/// The connection's `abort` file in the FUSE control file system, opened when the mount was made: it works later
/// without any privilege, and can never hit another connection that got the same number.
#[derive(Debug)]
pub(crate) struct Abort(File);

impl Abort {
    /// Opens it through a detached mount of the control file system that ends with the file, since the machine need not
    /// have one mounted.
    fn of(mount: BorrowedFd<'_>) -> io::Result<Self> {
        let control = new_mount(c"fusectl", &[], 0)?;
        let path = format!("{}/abort", device_minor(mount)?);
        let file = openat(&control, path.as_str(), OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty())?;
        Ok(Self(file.into()))
    }

    pub(crate) fn abort(&self) -> io::Result<()> {
        (&self.0).write_all(b"1")
    }
}

/// Failed step of [`prepare`].
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// There is no FUSE on this machine, or the caller may not use it.
    #[error("cannot open /dev/fuse: load the fuse module and run as root")]
    Device(#[source] io::Error),
    /// The file system could not be made.
    #[error("cannot make a FUSE mount: Linux 5.2 or later and CAP_SYS_ADMIN are needed")]
    Mount(#[source] io::Error),
    /// The connection's control file could not be opened, so an abort could not be guaranteed.
    #[error("cannot open the control file of a FUSE connection")]
    Control(#[source] io::Error),
}

fn fuse_mount(fuse: &OwnedFd) -> io::Result<OwnedFd> {
    let fd = CString::new(fuse.as_raw_fd().to_string())?;
    let options = [
        (c"source", Some(c"omni")),
        (c"fd", Some(fd.as_c_str())),
        (c"rootmode", Some(ROOT_MODE)),
        (c"user_id", Some(c"0")),
        (c"group_id", Some(c"0")),
        (c"allow_other", None),
        (c"default_permissions", None),
        (c"ro", None),
    ];
    let attributes =
        libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
    new_mount(c"fuse", &options, attributes)
}

/// Makes a detached mount of a new file system. An option is a key with a value, or a flag without one.
fn new_mount(kind: &CStr, options: &[(&CStr, Option<&CStr>)], attributes: u64) -> io::Result<OwnedFd> {
    let context = fsopen(kind)?;
    for &(key, value) in options {
        let command = if value.is_some() { libc::FSCONFIG_SET_STRING } else { libc::FSCONFIG_SET_FLAG };
        fsconfig(context.as_fd(), command, Some(key), value)?;
    }
    fsconfig(context.as_fd(), libc::FSCONFIG_CMD_CREATE, None, None)?;
    fsmount(context.as_fd(), attributes)
}

fn fsopen(kind: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: `kind` is a string that ends with 0 and outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), libc::FSOPEN_CLOEXEC) };
    // SAFETY: fsopen returns a new descriptor that nobody else has.
    check(result).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn fsconfig(context: BorrowedFd<'_>, command: c_uint, key: Option<&CStr>, value: Option<&CStr>) -> io::Result<()> {
    let key = key.map_or(ptr::null(), CStr::as_ptr);
    let value = value.map_or(ptr::null(), CStr::as_ptr);
    // SAFETY: the descriptor is open for the call, and each pointer is null, where the command takes none, or a string
    // that ends with 0 and outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), command, key, value, 0 as c_int) };
    check(result).map(drop)
}

fn fsmount(context: BorrowedFd<'_>, attributes: u64) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is open for the call; the other arguments are plain numbers.
    let result = unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), libc::FSMOUNT_CLOEXEC, attributes) };
    // SAFETY: fsmount returns a new descriptor that nobody else has.
    check(result).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn move_mount(mount: BorrowedFd<'_>, target: &CStr) -> io::Result<()> {
    // SAFETY: the descriptor is open for the call, and both paths are strings that end with 0 and outlive it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            target.as_ptr(),
            libc::MOVE_MOUNT_F_EMPTY_PATH,
        )
    };
    check(result).map(drop)
}

/// Minor device number of a mount, which is its connection's name. Avoids every attribute that the kernel would have to
/// request from the server, which does not answer yet.
fn device_minor(mount: BorrowedFd<'_>) -> io::Result<u32> {
    let mut stat = MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: the descriptor is open for the call, the path is a string that ends with 0, and `stat` is room for one.
    let result = unsafe { libc::statx(mount.as_raw_fd(), c"".as_ptr(), flags, 0, stat.as_mut_ptr()) };
    check(result.into())?;
    // SAFETY: the kernel filled it, and all bytes zero would be a value of this type too.
    Ok(unsafe { stat.assume_init() }.stx_dev_minor)
}

/// Result of a system call, or its error.
fn check(result: i64) -> io::Result<RawFd> {
    if result < 0 { Err(io::Error::last_os_error()) } else { RawFd::try_from(result).map_err(io::Error::other) }
}
