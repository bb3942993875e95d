//! Parts of the scheduler's long-lived tasks: a [`Mailbox`] of one kind of message in front of an inbox of many kinds,
//! the [`FineTimer`] for waits below milliseconds, and the [`Watchdog`] that ends the process when a task takes no more turns.
#![forbid(unsafe_code)]

mod fine_timer;
mod mailbox;
mod watchdog;

pub use fine_timer::FineTimer;
pub use mailbox::Mailbox;
pub use watchdog::{Heartbeat, Watchdog};
