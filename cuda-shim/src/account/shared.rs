//! Accounting file as memory: opened or created, mapped once per program, and locked.
//!
//! No descriptor is kept: a program may close all of its own. Every number is read and written as one aligned word, so
//! a process that is killed leaves no half-written one. Other processes of the instance may have written anything here:
//! every value is checked, and a wait for the lock lasts at most [`PATIENCE_SECONDS`].
#![allow(unsafe_code, reason = "mmap, and a mutex that processes share")]

use super::environment;
use crate::places;
use omni_gpu_protocol::account::{FILE_BYTES, HEADER_BYTES, Header, MAGIC, SLOT_BYTES, SLOTS, Settings};
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Longest wait for another process, for the lock or for the file's set-up, before the file counts as broken.
const PATIENCE_SECONDS: u64 = 5;

/// Offset at which glibc keeps the kind of a mutex, and the kind of this one: `PTHREAD_MUTEX_ROBUST_NORMAL_NP` and the
/// shared bit.
const MUTEX_KIND: usize = 16;
const ROBUST_AND_SHARED: u64 = 0x10 | 0x80;

const WORDS: usize = FILE_BYTES / 8;

/// The mapped file.
pub(super) struct Shared {
    /// Whole file, from the beginning of a page, never unmapped. Its length is a constant: every index is within.
    words: &'static [AtomicU64; WORDS],
}

/// Maps the accounting file, or where none is named memory that only this process and its forks share. `None` when it
/// cannot be had now (no descriptor is left, no memory): a file that is named is never replaced by something else, or
/// each process would have the instance's limit for itself.
#[inline]
pub(super) fn shared() -> Option<&'static Shared> {
    SHARED.get().or_else(find)
}

static SHARED: OnceLock<Shared> = OnceLock::new();

#[cold]
fn find() -> Option<&'static Shared> {
    static PATH: OnceLock<Option<OsString>> = OnceLock::new();
    let path = PATH.get_or_init(places::account);
    let fresh = path.as_ref().map_or_else(anonymous, |path| named(path))?;
    Some(SHARED.get_or_init(|| fresh))
}

fn named(path: &OsStr) -> Option<Shared> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path).ok()?;
    if is_long_enough(&file) {
        let shared = map(Some(&file))?;
        if shared.is_set_up() {
            return Some(shared);
        }
    }
    lock_file(&file)?; // until it is closed, on return
    if !is_long_enough(&file) {
        file.set_len(u64::try_from(FILE_BYTES).ok()?).ok()?;
    }
    let shared = map(Some(&file))?;
    if !shared.is_set_up() {
        shared.set_up()?;
    }
    Some(shared)
}

fn anonymous() -> Option<Shared> {
    let shared = map(None)?;
    shared.set_up()?;
    Some(shared)
}

fn is_long_enough(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| usize::try_from(metadata.len()).is_ok_and(|bytes| bytes >= FILE_BYTES))
}

fn lock_file(file: &File) -> Option<()> {
    let end = Instant::now() + Duration::from_secs(PATIENCE_SECONDS);
    while file.try_lock().is_err() {
        if Instant::now() > end {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1)); // there is no wait for a file lock with an end
    }
    Some(())
}

fn map(file: Option<&File>) -> Option<Shared> {
    let (anonymous, descriptor) = file.map_or((libc::MAP_ANONYMOUS, -1), |file| (0, file.as_raw_fd()));
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | anonymous);
    // SAFETY: a fresh mapping touches no memory that is in use.
    let base = unsafe { libc::mmap(null_mut(), FILE_BYTES, access, flags, descriptor, 0) };
    if base == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: so many words, aligned to a page, never unmapped; nobody reaches them but by atomics and the mutex.
    Some(Shared { words: unsafe { &*base.cast() } })
}

/// Access to the header while the lock is held.
pub(super) struct Guard<'a>(&'a Shared);

impl Shared {
    /// Word `place` of slot `number`; both wrap rather than leave the file.
    pub(super) fn slot(&self, number: usize, place: usize) -> &AtomicU64 {
        self.word(HEADER_BYTES + number % SLOTS * SLOT_BYTES + place * 8 % SLOT_BYTES)
    }

    /// Number of slots to look at.
    pub(super) fn used(&self) -> usize {
        usize::try_from(self.word(offset_of!(Header, used_slots)).load(Ordering::Acquire))
            .map_or(SLOTS, |used| used.min(SLOTS))
    }

