//! A disk of a test's own, small enough to be filled: for a node on a machine that has no room left.

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statvfs::statvfs;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;

/// A memory file system with bounds on bytes and inodes. Dropping it unmounts it.
#[derive(Debug)]
pub struct Disk(PathBuf);

impl Disk {
    pub(crate) fn new(at: PathBuf, bytes: u64, inodes: u64) -> Self {
        let options = format!("size={bytes},nr_inodes={inodes},mode=755");
        mount(Some("none"), &at, Some("tmpfs"), MsFlags::empty(), Some(options.as_str())).expect("a disk");
        Self(at)
    }

    /// Takes all room for bytes.
    pub fn fill(&self) {
        let mut ballast = File::create(self.ballast().with_extension("bytes")).expect("a file");
        while !is_full(&ballast.write(&[1; 4096]).map(drop)) {}
    }

    /// Takes all inodes; the files there can still grow.
    pub fn fill_inodes(&self) {
        fs::create_dir(self.ballast()).expect("a folder");
        let mut names = 0..;
        while !is_full(&File::create(self.ballast().join(format!("{:?}", names.next()))).map(drop)) {}
    }

    /// Free space, in bytes.
    #[must_use]
    pub fn left(&self) -> u64 {
        let disk = statvfs(&self.0).expect("a disk");
        disk.blocks_available() * disk.fragment_size()
    }

    /// Gives all of it back.
    pub fn free(&self) {
        let _ = fs::remove_file(self.ballast().with_extension("bytes"));
        let _ = fs::remove_dir_all(self.ballast());
    }

    fn ballast(&self) -> PathBuf {
        self.0.join(".ballast")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

fn is_full(done: &io::Result<()>) -> bool {
    match done {
        Ok(()) => false,
        Err(error) if error.raw_os_error() == Some(Errno::ENOSPC as i32) => true,
        Err(error) => panic!("{error}"),
    }
}
