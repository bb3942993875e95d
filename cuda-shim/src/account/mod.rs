//! GPU memory of the instance, over all its processes, and its limit.
//!
//! Hooks call [`reserve`] before the driver allocates and [`give_back`] after it has freed. Between the two the account
//! has more than there is, never less. The slots hold the truth: a process that is killed at any point leaves a slot
//! that is right until it is cleared. Beside them the header has an upper bound of their sum, [`Guard::at_most`]:
//! raised before a slot is, and lowered only by a recount of all slots. So it is never too low, whichever process is
//! killed where; it suffices as long as there is room below it, and no request is refused without a recount.
//!
//! | process | changes | under the lock |
//! | --- | --- | --- |
//! | a process | lowers amounts of its own slot, each one word, and raises those that no limit is for | no |
//! | a process | raises the bound and then its own slot | yes |
//! | a process | takes a free slot, clears those of processes that ended, sets the bound to the sum | yes |

mod environment;
mod identity;
mod shared;

use crate::process::PerProcess;
use crate::ranges::{Kind, Range};
use identity::{Identity, has_ended};
use omni_gpu_protocol::account::{Mode, SLOTS, Settings, Use};
use shared::{Guard, Shared, shared};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Indices of a slot's words: see [`omni_gpu_protocol::account::Slot`].
const PID: usize = 0;
const START_TIME: usize = 1;
const EXEC_ID: usize = 2;
const MANAGED: usize = 3;
const AWAY: usize = 4;
const DEVICE: usize = 5;
const HOST: usize = 6;

/// The limit does not allow it, or there is no account.
#[derive(Debug)]
pub(crate) struct Full;

/// State of this process; a forked child makes its own.
struct Own {
    identity: Identity,
    /// Index of its slot plus one; 0 for none yet.
    slot: AtomicUsize,
}

static OWN: PerProcess<Own> = PerProcess::new();

/// Counts `bytes` before they are allocated, `resident` of which are meant to be on the device. Host memory is counted
/// and never refused.
pub(crate) fn reserve(kind: Kind, bytes: u64, resident: u64) -> Result<(), Full> {
    raise(kind, bytes, resident, settings().limit)
}

/// Counts memory that exists already, beyond the limit if need be.
pub(crate) fn charge(kind: Kind, bytes: u64) -> Result<(), Full> {
    raise(kind, bytes, 0, None)
}

fn raise(kind: Kind, bytes: u64, resident: u64, limit: Option<u64>) -> Result<(), Full> {
    let shared = shared().ok_or(Full)?;
    if kind == Kind::Host
        && let Some(slot) = known_slot(shared)
    {
        return add(shared, slot, HOST, bytes);
    }
    let guard = shared.lock().ok_or(Full)?;
    if kind != Kind::Host {
        let at_most = guard.at_most().load(Ordering::Relaxed);
        let at_most = if fits(at_most, bytes, limit) { at_most } else { recount(shared, &guard, bytes, limit)? };
        // Before the slot: a process that is killed in between leaves a bound that is too high.
        guard.at_most().store(at_most.saturating_add(bytes), Ordering::Relaxed);
    }
    let slot = own_slot(shared, &guard).ok_or(Full)?;
    add(shared, slot, place(kind), bytes)?;
    if let Some(away) = away(kind, bytes, resident) {
        add(shared, slot, AWAY, away).ok();
    }
    Ok(())
}

fn fits(counted: u64, bytes: u64, limit: Option<u64>) -> bool {
    limit.is_none_or(|limit| counted.checked_add(bytes).is_some_and(|sum| sum <= limit))
}

/// Sums all slots anew and sets the bound; returns it where `bytes` more fit.
#[cold]
fn recount(shared: &Shared, guard: &Guard<'_>, bytes: u64, limit: Option<u64>) -> Result<u64, Full> {
    let mut sum = limited(shared);
    if !fits(sum, bytes, limit) {
        clear_ended(shared, this().identity);
        sum = limited(shared);
    }
    guard.at_most().store(sum, Ordering::Relaxed);
    if fits(sum, bytes, limit) { Ok(sum) } else { Err(Full) }
}

/// Uncounts `bytes`, none of which were resident.
pub(crate) fn give_back(kind: Kind, bytes: u64) {
    lower(kind, bytes, 0);
}

/// Uncounts a range that has been freed.
pub(crate) fn forget(range: &Range) {
    lower(range.kind, range.bytes, range.resident);
}

