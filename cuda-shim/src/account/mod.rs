//! How much GPU memory the instance has, over all its processes, and the limit.
//!
//! The hooks call this: [`reserve`] before the driver allocates, [`give_back`] after it has freed. Between the two the
//! account says more than there is, never less. The truth is in the slots: a process that is killed at any point leaves
//! one that is true until nobody counts it any more. Beside them the header has a bound, [`Guard::at_most`]: raised
//! before a slot is, and lowered by nobody but who counts all slots anew. So it is never too low, whoever is killed
//! where; it answers as long as there is room below it, and nobody is refused before the slots are counted.
//!
//! | who | changes | under the lock |
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

/// Places of a slot's words: see [`omni_gpu_protocol::account::Slot`].
const PID: usize = 0;
const START_TIME: usize = 1;
const EXEC_ID: usize = 2;
const MANAGED: usize = 3;
const AWAY: usize = 4;
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

/// Counts `bytes` before they are allocated, of which `resident` are meant to be on the device. Host memory is counted
/// and never refused.
pub(crate) fn reserve(kind: Kind, bytes: u64, resident: u64) -> Result<(), Full> {
    raise(kind, bytes, resident, settings().limit)
}

/// Counts what is there already, whatever the limit says.
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
        // Before the slot: whoever is killed in between leaves a bound that is too high.
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

/// What counts for the limit now, where `bytes` more fit.
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

/// Counts `bytes` no longer, none of which were resident.
pub(crate) fn give_back(kind: Kind, bytes: u64) {
    lower(kind, bytes, 0);
}

/// Counts a range no longer that has been freed.
pub(crate) fn forget(range: &Range) {
    lower(range.kind, range.bytes, range.resident);
}

/// Needs no lock: who reads a sum meanwhile finds it too high at worst.
fn lower(kind: Kind, bytes: u64, resident: u64) {
    let Some((shared, slot)) = known() else { return };
    if let Some(away) = away(kind, bytes, resident) {
        take(shared, slot, AWAY, away);
    }
    take(shared, slot, place(kind), bytes);
}

/// What of these bytes could be on the device and is not. Of a fresh allocation, and of most that are freed: nothing.
fn away(kind: Kind, bytes: u64, resident: u64) -> Option<u64> {
    match kind {
        Kind::Managed => bytes.checked_sub(resident).filter(|away| *away > 0),
        Kind::Device | Kind::Host => None,
    }
}

/// Managed memory is meant to be on the device now.
pub(crate) fn came(bytes: u64) {
    if let Some((shared, slot)) = known() {
        take(shared, slot, AWAY, bytes);
    }
}

/// Managed memory has left the device, or is kept by a pool for later.
pub(crate) fn left(bytes: u64) {
    if let Some((shared, slot)) = known() {
        add(shared, slot, AWAY, bytes).ok();
    }
}

/// Limit and mode of the instance, as the header of the account has them.
///
/// The worker writes them there before the model begins; without a worker the first process that sets the file up writes
/// what its environment says. Read at load, so that nothing a program does later changes anything. While there is no
/// account nothing may be allocated; the next call looks again.
pub(crate) fn settings() -> Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get().copied().unwrap_or_else(|| match shared() {
        Some(shared) => *SETTINGS.get_or_init(|| shared.settings().unwrap_or_else(environment::settings)),
        None => Settings { limit: Some(0), mode: Mode::Device },
    })
}

/// What this process has.
pub(crate) fn own_use() -> Use {
    let Some((shared, slot)) = known() else { return Use::default() };
    let word = |place| shared.slot(slot, place).load(Ordering::Relaxed);
    let managed = word(MANAGED);
    Use { managed, resident: managed.saturating_sub(word(AWAY)), device: word(DEVICE), host: word(HOST) }
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

/// What is no number any more is not counted: taken back later it would take others' bytes along.
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
