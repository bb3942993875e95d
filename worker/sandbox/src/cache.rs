//! The lasting directory `/cache`: an ext4 image on a loop device, so that its quota is the file system's own size.
//!
//! Called by [`super::spawn`] before the clone. All files belong to one user on disk; an id-mapped mount shows them as
//! the instance's, so successive instances with different users share them. The image's lock makes two workers that
//! start at the same time use one device and one file system: two of them over one image would destroy it.

use super::mount::{Mount, PLAIN};
use super::step::{Step, StepError, invalid};
use super::{idmap, loop_device};
use crate::spec::Cache;
use nix::fcntl::{Flock, FlockArg};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

/// User and group of all files in an image: unused on any usual system, and not root's.
const DISK_OWNER: u32 = 65_533;
/// Where `mke2fs` may be; a service's PATH need not have them.
const MKE2FS: [&str; 4] = ["/usr/sbin/mke2fs", "/sbin/mke2fs", "/usr/local/sbin/mke2fs", "/usr/bin/mke2fs"];

/// The mount of a cache directory, for one user. `notes` gets what the operator should know.
pub(super) fn mount(cache: &Cache, uid: u32, gid: u32, notes: &mut Vec<String>) -> Result<Mount, StepError> {
    let step = |what: &str| format!("{what} the cache image {}", cache.image.display());
    let image = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&cache.image)
        .step(|| step("open"))?;
    let image = Flock::lock(image, FlockArg::LockExclusive).map_err(|(_, errno)| errno).step(|| step("lock"))?;
    if is_made(&image).step(|| step("read"))? {
        let size = image.metadata().step(|| step("look at"))?.len();
        if size != cache.bytes {
            let path = cache.image.display();
            let quota = cache.bytes;
            notes.push(format!("the cache directory keeps its {size} bytes; for {quota} bytes remove {path} first"));
        }
    } else {
        make(&cache.image, &image, cache.bytes)?;
    }
    let device = loop_device::attach(&image).step(|| step("attach"))?;
    let source = CString::new(device.path.as_os_str().as_bytes()).step(|| step("name the device of"))?;
    let mount = Mount::new(c"ext4", &[(c"source", Some(&source))], PLAIN).step(|| {
        format!("{}; if it is damaged, repair it with e2fsck, or remove it and with it its content", step("mount"))
    })?;
    let owners = idmap::user_namespace(DISK_OWNER, uid, gid)?;
    mount.map_owners(owners.as_fd()).step(|| step("map the owners of"))?;
    Ok(mount)
}

/// Looks for a file system in the image. `mke2fs` writes this mark last, so an unfinished one has none.
fn is_made(image: &File) -> io::Result<bool> {
    /// `s_magic` of the superblock: its offset in the image and its value (`fs/ext4/ext4.h`).
    const MAGIC: (u64, [u8; 2]) = (1024 + 0x38, [0x53, 0xEF]);
    let mut found = [0; 2];
    match image.read_exact_at(&mut found, MAGIC.0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| found == MAGIC.1),
    }
}

fn make(path: &Path, image: &File, bytes: u64) -> Result<(), StepError> {
    let step = || format!("make the cache image {}", path.display());
    let Some(program) = MKE2FS.iter().find(|path| Path::new(path).exists()) else {
        return Err(invalid(format!("{}: mke2fs is not installed (Debian: package e2fsprogs)", step())));
    };
    image.set_len(bytes).step(step)?;
    let owner = format!("root_owner={DISK_OWNER}:{DISK_OWNER}");
    let output = Command::new(program)
        .args(["-q", "-F", "-t", "ext4", "-m", "0", "-E", &owner])
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .step(step)?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(invalid(format!("{}: mke2fs says: {}", step(), words.trim())))
}