/// Lowers the slot's words. Needs no lock: a concurrent sum is too high at worst.
fn lower(kind: Kind, bytes: u64, resident: u64) {
    let Some((shared, slot)) = known() else { return };
    if let Some(away) = away(kind, bytes, resident) {
        take(shared, slot, AWAY, away);
    }
    take(shared, slot, place(kind), bytes);
}

/// Bytes that could be on the device and are not. None for a new allocation, and for most that are freed.
fn away(kind: Kind, bytes: u64, resident: u64) -> Option<u64> {
    match kind {
        Kind::Managed => bytes.checked_sub(resident).filter(|away| *away > 0),
        Kind::Device | Kind::Host => None,
    }
}

/// Records that managed memory is meant to be on the device again.
pub(crate) fn came(bytes: u64) {
    if let Some((shared, slot)) = known() {
        take(shared, slot, AWAY, bytes);
    }
}

/// Records that managed memory has left the device, or is cached by a pool.
pub(crate) fn left(bytes: u64) {
    if let Some((shared, slot)) = known() {
        add(shared, slot, AWAY, bytes).ok();
    }
}

/// Limit and mode of the instance, from the header of the account.
///
/// The worker writes them before the model begins; without a worker the first process that sets the file up writes
/// those of its environment. Read at load, so that nothing a program does later changes anything. While there is no
/// account nothing may be allocated; the next call looks again.
pub(crate) fn settings() -> Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get().copied().unwrap_or_else(|| match shared() {
        Some(shared) => *SETTINGS.get_or_init(|| shared.settings().unwrap_or_else(environment::settings)),
        None => Settings { limit: Some(0), mode: Mode::Device },
    })
}

/// Memory of this process.
pub(crate) fn own_use() -> Use {
    let Some((shared, slot)) = known() else { return Use::default() };
    let word = |place| shared.slot(slot, place).load(Ordering::Relaxed);
    let managed = word(MANAGED);
    Use { managed, resident: managed.saturating_sub(word(AWAY)), device: word(DEVICE), host: word(HOST) }
}

/// The instance's share of a device that has `free` of `total` bytes, in the same order.
///
/// In unified mode the card's own free memory is irrelevant: what fills it can be moved away.
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
        Mode::Unified => (left, total),
        Mode::Device => (left.min(free), total),
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

/// Adds to a word, unless it would overflow: an amount that is not counted must not be uncounted later.
fn add(shared: &Shared, slot: usize, place: usize, bytes: u64) -> Result<(), Full> {
    let word = shared.slot(slot, place);
    let had = word.fetch_add(bytes, Ordering::Release);
    if had.checked_add(bytes).is_some() {
        return Ok(());
    }
    word.fetch_sub(bytes, Ordering::Relaxed);
    Err(Full)
}

fn take(shared: &Shared, slot: usize, place: usize, bytes: u64) {
    let word = shared.slot(slot, place);
    word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |have| Some(have.saturating_sub(bytes))).ok();
}

/// Sum of all slots in use that counts for the limit.
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

/// The file and this process's slot in it, if it has both.
fn known() -> Option<(&'static Shared, usize)> {
    let shared = shared()?;
    Some((shared, known_slot(shared)?))
}

/// Slot of this process, if it has one that no other process has overwritten.
fn known_slot(shared: &Shared) -> Option<usize> {
    let own = this();
    let slot = own.slot.load(Ordering::Relaxed).checked_sub(1)?;
    (identity_in(shared, slot) == own.identity).then_some(slot)
}

/// Slot of this process: its known one, one that a second copy of this library has taken for it, or a free one.
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

/// Frees the slots that this process had before it executed this program, and those of earlier owners of its pid.
fn clear_before_exec(shared: &Shared, me: Identity) {
    let left = |slot: &usize| {
        let owner = identity_in(shared, *slot);
        owner.pid == me.pid && owner != me
    };
    (0..shared.used()).filter(left).for_each(|slot| shared.slot(slot, PID).store(0, Ordering::Release));
}

/// Frees the slots of processes that have ended. The caller holds the lock.
#[cold]
fn clear_ended(shared: &Shared, me: Identity) {
    for slot in 0..shared.used() {
        let owner = identity_in(shared, slot);
        if owner.pid != 0 && owner.pid != me.pid && has_ended(owner.pid, owner.start_time) {
            shared.slot(slot, PID).store(0, Ordering::Release);
        }
    }
}

/// Maps the account at load, since forks share only what exists before them, and frees slots from before an exec.
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

/// Entry of the loader's table of functions that run when the library is loaded.
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
