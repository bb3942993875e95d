//! The simulated card: a file that all processes share; made, changed and read by tests.
//!
//! A machine is a directory with the files that a driver makes in `/dev`: `nvidia0`, `nvidia1`…, `nvidiactl` and
//! `nvidia-uvm`. Each `nvidiaN` **is** card N: what it is ([`Settings`]), what goes wrong with it ([`Faults`]), and what
//! all processes do with it ([`State`]). The simulated driver (`omni-cuda-sim`) finds the directory by the environment
//! variable [`DIRECTORY`], or in `/dev`: bind-mounted into a sandbox, a card works there as it does outside.
//!
//! Exact at every death: what a process holds stands in a slot whose lock the kernel takes away with the process.

mod card;
mod kernel;
mod layout;
mod locked;
mod machine;
mod settings;
mod state;

pub use card::Card;
pub use kernel::{close_after_fork, now};
pub use layout::{MOVES, SLOTS};
pub use locked::{Locked, Resident, Victim};
pub use machine::{CARDS, DIRECTORY, built, create, driver_dir, size};
pub use settings::{Faults, Prefetch, Settings};
pub use state::{Cause, Counters, Direction, Move, Process, State};
