//! Server-sent events and JSON strings in a buffer. Writing to memory does not fail.

use bytes::{BufMut, BytesMut};
use serde::Serialize;

/// The last event of a stream in the OpenAI and Workers AI APIs.
pub const DONE: &[u8] = b"data: [DONE]\n\n";

/// Puts a JSON string.
pub fn put_string(text: &str, out: &mut BytesMut) {
    put_json(text, out);
}

/// Puts a JSON value.
pub fn put_json<T: Serialize + ?Sized>(value: &T, out: &mut BytesMut) {
    let _ = serde_json::to_writer(out.writer(), value);
}

/// Puts an integer.
pub fn put_number(number: u64, out: &mut BytesMut) {
    put_json(&number, out);
}

/// Puts an event without a name, whose data is a JSON value.
pub fn put_data<T: Serialize + ?Sized>(value: &T, out: &mut BytesMut) {
    out.put_slice(b"data: ");
    put_json(value, out);
    out.put_slice(b"\n\n");
}

/// Puts an event with a name, whose data is a JSON value.
pub fn put_event<T: Serialize + ?Sized>(name: &str, value: &T, out: &mut BytesMut) {
    out.put_slice(b"event: ");
    out.put_slice(name.as_bytes());
    out.put_slice(b"\ndata: ");
    put_json(value, out);
    out.put_slice(b"\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn events_have_one_line_of_data(text in any::<String>()) {
            let mut out = BytesMut::new();
            put_event("e", &text, &mut out);
            let event = std::str::from_utf8(&out).unwrap();
            let data = event.strip_prefix("event: e\ndata: ").unwrap().strip_suffix("\n\n").unwrap();
            prop_assert!(!data.contains(['\n', '\r']));
            prop_assert_eq!(serde_json::from_str::<String>(data).unwrap(), text);
        }
    }
}
