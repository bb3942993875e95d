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
    put_line(value, out);
    out.put_slice(b"\n\n");
}

/// Puts an event with a name, whose data is a JSON value.
pub fn put_event<T: Serialize + ?Sized>(name: &str, value: &T, out: &mut BytesMut) {
    out.put_slice(b"event: ");
    out.put_slice(name.as_bytes());
    out.put_slice(b"\ndata: ");
    put_line(value, out);
    out.put_slice(b"\n\n");
}

/// Puts a JSON value on one line. Line ends between tokens, which raw JSON may have, become spaces; inside a string JSON escapes them.
fn put_line<T: Serialize + ?Sized>(value: &T, out: &mut BytesMut) {
    let start = out.len();
    put_json(value, out);
    for byte in out.get_mut(start..).unwrap_or_default() {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::value::RawValue;

    #[test]
    fn raw_json_is_put_on_one_line() {
        let raw: Box<RawValue> = serde_json::from_str("{\n  \"a\":\r\n \"\\n\"}").unwrap();
        let mut out = BytesMut::from("\n");
        put_data(&raw, &mut out);
        assert_eq!(out, "\ndata: {   \"a\":   \"\\n\"}\n\n");
    }

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
