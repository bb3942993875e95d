//! The directory of an environment: an empty virtual environment before the build, sealed after it.

use super::interpreter::Interpreter;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, open, openat, openat2};
use nix::sys::stat::{FchmodatFlags, Mode, SFlag, fchmodat, fstatat};
use nix::unistd::{Gid, Uid, fchownat, fsync};
use std::ffi::{CStr, OsStr};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Makes the virtual environment `dir`, as PEP 405 has it: a configuration, links to the interpreter, a place for
/// packages. Nothing is run for it.
pub(super) fn create(dir: &Path, interpreter: &Interpreter) -> io::Result<()> {
    fs::create_dir(dir)?;
    fs::create_dir(dir.join("bin"))?;
    symlink(&interpreter.base, python(dir))?;
    symlink("python", dir.join("bin/python3"))?;
    fs::create_dir_all(packages(dir, interpreter))?;
    symlink("lib", dir.join("lib64"))?;
    let home = interpreter.base.parent().unwrap_or(Path::new("/usr/bin")).display();
    let version = &interpreter.version;
    let config = format!("home = {home}\ninclude-system-site-packages = false\nversion = {version}\n");
    fs::write(dir.join("pyvenv.cfg"), config)
}

/// The interpreter of a virtual environment.
pub(super) fn python(dir: &Path) -> PathBuf {
    dir.join("bin/python")
}

/// Where its packages are.
pub(super) fn packages(dir: &Path, interpreter: &Interpreter) -> PathBuf {
    let feature: Vec<&str> = interpreter.version.splitn(3, '.').take(2).collect();
    dir.join(format!("lib/python{}/site-packages", feature.join(".")))
}

/// The installed packages, as `name==version`, by the names of their metadata directories.
pub(super) fn installed(packages: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(packages) else { return Vec::new() };
    let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
    let package =
        |name: String| name.strip_suffix(".dist-info")?.split_once('-').map(|(name, v)| format!("{name}=={v}"));
    let mut found: Vec<String> = entries.filter_map(name).filter_map(package).collect();
    found.sort_unstable();
    found
}

/// How many bytes of Python sources are in the tree.
pub(super) fn sources(dir: &Path) -> Result<u64, Errno> {
    let mut bytes = 0;
    each(dir, &mut |_, name, stat| {
        if name.to_bytes().ends_with(b".py") {
            bytes += stat.st_size.unsigned_abs();
        }
        Ok(())
    })?;
    Ok(bytes)
}

/// Copies a snapshot: directories, files and links, with their modes.
pub(super) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (kind, source, target) = (entry.file_type()?, entry.path(), to.join(entry.file_name()));
        if kind.is_dir() {
            copy(&source, &target)?; // a snapshot is at most 32 directories deep
        } else if kind.is_symlink() {
            symlink(fs::read_link(source)?, target)?;
        } else {
            fs::copy(source, target)?;
        }
    }
    Ok(())
}

/// Gives the tree to a user, which may then fill it. The tree must be fresh: no other user has written to it.
pub(super) fn hand_over(dir: &Path, uid: u32) -> Result<(), Errno> {
    each(dir, &mut |parent, name, _| {
        fchownat(parent, name, Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid)), AtFlags::AT_SYMLINK_NOFOLLOW)
    })
}

/// Makes the tree root's, and takes every right to write from all other users. Nothing may run in it any more.
///
/// Files that are also in the package cache (hard links, owned by `cache_owner`) stay that user's: the kernel allows
/// new links only to a file's owner (`fs.protected_hardlinks`). No foreign code ever runs as that user.
pub(super) fn seal(dir: &Path, cache_owner: u32) -> Result<(), Errno> {
    each(dir, &mut |parent, name, stat| {
        let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
        let shared = kind == SFlag::S_IFREG && stat.st_nlink > 1 && stat.st_uid == cache_owner;
        if !shared {
            fchownat(parent, name, Some(Uid::from_raw(0)), Some(Gid::from_raw(0)), AtFlags::AT_SYMLINK_NOFOLLOW)?;
        }
        if kind != SFlag::S_IFLNK {
            // Also set-user-id, set-group-id and sticky. Everybody may read: instances have users of their own.
            let readable = if kind == SFlag::S_IFDIR { 0o555 } else { 0o444 };
            let mode = Mode::from_bits_truncate((stat.st_mode & 0o755) | readable);
            fchmodat(parent, name, mode, FchmodatFlags::FollowSymlink)?;
        }
        Ok(())
    })
}

