//! The JSON messages of all wires: what is read is the same once it was written and read again, and no longer than it
//! has to be; and frames, which are read as far as they are whole.

use omni_engine_protocol::control::{FromEngine, ToEngine};
use omni_engine_protocol::frame::{
    AnswerHead, ErrorBody, ErrorOrigin, HEADER, Header, MAX_ANSWER, RequestHead, split_head,
};
use omni_engine_protocol::packet::MAX_PACKET;
use omni_node_protocol::instance::{FromWorker, ToWorker};
use omni_node_protocol::launcher::{FromLauncher, ToLauncher};
use omni_node_protocol::takeover::{FromSuccessor, ToSuccessor};
use omni_node_protocol::zygote::{FromZygote, FromZygoteWorker, ToZygote, ToZygoteWorker};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;

/// Reads the bytes as a message of each wire, and as frames.
///
/// # Panics
/// A message changes when it is passed on, or a frame is longer than one may be.
pub fn holds(data: &[u8]) {
    frames(data);
    if data.len() > MAX_PACKET {
        return; // the packet is cut, and refused for that
    }
    message::<ToEngine>(data);
    message::<FromEngine>(data);
    message::<ToWorker>(data);
    message::<FromWorker>(data);
    message::<ToLauncher>(data);
    message::<FromLauncher>(data);
    message::<ToSuccessor>(data);
    message::<FromSuccessor>(data);
    message::<ToZygote>(data);
    message::<FromZygote>(data);
    message::<ToZygoteWorker>(data);
    message::<FromZygoteWorker>(data);
    message::<RequestHead>(data);
    message::<AnswerHead>(data);
    message::<ErrorBody>(data);
}

fn message<M: Serialize + DeserializeOwned + PartialEq + Debug>(data: &[u8]) {
    let Ok(message) = serde_json::from_slice::<M>(data) else { return };
    let written = serde_json::to_vec(&message).expect("a message can be written");
    let again: M = serde_json::from_slice(&written).expect("what was written can be read");
    assert_eq!(again, message);
    assert_eq!(serde_json::to_vec(&again).expect("a message can be written"), written);
    // A number may have a longer form, and what was left out is said; nothing else grows.
    assert!(written.len() <= 8 * data.len() + 512, "{} bytes of {}", written.len(), data.len());
}

/// Reads frames one after the other, as the scheduler reads a model's data connection.
fn frames(mut data: &[u8]) {
    while let Some((head, rest)) = data.split_first_chunk::<HEADER>() {
        let Ok(header) = Header::decode(head) else { return };
        assert_eq!(&header.encode(), head);
        if header.check_answer().is_err() {
            return;
        }
        let length = header.length as usize;
        assert!(length <= MAX_ANSWER);
        let Some((payload, rest)) = rest.split_at_checked(length) else { return };
        assert!(ErrorOrigin::from_byte(header.flags).is_none_or(|origin| origin as u8 == header.flags));
        if let Ok((head, body)) = split_head(payload) {
            assert_eq!(4 + head.len() + body.len(), payload.len());
            message::<AnswerHead>(head);
        }
        data = rest;
    }
}
