//! Messages as lines of JSON, for snapshots of the control sockets. Used by the tests of both protocols of a node.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// A line of JSON per message; each must round-trip.
pub(crate) fn lines<M: Serialize + DeserializeOwned + PartialEq + Debug>(messages: &[M]) -> String {
    let mut out = String::new();
    for message in messages {
        let json = serde_json::to_string(message).unwrap();
        assert_eq!(&serde_json::from_str::<M>(&json).unwrap(), message);
        out += &json;
        out.push('\n');
    }
    out
}
