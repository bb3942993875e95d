//! The scheduler's end of the data wire: frames out and in, answers on their way to a client.

pub mod connection;
pub mod reply;
pub mod stream;
