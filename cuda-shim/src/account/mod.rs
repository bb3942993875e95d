//! How much GPU memory the instance has, over all its processes, and the limit.
//!
//! The hooks call this: [`reserve`] before the driver allocates, [`give_back`] after it has freed. Between the two the
//! account says more than there is, never less. Sums are computed from the slots each time, so there is none to go
//! wrong: a process that is killed at any point leaves a slot that is true until nobody counts it any more.
//!
//! | who | changes | under the lock |
//! | --- | --- | --- |
//! | a process | amounts of its own slot, each one word | to raise them against a limit |
//! | a process | takes a free slot, clears those of processes that ended | yes |

mod identity;
mod shared;

use crate::limit::settings;
use crate::process::PerProcess;
use crate::ranges::{Kind, Range};
use identity::{Identity, has_ended};
use omni_gpu_wire::account::{SLOTS, Use};
use shared::{Guard, Shared, shared};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Places of a slot's words: see [`omni_gpu_wire::account::Slot`].
const PID: usize = 0;
const START_TIME: usize = 1;
const EXEC_ID: usize = 2;
const MANAGED: usize = 3;
const RESIDENT: usize = 4;
const DEVICE: usize = 5;
const HOST: usize = 6;

/// The limit does not allow it, or there is no account to ask.
#[derive(Debug)]
pub(crate) struct Full;

/// This process, unmade in a child of it.
struct Own {
    identity: Identity,
    /// Its slot, and one more; 0 for none yet.
    slot: AtomicUsize,
}

static OWN: PerProcess<Own> = PerProcess::new();

/// Counts `bytes` before they are allocated. Host memory is counted and never refused.
pub(crate) fn reserve(kind: Kind, bytes: u64) -> Result<(), Full> {
    let limit = match (settings().limit, kind) {
        (Some(limit), Kind::Managed | Kind::Device) => limit,
        (None, _) | (_, Kind::Host) => return charge(kind, bytes),
    };
    let shared = shared().ok_or(Full)?;
    let guard = shared.lock().ok_or(Full)?;
    let fits = || limited(shared).checked_add(bytes).is_some_and(|sum| sum <= limit);
    if !fits() {
        clear_ended(shared, this().identity);
        if !fits() {
            return Err(Full);
        }
    }
    let slot = own_slot(shared, &guard).ok_or(Full)?;
    add(shared, slot, place(kind), bytes)
}

/// Counts what is there already, whatever the limit says.
pub(crate) fn charge(kind: Kind, bytes: u64) -> Result<(), Full> {
    let shared = shared().ok_or(Full)?;
    let slot = match known_slot(shared) {
        Some(slot) => slot,
        None => own_slot(shared, &shared.lock().ok_or(Full)?).ok_or(Full)?,
    };
    add(shared, slot, place(kind), bytes)
}

/// Counts `bytes` no longer. Needs no lock: who reads a sum meanwhile finds it too high at worst.
pub(crate) fn give_back(kind: Kind, bytes: u64) {
    if let Some((shared, slot)) = known() {
        take(shared, slot, place(kind), bytes);
    }
}

/// Counts a range no longer that has been freed.
pub(crate) fn forget(range: &Range) {
    let Some((shared, slot)) = known() else { return };
    if range.resident > 0 {
        take(shared, slot, RESIDENT, range.resident);
    }
    take(shared, slot, place(range.kind), range.bytes);
}

/// Managed memory is meant to be on the device now.
pub(crate) fn came(bytes: u64) {
    if let Some((shared, slot)) = known() {
        add(shared, slot, RESIDENT, bytes).ok();
    }
}

/// Managed memory has left the device, or has been freed.
pub(crate) fn left(bytes: u64) {
    if let Some((shared, slot)) = known() {
        take(shared, slot, RESIDENT, bytes);
    }
}

/// What this process has.
pub(crate) fn own_use() -> Use {
    let Some((shared, slot)) = known() else { return Use::default() };
    let word = |place| shared.slot(slot, place).load(Ordering::Relaxed);
    Use { managed: word(MANAGED), resident: word(RESIDENT), device: word(DEVICE), host: word(HOST) }
}

/// What the instance sees of a device that has `free` of `total` bytes: its share, in the same order.
///
/// In unified mode the card's own free memory says nothing, because what fills it can be moved away.
pub(crate) fn share(free: u64, total: u64) -> (u64, u64) {
    let Some(limit) = settings().limit else { return (free, total) };
    let total = total.min(limit);
    let Some(shared) = shared() else { return (0, total) };
    let left = {
        let guard = shared.lock();
        if guard.is_some() {
            clear_ended(shared, this().identity);
        }
        total.saturating_sub(limited(shared))
    };
    match settings().mode {
        crate::limit::Mode::Unified => (left, total),
        crate::limit::Mode::Device => (left.min(free), total),
    }
}

