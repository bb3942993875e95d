//! `omni-launcher`: the one process of a node that is root for as long as the node runs.
//!
//! A process beside it watches and copies the models folder ([`watch`](mod@watch)); it makes environments
//! (`omni-environment`), starts a worker for each instance ([`start`]), keeps instances that compute all the time to
//! few processors ([`throttle`]) and removes all traces of ended ones ([`reap`]). The scheduler asks for starts and
//! ends over a socket ([`connection`]); the main loop ([`main_loop`]) holds the state, threads do slow work and answer with events
//! ([`event`]).
//!
//! Invariants: it has no network and parses nothing from one; every name, digest and number from the scheduler is
//! checked before it is used; it can be killed at any moment, and the next one finds every instance by its record
//! ([`instances`]) and removes everything without one.
#![forbid(unsafe_code)]

mod adoption;
mod caches;
mod catalog;
mod connection;
mod error;
mod event;
mod folders;
mod gpu;
mod heartbeat;
mod instances;
pub mod keeper;
mod links;
mod lock;
pub mod machine;
mod main_loop;
mod node_files;
mod open_files;
mod reap;
mod records;
mod running;
mod runtime_dir;
mod sandbox_paths;
mod scheduler;
mod settings;
mod start;
mod startup;
mod throttle;
mod uids;
mod variables;
mod watch;
mod weights;
mod weights_look;
mod zygotes;

pub use error::LauncherError;
pub use settings::Settings;
pub use startup::run;
pub use watch::{WatchError, watch};
pub use weights_look::{look, open};

/// How a launcher ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The launcher is not needed any more.
    Done,
    /// The launcher ends so that the next one can start.
    MakesWay,
    /// As `MakesWay`, and the process that would start the next one has ended.
    Unkept,
}
