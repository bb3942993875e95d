//! The simulated driver, as programs meet it: through its exported symbols, from processes of their own.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod caller;
mod calls;
mod codes;
mod lifetimes;
mod managed;
mod processes;
mod resolution;
mod sharing;
mod streams;

use omni_cuda_card::{Card, Settings};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// A machine with cards.
struct Machine {
    dir: TempDir,
    cards: Vec<Card>,
}

impl Machine {
    fn new(cards: u8, change: impl Fn(&mut Settings)) -> Self {
        let settings = |index| {
            let mut settings = Settings { memory: 1024 * MIB, ..Settings::numbered(index) };
            change(&mut settings);
            settings
        };
        let dir = TempDir::new().unwrap();
        let cards = Card::create(dir.path(), &(0..cards).map(settings).collect::<Vec<_>>()).unwrap();
        Self { dir, cards }
    }

    fn one() -> Self {
        Self::new(1, |_| ())
    }

    fn caller(&self) -> caller::Caller {
        caller::Caller::with_context(self.dir.path())
    }
}
