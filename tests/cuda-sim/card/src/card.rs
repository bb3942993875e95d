//! Card: opened, read, changed.

use crate::kernel::{Locks, Mapping};
use crate::layout::{CARD_LOCK, MAGIC, MOVES, slot_lock};
use crate::locked::Locked;
use crate::settings::{Faults, Settings};
use crate::state::{Cause, Counters, Direction, Move, Process, State};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// No slot of our own.
const NONE: usize = usize::MAX;

/// An open card.
#[derive(Debug)]
pub struct Card {
    mapping: Mapping,
    locks: Locks,
    /// The locks are the process's: they keep no threads apart.
    threads: Mutex<()>,
    own: AtomicUsize,
}

impl Card {
    /// # Errors
    /// The file cannot be opened, or is no card.
    pub fn open(path: &Path) -> io::Result<Self> {
        let card = Self::over(path, &OpenOptions::new().read(true).write(true).open(path)?)?;
        if card.mapping.layout().magic.get() == MAGIC {
            Ok(card)
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidData, "not a simulated card, or of another layout"))
        }
    }

    /// Writes a new card over whatever the file was.
    pub(crate) fn set_up(path: &Path, settings: &Settings) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        file.set_len(0)?;
        file.set_len(size_of::<crate::layout::Layout>() as u64)?;
        let card = Self::over(path, &file)?;
        settings.write(&card.mapping.layout().settings);
        card.mapping.layout().magic.set(MAGIC);
        Ok(card)
    }

    fn over(path: &Path, file: &File) -> io::Result<Self> {
        let (mapping, locks) = (Mapping::new(file)?, Locks::open(path)?);
        Ok(Self { mapping, locks, threads: Mutex::new(()), own: AtomicUsize::new(NONE) })
    }

    /// Settings of the card.
    #[must_use]
    pub fn settings(&self) -> Settings {
        Settings::read(&self.mapping.layout().settings)
    }

    /// Faults that are set now.
    #[must_use]
    pub fn faults(&self) -> Faults {
        Faults::read(&self.mapping.layout().faults)
    }

    /// Lets it go wrong from now on, in place of what went wrong before.
    ///
    /// # Errors
    /// The card cannot be locked.
    pub fn set_faults(&self, faults: &Faults) -> io::Result<()> {
        let _locked = self.lock()?;
        faults.write(&self.mapping.layout().faults);
        Ok(())
    }

    /// Some call is slow: one word read, on the path of every call.
    #[must_use]
    pub fn has_slow_call(&self) -> bool {
        !self.mapping.layout().faults.slow_call.is_empty()
    }

    /// The code that every call answers, once the card is lost.
    #[must_use]
    pub fn lost(&self) -> Option<u32> {
        u32::try_from(self.mapping.layout().faults.lost.get()).ok().filter(|code| *code != 0)
    }

    /// Snapshot of its state.
    ///
    /// # Errors
    /// The card cannot be locked.
    pub fn state(&self) -> io::Result<State> {
        let _locked = self.lock()?;
        let layout = self.mapping.layout();
        let moved = layout.moved.get();
        let kept = moved.min(MOVES as u64);
        let at = |number: u64| usize::try_from(number % MOVES as u64).unwrap_or(0);
        let number = |value: u64| u32::try_from(value).unwrap_or(0);
        let moves = (moved - kept..moved).map(|number| &layout.moves[at(number)]).map(|words| Move {
            pid: number(words.pid.get()),
            start_time: words.start_time.get(),
            address: words.address.get(),
            bytes: words.bytes.get(),
            direction: Direction::from_code(words.direction.get()),
            cause: Cause::from_code(words.cause.get()),
        });
        let processes = layout.slots.iter().filter(|slot| slot.pid.get() != 0).map(|slot| Process {
            pid: number(slot.pid.get()),
            start_time: slot.start_time.get(),
            device: slot.device.get(),
            managed: slot.managed.get(),
            resident: slot.resident.get(),
        });
        let counters = &layout.counters;
        Ok(State {
            processes: processes.collect(),
            counters: Counters {
                prefetch_to_device: counters.prefetch_to_device.get(),
                prefetch_to_host: counters.prefetch_to_host.get(),
                fault_to_device: counters.fault_to_device.get(),
                fault_to_host: counters.fault_to_host.get(),
                evicted: counters.evicted.get(),
                discarded: counters.discarded.get(),
                populated: counters.populated.get(),
                prefetch_calls: counters.prefetch_calls.get(),
            },
            moves: moves.collect(),
            moved,
        })
    }

    /// Takes a slot for this process, which it keeps until its end. For the driver.
    ///
    /// # Errors
    /// When all slots are taken, or the card cannot be locked.
    pub fn attach(&self) -> io::Result<()> {
        if self.own.load(Ordering::Relaxed) != NONE {
            return Ok(());
        }
        let _locked = self.lock()?;
        if self.own.load(Ordering::Relaxed) != NONE {
            return Ok(());
        }
        let slots = &self.mapping.layout().slots;
        let Some(free) = slots.iter().position(|slot| slot.pid.get() == 0) else {
            return Err(io::Error::other("every slot of the card is taken"));
        };
        self.locks.acquire(slot_lock(free))?;
        slots[free].start_time.set(start_time());
        slots[free].pid.set(u64::from(std::process::id()));
        self.own.store(free, Ordering::Relaxed);
        Ok(())
    }

    /// Descriptors that [`crate::close_after_fork`] has to close. For the driver.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.locks.descriptor()
    }

    /// Locks everything about the card that changes. Slots of the dead are cleared first.
    ///
    /// # Errors
    /// The kernel refuses the lock.
    pub fn lock(&self) -> io::Result<Locked<'_>> {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        self.locks.acquire(CARD_LOCK)?;
        let own = Some(self.own.load(Ordering::Relaxed)).filter(|own| *own != NONE);
        let locked = Locked::new(self.mapping.layout(), &self.locks, own, threads);
        locked.reap();
        Ok(locked)
    }
}

/// Start time of this process, in clock ticks since boot; 0 without `/proc`.
fn start_time() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name.split_whitespace().nth(19).and_then(|field| field.parse().ok()).unwrap_or(0)
}
