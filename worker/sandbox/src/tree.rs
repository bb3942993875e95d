//! The new root's directory tree, made by descriptor, one path component at a time, never through a link: a directory
//! that is bound into it may hold anything.

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{Mode, SFlag, fstat, mkdirat, mknodat};
use nix::unistd::symlinkat;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

const FOUND: OFlag = OFlag::O_PATH.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// A directory that becomes a root. Paths are absolute paths of the world inside.
pub(super) struct Tree(OwnedFd);

impl Tree {
    /// The tree at a path of this process, as it is mounted now.
    pub(super) fn at(path: &str) -> Result<Self, Errno> {
        open(path, FOUND | OFlag::O_DIRECTORY, Mode::empty()).map(Self)
    }

    /// The directory at `path`; what is missing of it is made, mode 0755.
    pub(super) fn directory(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let mut here = self.0.try_clone().map_err(|error| errno(&error))?;
        for component in path.components() {
            let name = match component {
                Component::RootDir => continue,
                Component::Normal(name) => name,
                Component::Prefix(_) | Component::CurDir | Component::ParentDir => return Err(Errno::EINVAL),
            };
            let open = || openat(&here, name, FOUND | OFlag::O_DIRECTORY, Mode::empty());
            here = match open() {
                Err(Errno::ENOENT) => {
                    mkdirat(&here, name, Mode::from_bits_truncate(0o755))?;
                    open()?
                }
                found => found?,
            };
        }
        Ok(here)
    }

    /// The file at `path`, made empty when it is missing.
    pub(super) fn file(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let (dir, name) = self.place(path)?;
        match openat(&dir, name, FOUND, Mode::empty()) {
            Err(Errno::ENOENT) => {
                mknodat(&dir, name, SFlag::S_IFREG, Mode::from_bits_truncate(0o644), 0)?;
                openat(&dir, name, FOUND, Mode::empty())
            }
            found => found,
        }
    }

    /// Opens what is at `path` already.
    pub(super) fn find(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let (dir, name) = self.place(path)?;
        openat(&dir, name, FOUND, Mode::empty())
    }

    /// A new file with this content, mode 0644.
    pub(super) fn write(&self, path: &Path, content: &[u8]) -> Result<(), io::Error> {
        let (dir, name) = self.place(path)?;
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        File::from(openat(&dir, name, flags, Mode::from_bits_truncate(0o644))?).write_all(content)
    }

    /// A new symbolic link.
    pub(super) fn link(&self, path: &Path, target: &Path) -> Result<(), Errno> {
        let (dir, name) = self.place(path)?;
        symlinkat(target, &dir, name)
    }

    /// Makes a new character device that every user may read and write.
    pub(super) fn device(&self, path: &Path, major: u64, minor: u64) -> Result<(), Errno> {
        let (dir, name) = self.place(path)?;
        let number = nix::sys::stat::makedev(major, minor);
        mknodat(&dir, name, SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), number)
    }

    /// A place to attach something that looks like `source`: a directory for a directory, a file for all else.
    pub(super) fn place_for(&self, source: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
        if is_directory(source)? { self.directory(path) } else { self.file(path) }
    }

    fn place<'a>(&self, path: &'a Path) -> Result<(OwnedFd, &'a std::ffi::OsStr), Errno> {
        let name = path.file_name().ok_or(Errno::EINVAL)?;
        let parent = path.parent().unwrap_or(Path::new("/"));
        Ok((self.directory(parent)?, name))
    }
}

impl AsFd for Tree {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn is_directory(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(SFlag::from_bits_truncate(fstat(fd)?.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR)
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_tree_is_never_left() {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("tree");
        fs::create_dir_all(inside.join("real")).unwrap();
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        for (name, target) in [("absolute", outside.as_path()), ("relative", Path::new("../outside"))] {
            std::os::unix::fs::symlink(target, inside.join(name)).unwrap();
        }
        let tree = Tree::at(inside.to_str().unwrap()).unwrap();
        for path in ["/absolute", "/absolute/x", "/relative/x"].map(Path::new) {
            assert_eq!(tree.directory(path).err(), Some(Errno::ENOTDIR), "{}", path.display());
        }
        for path in ["/../outside", "/real/../../outside/x", "real/../x"].map(Path::new) {
            assert_eq!(tree.directory(path).err(), Some(Errno::EINVAL), "{}", path.display());
        }
        assert!(tree.write(Path::new("/absolute/x"), b"x").is_err());
        tree.write(Path::new("/real/deep/file"), b"content").unwrap();
        assert_eq!(fs::read(inside.join("real/deep/file")).unwrap(), b"content");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }
}
