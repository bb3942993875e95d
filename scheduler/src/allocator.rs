//! Memory that nobody uses comes back to the machine. What a burst of connections or bodies has left behind, the C
//! library's allocator keeps for as long as anything lies above it: 9,000 connections left 200 MiB, and after the third time
//! 300, of which 6 were in use. [`serve`](crate::serve) starts this.
//!
//! What always holds: what is given back was free at [`LOOKS`] looks in a row, so a load that takes and frees by turns does
//! not pay for its pages anew each time. Requests wait meanwhile: a millisecond at most for a look, and a tenth of one for each
//! MiB that is given back (28 ms after those 9,000 connections).
#![allow(unsafe_code, reason = "mallinfo2 and malloc_trim are not in nix")]

use nix::libc;
use nix::unistd::{SysconfVar, sysconf};
use std::fs;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

/// Between two looks.
const EVERY: Duration = Duration::from_secs(10);
/// So many in a row find that it is too much.
const LOOKS: u32 = 3;
/// Free memory that stays, in bytes: what comes next takes it.
const SPARE: u64 = 16 << 20;

/// Looks for as long as the runtime lives.
pub fn start() {
    tokio::spawn(async {
        let mut looks = interval(EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = Seen::default();
        loop {
            looks.tick().await;
            let Some(free) = unused() else { continue };
            if seen.is_too_much(free) {
                give_back();
                tracing::debug!(free, left = unused(), "memory given back");
            }
        }
    });
}

/// Looks in a row that found more than [`SPARE`]. Pure.
#[derive(Debug, Default)]
struct Seen(u32);

impl Seen {
    fn is_too_much(&mut self, free: u64) -> bool {
        self.0 = if free > SPARE { self.0 + 1 } else { 0 };
        let is_too_much = self.0 == LOOKS;
        if is_too_much {
            self.0 = 0;
        }
        is_too_much
    }
}

/// Bytes that this process has of the machine and that nothing is in: what is resident and of no file, without what is
/// allocated. Stacks and the allocator's own lists count as free; they are small. `None` where the kernel does not say.
fn unused() -> Option<u64> {
    // proc_pid_statm(5): pages; all, resident, of which those of files.
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = statm.split_ascii_whitespace().skip(1).map_while(|pages| pages.parse::<u64>().ok());
    let resident = pages.next()?.saturating_sub(pages.next()?);
    let page = u64::try_from(sysconf(SysconfVar::PAGE_SIZE).ok()??).ok()?;
    // SAFETY: it has no preconditions; it takes the locks of the allocator, as an allocation does.
    let heap = unsafe { libc::mallinfo2() };
    let allocated = u64::try_from(heap.uordblks + heap.hblkhd).ok()?;
    Some((resident * page).saturating_sub(allocated))
}

fn give_back() {
    // SAFETY: as above; it touches only pages of which the allocator has given nothing out.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_free_for_long_is_given_back() {
        let mut seen = Seen::default();
        let looks = [SPARE + 1, SPARE + 1, SPARE, SPARE + 1, 9 * SPARE, SPARE + 1, SPARE + 1, SPARE + 1, SPARE + 1];
        let given = looks.map(|free| seen.is_too_much(free));
        assert_eq!(given, [false, false, false, false, false, true, false, false, true]);
    }

    /// As connections do: many small pieces, of which a few of the last stay.
    #[test]
    fn what_lies_below_something_that_stays_comes_back() {
        let mut pieces: Vec<Vec<u8>> = (0..20_000).map(|_| vec![1; 4000]).collect();
        let full = unused().unwrap();
        pieces.drain(..19_990);
        let kept = unused().unwrap();
        assert!(kept > full + (70 << 20), "freed memory stays with the allocator: {full}, then {kept}");
        give_back();
        let left = unused().unwrap();
        assert!(left < full + (2 << 20), "{full}, then {left}");
        assert_eq!(pieces.concat().len(), 40_000);
    }
}
