//! An open directory and operations on its entries.

use super::retry::retry;
use nix::dir::Dir as Stream;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2, renameat};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, fchownat, symlinkat, unlinkat};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);
const NO_LINKS: ResolveFlag = ResolveFlag::RESOLVE_NO_SYMLINKS.union(ResolveFlag::RESOLVE_NO_MAGICLINKS);
/// Bits of a mode by which others than the owner write.
const OTHERS_WRITE: u32 = 0o022;

/// An open directory. Names are those of single entries: one with a slash is refused.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

impl Dir {
    /// Opens a directory. No component of its path may be a link.
    ///
    /// # Errors
    /// The kernel's; `ELOOP` for a link.
    pub fn open(path: &Path) -> io::Result<Self> {
        let how = OpenHow::new().flags(DIRECTORY).resolve(NO_LINKS);
        let fd = retry(|| openat2(AT_FDCWD, path, how))?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// The directory's entry of this name, which is made when it is missing.
    ///
    /// # Errors
    /// The kernel's; `ENOTDIR` or `ELOOP` for what is no directory.
    pub fn subdirectory(&self, name: &str, mode: u32) -> io::Result<Self> {
        single(name.as_ref())?;
        match mkdirat(&self.fd, name, Mode::from_bits_truncate(mode)) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let how = OpenHow::new().flags(DIRECTORY).resolve(NO_LINKS | ResolveFlag::RESOLVE_BENEATH);
        let fd = retry(|| openat2(&self.fd, name, how))?;
        Ok(Self { fd, path: self.path.join(name) })
    }

    /// Returns the directory itself, when root owns it and no other user writes to it.
    ///
    /// # Errors
    ///
    /// `PermissionDenied`, with the path and its owner.
    pub fn of_root(self) -> io::Result<Self> {
        let found = fstat(&self.fd)?;
        if found.st_uid == 0 && found.st_mode & OTHERS_WRITE == 0 {
            return Ok(self);
        }
        let (path, uid, mode) = (self.path.display(), found.st_uid, found.st_mode & 0o7777);
        let message =
            format!("{path} must be a directory of root that nobody else writes to (uid {uid}, mode {mode:o})");
        Err(io::Error::new(ErrorKind::PermissionDenied, message))
    }

    /// The path by which it was opened: for messages, and for other processes.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory's own owner.
    ///
    /// # Errors
    /// The kernel's.
    pub fn owner(&self) -> io::Result<u32> {
        Ok(fstat(&self.fd)?.st_uid)
    }

    /// Gives the directory an owner, perhaps a group, and a mode.
    ///
    /// # Errors
    /// The kernel's.
    pub fn belong_to(&self, uid: u32, gid: Option<u32>, mode: u32) -> io::Result<()> {
        fchown(&self.fd, Some(Uid::from_raw(uid)), gid.map(Gid::from_raw))?;
        Ok(fchmod(&self.fd, Mode::from_bits_truncate(mode))?)
    }

    /// Status of the entry of this name, itself and not a link's target.
    ///
    /// # Errors
    ///
    /// The kernel's; `NotFound` for none.
    pub fn stat(&self, name: &OsStr) -> io::Result<FileStat> {
        single(name)?;
        Ok(fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW)?)
    }