/// Writes a small tree to the disk, and nothing else of its file system.
pub(super) fn sync(dir: &Path) -> Result<(), Errno> {
    each(dir, &mut |parent, name, stat| {
        let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
        if kind == SFlag::S_IFREG || kind == SFlag::S_IFDIR {
            fsync(openat(parent, name, OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?)?;
        }
        Ok(())
    })
}

type Visit<'a> = dyn FnMut(&OwnedFd, &CStr, &libc::stat) -> Result<(), Errno> + 'a;

/// Visits `dir` and everything below it, the contents of a directory after the directory. By descriptor, and never
/// through a link: foreign code may have put anything into the tree.
fn each(dir: &Path, visit: &mut Visit<'_>) -> Result<(), Errno> {
    const DIRECTORY: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);
    let how = OpenHow::new()
        .flags(DIRECTORY)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS | ResolveFlag::RESOLVE_NO_SYMLINKS);
    let root = open(dir, DIRECTORY, Mode::empty())?;
    visit(&root, c".", &fstatat(&root, c".", AtFlags::empty())?)?;
    let mut waiting = vec![PathBuf::from(".")];
    while let Some(path) = waiting.pop() {
        let parent = openat2(&root, &path, how)?;
        let entries = Dir::from_fd(parent.try_clone().map_err(|_| Errno::EMFILE)?)?;
        for entry in entries {
            let name = entry?.file_name().to_owned();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = fstatat(&parent, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW)?;
            visit(&parent, &name, &stat)?;
            if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR {
                waiting.push(path.join(OsStr::from_bytes(name.to_bytes())));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

    #[test]
    fn a_sealed_tree_is_roots_but_for_files_of_the_cache() {
        const OWNER: u32 = 1_234_567;
        let outer = tempfile::tempdir().unwrap();
        let outside = outer.path().join("outside");
        let cached = outer.path().join("cached");
        fs::write(&outside, "x").unwrap();
        fs::write(&cached, "x").unwrap();
        let tree = outer.path().join("tree");
        fs::create_dir_all(tree.join("deep/er")).unwrap();
        fs::write(tree.join("deep/er/file"), "x").unwrap();
        fs::set_permissions(tree.join("deep/er/file"), Permissions::from_mode(0o6777)).unwrap();
        fs::set_permissions(tree.join("deep"), Permissions::from_mode(0o1777)).unwrap();
        symlink("/etc/passwd", tree.join("link")).unwrap();
        symlink("..", tree.join("up")).unwrap();
        fs::hard_link(&cached, tree.join("shared")).unwrap();
        hand_over(&tree, OWNER).unwrap();
        for path in ["", "deep/er/file", "link", "shared"] {
            assert_eq!(tree.join(path).symlink_metadata().unwrap().uid(), OWNER, "{path}");
        }
        chown(&outside, Some(OWNER), None).unwrap();
        fs::hard_link(&outside, tree.join("foreign")).unwrap();
        chown(&outside, Some(OWNER + 1), None).unwrap();
        seal(&tree, OWNER).unwrap();
        let seen =
            |path: &str| tree.join(path).symlink_metadata().map(|found| (found.uid(), found.mode() & 0o7777)).unwrap();
        assert_eq!(seen("deep"), (0, 0o755));
        assert_eq!(seen("deep/er/file"), (0, 0o755));
        assert_eq!(seen("link").0, 0);
        assert_eq!(seen("shared"), (OWNER, 0o644));
        assert_eq!(seen("foreign").0, 0);
        assert_eq!(Path::new("/etc/passwd").metadata().unwrap().uid(), 0);
    }

    #[test]
    fn sources_are_counted_without_following_links() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("one/deeper")).unwrap();
        for (name, text) in [("one/a.py", "12345"), ("one/deeper/b.py", "123"), ("one/deeper/data.json", "1")] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        symlink(dir.path().join("one"), dir.path().join("two")).unwrap();
        assert_eq!(sources(dir.path()).unwrap(), 8);
        assert!(sources(Path::new("/nowhere")).is_err());
    }

    #[test]
    fn packages_are_read_from_their_metadata() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["cowsay-6.1.dist-info", "cowsay", "a_b-1.0.post1.dist-info", "__pycache__"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        assert_eq!(installed(dir.path()), ["a_b==1.0.post1", "cowsay==6.1"]);
        assert!(installed(Path::new("/nowhere")).is_empty());
    }
}
