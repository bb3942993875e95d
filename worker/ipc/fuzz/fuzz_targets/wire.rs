//! Bytes from a model, a worker or a scheduler that may be anything: nothing panics, and what parses stays within its
//! bounds and survives being written again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use omni_ipc::engine::{FromEngine, ToEngine};
use omni_ipc::frame::{AnswerHead, ErrorBody, ErrorOrigin, HEADER, Header, MAX_ANSWER, RequestHead, split_head};
use omni_ipc::instance::{FromWorker, ToWorker};
use omni_ipc::launcher::{FromLauncher, ToLauncher};
use serde::{Serialize, de::DeserializeOwned};

fuzz_target!(|data: &[u8]| {
    frames(data);
    message::<ToEngine>(data);
    message::<FromEngine>(data);
    message::<ToWorker>(data);
    message::<FromWorker>(data);
    message::<ToLauncher>(data);
    message::<FromLauncher>(data);
    message::<RequestHead>(data);
    message::<AnswerHead>(data);
    message::<ErrorBody>(data);
});

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
        let _ = ErrorOrigin::from_byte(header.flags);
        if let Ok((head, body)) = split_head(payload) {
            assert_eq!(4 + head.len() + body.len(), payload.len());
            message::<AnswerHead>(head);
        }
        data = rest;
    }
}

/// What parses as a message is the same message after it was written and read again.
fn message<M: Serialize + DeserializeOwned>(data: &[u8]) {
    if let Ok(message) = serde_json::from_slice::<M>(data) {
        let first = serde_json::to_vec(&message).unwrap();
        let again = serde_json::from_slice::<M>(&first).unwrap();
        assert_eq!(serde_json::to_vec(&again).unwrap(), first);
    }
}