    /// Takes the lock; `None` when it cannot be had in time, or is no lock any more.
    pub(super) fn lock(&self) -> Option<Guard<'_>> {
        let mutex = self.mutex();
        if !self.has_a_lock() {
            return None;
        }
        // SAFETY: the mutex is initialised: `shared` gives nothing out that is not set up.
        let result = match unsafe { libc::pthread_mutex_trylock(mutex) } {
            libc::EBUSY => self.wait(),
            result => result,
        };
        match result {
            0 => Some(Guard(self)),
            // The holder has died. Every store was a whole word, in an order that is right at each step.
            libc::EOWNERDEAD => {
                // SAFETY: this thread holds the mutex.
                unsafe { libc::pthread_mutex_consistent(mutex) };
                Some(Guard(self))
            }
            _ => None,
        }
    }

    #[cold]
    fn wait(&self) -> i32 {
        let mut end = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes one timespec.
        unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut end) };
        end.tv_sec = end.tv_sec.saturating_add(PATIENCE_SECONDS.cast_signed());
        // SAFETY: the mutex is initialised.
        unsafe { libc::pthread_mutex_timedlock(self.mutex(), &raw const end) }
    }

    /// The mutex is still of the kind that was set up: libc ends a process that locks anything else.
    fn has_a_lock(&self) -> bool {
        let kind = self.word(offset_of!(Header, lock) + MUTEX_KIND).load(Ordering::Relaxed) & u64::from(u32::MAX);
        kind == ROBUST_AND_SHARED
    }

    fn mutex(&self) -> *mut libc::pthread_mutex_t {
        self.words.as_ptr().wrapping_add(offset_of!(Header, lock) / 8).cast_mut().cast()
    }

    /// Word at byte offset `at`, modulo the length of the file.
    fn word(&self, at: usize) -> &AtomicU64 {
        &self.words[at / 8 % WORDS]
    }

    /// Settings in the header; `None` where they were never written.
    pub(super) fn settings(&self) -> Option<Settings> {
        Settings::from_words(self.setting_words())
    }

    fn setting_words(&self) -> [u64; 2] {
        [0, 8].map(|more| self.word(Settings::AT + more).load(Ordering::Relaxed))
    }

    fn is_set_up(&self) -> bool {
        self.word(offset_of!(Header, magic)).load(Ordering::Acquire) == MAGIC
    }

    fn set_up(&self) -> Option<()> {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: makes the attributes.
        if unsafe { libc::pthread_mutexattr_init(attributes.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: made above.
        let shared =
            unsafe { libc::pthread_mutexattr_setpshared(attributes.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED) };
        // SAFETY: made above.
        let robust = unsafe { libc::pthread_mutexattr_setrobust(attributes.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST) };
        // SAFETY: the attributes were made above; nobody uses the mutex before the magic is written.
        let made = unsafe { libc::pthread_mutex_init(self.mutex(), attributes.as_ptr()) };
        // A C library with another layout of mutexes is not supported.
        if [shared, robust, made] != [0; 3] || !self.has_a_lock() {
            return None;
        }
        for word in (HEADER_BYTES..FILE_BYTES).step_by(8) {
            self.word(word).store(0, Ordering::Relaxed);
        }
        self.word(offset_of!(Header, used_slots)).store(0, Ordering::Relaxed);
        self.word(offset_of!(Header, at_most)).store(0, Ordering::Relaxed);
        // The worker's settings stay; nonsense in a file that was never set up is overwritten.
        if self.settings().is_none_or(|settings| settings.to_words() != self.setting_words()) {
            for (more, word) in [0, 8].into_iter().zip(environment::settings().to_words()) {
                self.word(Settings::AT + more).store(word, Ordering::Relaxed);
            }
        }
        self.word(offset_of!(Header, magic)).store(MAGIC, Ordering::Release);
        Some(())
    }
}

impl Guard<'_> {
    /// Records that slot `number` was used; the caller holds the lock.
    pub(super) fn use_up_to(&self, number: usize) {
        let used = u64::try_from(number + 1).unwrap_or(0);
        self.0.word(offset_of!(Header, used_slots)).fetch_max(used, Ordering::Release);
    }

    /// Upper bound of the sum over the slots: a word of the header that changes under the lock only.
    pub(super) fn at_most(&self) -> &AtomicU64 {
        self.0.word(offset_of!(Header, at_most))
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread locked it.
        unsafe { libc::pthread_mutex_unlock(self.0.mutex()) };
    }
}

const _: () = assert!(size_of::<libc::pthread_mutex_t>() <= 64 && offset_of!(Header, lock).is_multiple_of(16));
