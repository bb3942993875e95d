//! A file system that is mounted and does not answer, as that of a FUSE daemon that waits for its network.

use nix::fcntl::OFlag;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, poll};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

/// The first request.
const INIT: u32 = 26;

/// Mounted for as long as it lives.
pub(crate) struct DeadMount {
    at: PathBuf,
    asked: Arc<AtomicU32>,
    end: Arc<AtomicBool>,
    daemon: Option<JoinHandle<()>>,
}

impl DeadMount {
    pub(crate) fn at(dir: &Path) -> Self {
        std::fs::create_dir_all(dir).unwrap();
        let flags = OFlag::O_NONBLOCK.bits();
        let fuse = OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", fuse.as_raw_fd());
        mount(Some("dead"), dir, Some("fuse"), MsFlags::empty(), Some(options.as_str())).unwrap();
        let (asked, end) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, ends) = (Arc::clone(&asked), Arc::clone(&end));
        let daemon = std::thread::spawn(move || daemon(fuse, &counted, &ends));
        Self { at: dir.to_owned(), asked, end, daemon: Some(daemon) }
    }

    /// Requests that were read and have no answer: who made them waits in the kernel, where no signal reaches.
    pub(crate) fn waiting(&self) -> u32 {
        self.asked.load(Ordering::SeqCst)
    }

    /// Takes the mount out of sight; who waits goes on waiting.
    pub(crate) fn detach(&self) {
        umount2(&self.at, MntFlags::MNT_DETACH).unwrap();
    }

    /// The daemon ends: every request fails from now on.
    pub(crate) fn abort(&mut self) {
        self.end.store(true, Ordering::SeqCst);
        self.daemon.take().into_iter().for_each(|daemon| daemon.join().unwrap());
    }
}

impl Drop for DeadMount {
    fn drop(&mut self) {
        self.end.store(true, Ordering::SeqCst);
        let _ = self.daemon.take().map(JoinHandle::join);
        let _ = umount2(&self.at, MntFlags::MNT_DETACH); // detached before, or not
    }
}

/// Answers the first request, and reads the others.
fn daemon(mut fuse: File, asked: &AtomicU32, end: &AtomicBool) {
    let mut request = vec![0; 1 << 20];
    while !end.load(Ordering::SeqCst) {
        let _ = poll(&mut [PollFd::new(fuse.as_fd(), PollFlags::POLLIN)], 20_u8);
        let Ok(length) = fuse.read(&mut request) else { continue };
        let word = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().unwrap());
        assert!(length >= 16);
        if word(4) != INIT {
            asked.fetch_add(1, Ordering::SeqCst);
            continue;
        }
        // Header (length, no error, the request's number), then version 7.31 and what it needs, 64 bytes in all.
        let mut answer = Vec::new();
        answer.extend([80_u32, 0].iter().flat_map(|word| word.to_le_bytes()));
        answer.extend(&request[8..16]);
        answer.extend([7_u32, 31, 0, 0, 0, 1 << 16].iter().flat_map(|word| word.to_le_bytes()));
        answer.resize(80, 0);
        fuse.write_all(&answer).unwrap();
    }
}
