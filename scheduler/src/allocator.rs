//! Return of free memory to the machine. After a burst of connections or bodies, the C library's allocator keeps freed memory as long as
//! something above it is allocated: 9,000 connections left 200 MiB, and the third such burst 300, of which 6 were in use.
//!
//! Invariant: memory that is returned was free at [`CHECKS`] checks in a row, so that a load which allocates and frees by turns does not
//! fault in its pages again each time. Requests wait meanwhile: at most a millisecond for a check, and 0.1 ms for each MiB that is returned
//! (28 ms after those 9,000 connections).
#![allow(unsafe_code, reason = "mallinfo2 and malloc_trim are not in nix")]

use nix::libc;
use nix::unistd::{SysconfVar, sysconf};
use std::fs;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

/// Interval of the checks.
const INTERVAL: Duration = Duration::from_secs(10);
/// Number of checks in a row that must find excess memory.
const CHECKS: u32 = 3;
/// Free memory that is kept for further allocations, in bytes.
const SPARE: u64 = 16 << 20;

/// Starts the checks, which run for as long as the runtime.
pub(crate) fn start() {
    tokio::spawn(async {
        let mut checks = interval(INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut excess = Excess::default();
        loop {
            checks.tick().await;
            let Some(free) = unused() else { continue };
            if excess.is_lasting(free) {
                trim();
                tracing::debug!(free, left = unused(), "free memory returned");
            }
        }
    });
}

/// Number of checks in a row that found more than [`SPARE`]. Pure.
#[derive(Debug, Default)]
struct Excess(u32);

impl Excess {
    fn is_lasting(&mut self, free: u64) -> bool {
        self.0 = if free > SPARE { self.0 + 1 } else { 0 };
        let is_lasting = self.0 == CHECKS;
        if is_lasting {
            self.0 = 0;
        }
        is_lasting
    }
}

/// Free memory of this process in bytes: resident anonymous memory less allocations. Stacks and the allocator's own lists count
/// as free; they are small. `None` where the kernel does not report it.
fn unused() -> Option<u64> {
    // proc_pid_statm(5), in pages: total, resident, resident and shared with files.
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = statm.split_ascii_whitespace().skip(1).map_while(|pages| pages.parse::<u64>().ok());
    let resident = pages.next()?.saturating_sub(pages.next()?);
    let page = u64::try_from(sysconf(SysconfVar::PAGE_SIZE).ok()??).ok()?;
    // SAFETY: no preconditions; the function takes the locks of the allocator, as an allocation does.
    let heap = unsafe { libc::mallinfo2() };
    let allocated = u64::try_from(heap.uordblks + heap.hblkhd).ok()?;
    Some((resident * page).saturating_sub(allocated))
}

/// Returns free memory to the machine.
fn trim() {
    // SAFETY: as above; only pages without allocations are affected.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lasting_excess_is_returned() {
        let mut excess = Excess::default();
        let checks = [SPARE + 1, SPARE + 1, SPARE, SPARE + 1, 9 * SPARE, SPARE + 1, SPARE + 1, SPARE + 1, SPARE + 1];
        let returned = checks.map(|free| excess.is_lasting(free));
        assert_eq!(returned, [false, false, false, false, false, true, false, false, true]);
    }

    /// Allocates as connections do: many small pieces, of which a few of the last stay.
    #[test]
    fn free_memory_below_an_allocation_is_returned() {
        let mut pieces: Vec<Vec<u8>> = (0..20_000).map(|_| vec![1; 4000]).collect();
        let full = unused().unwrap();
        pieces.drain(..19_990);
        let kept = unused().unwrap();
        assert!(kept > full + (70 << 20), "freed memory stays with the allocator: {full}, then {kept}");
        trim();
        let left = unused().unwrap();
        assert!(left < full + (2 << 20), "{full}, then {left}");
        assert_eq!(pieces.concat().len(), 40_000);
    }
}
