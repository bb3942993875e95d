//! The contract of every engine, in Python or native: the messages that it receives and sends.
//!
//! | connection | socket | peers | module |
//! | --- | --- | --- | --- |
//! | control | `SOCK_SEQPACKET` pair, descriptor 3 of the engine | worker and engine | [`control`] |
//! | data | `SOCK_STREAM` pair, one per scheduler life | scheduler and engine | [`frame`] |
//! | cancel | `SOCK_SEQPACKET` pair beside it | scheduler to engine only | [`frame`] |
//!
//! Control sockets, these and those of the node, carry one JSON message per packet ([`packet`]); descriptors travel
//! with their message. Requests that the node has read have bodies and answers of their own ([`task`], [`generation`]).
//! Shapes, bounds and codecs only: nothing is decided here.

pub mod control;
pub mod frame;
pub mod generation;
pub mod metrics;
pub mod packet;
pub mod reader;
pub mod task;
