//! Protocols between the programs of a node.
//!
//! | connection | socket | peers | module |
//! | --- | --- | --- | --- |
//! | instance | `<runtime-dir>/instances/<id>.sock` | scheduler and worker | [`instance`] |
//! | zygote | `<runtime-dir>/zygotes/<id>.sock`, and descriptor 3 of the zygote | workers and the zygote | [`zygote`] |
//! | launcher | `<runtime-dir>/launcher.sock` | scheduler and launcher | [`launcher`] |
//! | takeover | `SOCK_SEQPACKET` pair, standard input of the successor | scheduler and the next one | [`takeover`] |
//!
//! Each carries one JSON message per packet ([`omni_engine_protocol::packet`]); descriptors travel with their message.
//! Messages to an engine are in [`omni_engine_protocol`]. Shapes, bounds and codecs: nothing is decided here.

pub mod exit;
pub mod id;
pub mod instance;
pub mod launcher;
pub mod takeover;
pub mod version;
pub mod zygote;
