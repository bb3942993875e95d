//! End of the process: no move begins once it has begun, and a running one is waited for.
//!
//! Handlers of `exit` run in the reverse order of their registration. This one is registered after the driver has been
//! initialised, so it runs before the driver takes itself apart.
#![allow(unsafe_code, reason = "atexit is not in std")]

use crate::process::PerProcess;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Longest wait for a move: a longer one hangs in the driver, and the process ends all the same.
const PATIENCE: Duration = Duration::from_secs(10);

static ENDING: PerProcess<Ending> = PerProcess::new();

#[derive(Default)]
struct Ending {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Default)]
struct State {
    has_begun: bool,
    is_moving: bool,
}

/// Permission to move; the end of the process waits until it is dropped.
pub(super) struct Moving(());

impl Moving {
    /// `None` once the process ends.
    pub(super) fn begin() -> Option<Self> {
        static IS_WATCHED: AtomicBool = AtomicBool::new(false);
        if !IS_WATCHED.swap(true, Ordering::Relaxed) {
            // SAFETY: the handler lives as long as this library, which is never unloaded: it is preloaded.
            unsafe { libc::atexit(at_exit) };
        }
        let mut state = ending().state.lock().unwrap_or_else(PoisonError::into_inner);
        let may_move = !state.has_begun;
        state.is_moving = may_move;
        may_move.then_some(Self(()))
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        ending().state.lock().unwrap_or_else(PoisonError::into_inner).is_moving = false;
        ending().moved.notify_all();
    }
}

extern "C" fn at_exit() {
    let mut state = ending().state.lock().unwrap_or_else(PoisonError::into_inner);
    state.has_begun = true;
    let _ = ending().moved.wait_timeout_while(state, PATIENCE, |state| state.is_moving);
}

fn ending() -> &'static Ending {
    ENDING.get(Ending::default)
}
