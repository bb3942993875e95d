//! The wires between scheduler, launcher, worker and model process.
//!
//! The connections, each with one module for its messages:
//!
//! | wire | socket | who speaks | module |
//! | --- | --- | --- | --- |
//! | data | `SOCK_STREAM` pair, one per scheduler life | scheduler and model process | [`frame`] |
//! | cancel | `SOCK_SEQPACKET` pair beside it | scheduler to model process only | [`frame`] |
//! | engine | `SOCK_SEQPACKET` pair, descriptor 3 of the model | worker and model process | [`engine`] |
//! | instance | `<runtime-dir>/instances/<id>.sock` | scheduler and worker | [`instance`] |
//! | zygote | `<runtime-dir>/zygotes/<id>.sock`, and descriptor 3 of the zygote | workers and the zygote | [`zygote`] |
//! | launcher | `<runtime-dir>/launcher.sock` | scheduler and launcher | [`launcher`] |
//! | takeover | `SOCK_SEQPACKET` pair, standard input of the successor | scheduler and the next one | [`takeover`] |
//!
//! The control wires carry one JSON message per packet ([`packet`]); descriptors ride with their message.
//! Nothing here decides anything: these are shapes, bounds and the code that reads and writes them.

pub mod engine;
pub mod exit;
pub mod frame;
pub mod id;
pub mod instance;
pub mod launcher;
pub mod packet;
pub mod takeover;
pub mod version;
pub mod zygote;