    /// Tests that there is an entry of this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.stat(name.as_ref()).is_ok()
    }

    /// Names of all entries.
    ///
    /// # Errors
    /// The kernel's.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        // A descriptor of its own: a copy would share the position.
        let mut stream = Stream::openat(&self.fd, ".", DIRECTORY, Mode::empty())?;
        let mut names = Vec::new();
        for entry in stream.iter() {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Creates a file, opened for writing.
    ///
    /// # Errors
    ///
    /// The kernel's; `AlreadyExists` when there is an entry of this name, of any type.
    pub fn create(&self, name: &str, mode: u32) -> io::Result<File> {
        self.file(name, OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL, mode)
    }

    /// Opens a regular file for reading. A pipe in its place does not block.
    ///
    /// # Errors
    ///
    /// The kernel's; `InvalidData` for anything but a regular file.
    pub fn read(&self, name: &str) -> io::Result<File> {
        let file = self.file(name, OFlag::O_RDONLY | OFlag::O_NONBLOCK, 0)?;
        if file.metadata()?.is_file() { Ok(file) } else { Err(ErrorKind::InvalidData.into()) }
    }

    /// A regular file of root with no other name, opened for reading and writing and made when it is missing.
    ///
    /// # Errors
    /// The kernel's; `PermissionDenied` for a file of another user, or one that lies elsewhere too.
    pub fn own_file(&self, name: &str, mode: u32) -> io::Result<File> {
        let file = self.file(name, OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NONBLOCK, mode)?;
        let found = fstat(&file)?;
        let is_file = SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG;
        if is_file && found.st_uid == Uid::effective().as_raw() && found.st_nlink == 1 {
            return Ok(file);
        }
        let message = format!("{} is not a file of root with one name: remove it", self.path.join(name).display());
        Err(io::Error::new(ErrorKind::PermissionDenied, message))
    }

    /// Puts a file with this content in the place of what has its name, complete or not at all.
    ///
    /// # Errors
    /// The kernel's.
    pub fn replace(&self, name: &str, content: &[u8], mode: u32) -> io::Result<()> {
        let fresh = format!("{name}.new");
        self.remove(&fresh)?;
        self.create(&fresh, mode)?.write_all(content)?;
        Ok(renameat(&self.fd, fresh.as_str(), &self.fd, name)?)
    }

    /// Removes what has this name, unless it is a directory. What is not there is no error.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        single(name.as_ref())?;
        match unlinkat(&self.fd, name.as_ref(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// A symbolic link in the place of what has its name, when that is not this link already.
    ///
    /// # Errors
    /// The kernel's.
    pub fn link(&self, name: &str, target: &str) -> io::Result<()> {
        single(name.as_ref())?;
        if nix::fcntl::readlinkat(&self.fd, name).is_ok_and(|there| there == target) {
            return Ok(());
        }
        self.remove(name)?;
        Ok(symlinkat(target, &self.fd, name)?)
    }

    /// A listening `SOCK_SEQPACKET` socket in the place of what has its name, mode 0600, of the user that is named. Its
    /// owner changes by the descriptor of the entry that was bound here.
    ///
    /// # Errors
    /// The kernel's; `InvalidData` when another entry has got the name meanwhile.
    pub fn listen(&self, name: &str, uid: u32, gid: Option<u32>, backlog: Backlog) -> io::Result<OwnedFd> {
        self.remove(name)?;
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
        // The entry gets the mode of the socket that is bound.
        fchmod(&socket, Mode::from_bits_truncate(0o600))?;
        let place = Path::new("/proc/self/fd").join(self.fd.as_raw_fd().to_string()).join(name);
        bind(socket.as_raw_fd(), &UnixAddr::new(&place)?)?;
        let entry = openat(&self.fd, name, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
        let found = fstat(&entry)?;
        let is_socket = SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT == SFlag::S_IFSOCK;
        if !is_socket || found.st_uid != Uid::effective().as_raw() || found.st_nlink != 1 {
            return Err(ErrorKind::InvalidData.into());
        }
        fchownat(&entry, "", Some(Uid::from_raw(uid)), gid.map(Gid::from_raw), AtFlags::AT_EMPTY_PATH)?;
        listen(&socket, backlog)?;
        Ok(socket)
    }

    fn file(&self, name: &str, flags: OFlag, mode: u32) -> io::Result<File> {
        single(name.as_ref())?;
        let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        Ok(File::from(retry(|| openat(&self.fd, name, flags, Mode::from_bits_truncate(mode)))?))
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The name of one entry, which leads nowhere else.
fn single(name: &OsStr) -> io::Result<()> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.contains(&b'/') || bytes == b"." || bytes == b".." {
        return Err(ErrorKind::InvalidInput.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
