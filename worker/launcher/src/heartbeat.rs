//! Heartbeat of the launcher's main loop, for the process that keeps it: a service manager with `WatchdogSec`, or
//! `--keep`.
//!
//! Each turn of [`super::main_loop`]'s loop calls [`Heartbeat::turn`], and the loop turns at least every [`Heartbeat::every`] though
//! nothing happens. A loop that does not turn is killed and the launcher started again; instances stay.
//!
//! Invariants: a heartbeat never blocks, and one that is not read is lost.

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::write;
use sd_notify::NotifyState;
use std::io::stdout;
use std::time::{Duration, Instant};

/// Between two beats for `--keep`.
const KEPT: Duration = Duration::from_secs(5);

/// Recipient and time of the last heartbeat.
pub(super) struct Heartbeat {
    kept: bool,
    every: Option<Duration>,
    last: Option<Instant>,
}

impl Heartbeat {
    /// `kept`: standard output is a pipe of the process that keeps this one.
    pub(super) fn new(kept: bool) -> Self {
        let every = if kept { Some(KEPT) } else { sd_notify::watchdog_enabled().map(|within| within / 3) };
        if kept {
            // A pipe that is not emptied must not hold the loop up.
            let _ = fcntl(stdout(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
        }
        Self { kept, every, last: None }
    }

    /// Longest time between two turns; `None` without a recipient.
    pub(super) fn every(&self) -> Option<Duration> {
        self.every
    }

    /// The loop turns.
    pub(super) fn turn(&mut self) {
        let Some(every) = self.every else { return };
        let now = Instant::now();
        if self.last.is_some_and(|last| now < last + every / 2) {
            return;
        }
        self.last = Some(now);
        if self.kept {
            let _ = write(stdout(), b"."); // a keeper that is gone needs none
        } else {
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        }
    }
}
