//! What an engine is told and what it says: the contract of every engine, in Python or native.
//!
//! | connection | socket | peers | module |
//! | --- | --- | --- | --- |
//! | control | `SOCK_SEQPACKET` pair, descriptor 3 of the engine | worker and engine | [`control`] |
//! | data | `SOCK_STREAM` pair, one per scheduler life | scheduler and engine | [`frame`] |
//! | cancel | `SOCK_SEQPACKET` pair beside it | scheduler to engine only | [`frame`] |
//!
//! Control sockets, these and those of the node, carry one JSON message per packet ([`packet`]); descriptors travel with
//! their message. Shapes, bounds and codecs: nothing is decided here.

pub mod control;
pub mod frame;
pub mod packet;