fn place(kind: Kind) -> usize {
    match kind {
        Kind::Managed => MANAGED,
        Kind::Device => DEVICE,
        Kind::Host => HOST,
    }
}

fn this() -> &'static Own {
    OWN.get(|| Own { identity: Identity::own(), slot: AtomicUsize::new(0) })
}

/// What is no number any more is not counted: taken back later it would take others' bytes along.
fn add(shared: &Shared, slot: usize, place: usize, bytes: u64) -> Result<(), Full> {
    let word = shared.slot(slot, place);
    let added = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |have| have.checked_add(bytes));
    added.map_or(Err(Full), |_| Ok(()))
}

fn take(shared: &Shared, slot: usize, place: usize, bytes: u64) {
    let word = shared.slot(slot, place);
    word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |have| Some(have.saturating_sub(bytes))).ok();
}

/// What counts for the limit, over all slots that are taken.
fn limited(shared: &Shared) -> u64 {
    let taken = (0..shared.used()).filter(|slot| shared.slot(*slot, PID).load(Ordering::Relaxed) != 0);
    taken.fold(0, |sum: u64, slot| {
        let word = |place| shared.slot(slot, place).load(Ordering::Relaxed);
        sum.saturating_add(word(MANAGED).saturating_add(word(DEVICE)))
    })
}

fn identity_in(shared: &Shared, slot: usize) -> Identity {
    let word = |place| shared.slot(slot, place).load(Ordering::Acquire);
    Identity { pid: word(PID), start_time: word(START_TIME), exec_id: word(EXEC_ID) }
}

/// The file and in it the slot of this process, if it has both.
fn known() -> Option<(&'static Shared, usize)> {
    let shared = shared()?;
    Some((shared, known_slot(shared)?))
}

/// The slot of this process, if it has one and nobody has overwritten it.
fn known_slot(shared: &Shared) -> Option<usize> {
    let own = this();
    let slot = own.slot.load(Ordering::Relaxed).checked_sub(1)?;
    (identity_in(shared, slot) == own.identity).then_some(slot)
}

/// The slot of this process: the one it knows, one that a second copy of this library has taken for it, or a free one.
fn own_slot(shared: &Shared, guard: &Guard<'_>) -> Option<usize> {
    known_slot(shared).or_else(|| {
        let slot = find_slot(shared, guard)?;
        this().slot.store(slot + 1, Ordering::Relaxed);
        Some(slot)
    })
}

#[cold]
fn find_slot(shared: &Shared, guard: &Guard<'_>) -> Option<usize> {
    let me = this().identity;
    if let Some(slot) = (0..shared.used()).find(|slot| identity_in(shared, *slot) == me) {
        return Some(slot);
    }
    clear_before_exec(shared, me);
    clear_ended(shared, me);
    let slot = (0..SLOTS).find(|slot| shared.slot(*slot, PID).load(Ordering::Relaxed) == 0)?;
    for place in MANAGED..=HOST {
        shared.slot(slot, place).store(0, Ordering::Relaxed);
    }
    shared.slot(slot, START_TIME).store(me.start_time, Ordering::Relaxed);
    shared.slot(slot, EXEC_ID).store(me.exec_id, Ordering::Relaxed);
    shared.slot(slot, PID).store(me.pid, Ordering::Release); // last: it is taken now
    guard.use_up_to(slot);
    Some(slot)
}

/// Frees the slots that this very process had before it executed this program, and those of earlier owners of its pid.
fn clear_before_exec(shared: &Shared, me: Identity) {
    let left = |slot: &usize| {
        let owner = identity_in(shared, *slot);
        owner.pid == me.pid && owner != me
    };
    (0..shared.used()).filter(left).for_each(|slot| shared.slot(slot, PID).store(0, Ordering::Release));
}

/// Frees the slots of processes that are gone. With the lock only.
#[cold]
fn clear_ended(shared: &Shared, me: Identity) {
    for slot in 0..shared.used() {
        let owner = identity_in(shared, slot);
        if owner.pid != 0 && owner.pid != me.pid && has_ended(owner.pid, owner.start_time) {
            shared.slot(slot, PID).store(0, Ordering::Release);
        }
    }
}

/// Memory that forks share has to be there before the first fork, and what this process had before it executed this
/// program is gone.
fn prepare() {
    let Some(shared) = shared() else { return };
    let me = this().identity;
    let has_left_some = |slot| identity_in(shared, slot).pid == me.pid && identity_in(shared, slot) != me;
    if (0..shared.used()).any(has_left_some)
        && let Some(_guard) = shared.lock()
    {
        clear_before_exec(shared, me);
    }
}

/// Runs when the library is loaded.
#[used]
#[allow(unsafe_code, reason = "a section that the loader knows")]
// SAFETY: the loader calls every address in this section once, with arguments that this function leaves alone.
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        if crate::active() {
            settings();
            prepare();
        }
    }
    at_load
};
