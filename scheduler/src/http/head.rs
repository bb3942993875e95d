//! What a client's headers say: to this node (time, priority, session, the request's id), and to the model, as JSON.
//!
//! Called by [`super::run`] for each request. What always holds: nothing a client writes is an error here (what cannot be
//! understood counts as absent, what is too much is cut to what the manifest allows), and credentials reach no model.

use crate::machine;
use crate::model::content::Content;
use crate::policy::dispatch;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use std::io::Write;
use std::time::Duration;

pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub(super) const TIMEOUT: HeaderName = HeaderName::from_static("x-omni-timeout-ms");
const SESSION: HeaderName = HeaderName::from_static("x-session-affinity");
const PRIORITY: HeaderName = HeaderName::from_static("x-omni-priority");
/// Longest request id that is taken over from a client.
const LONGEST_ID: usize = 128;
/// Credentials and what belongs to one connection: models do not see these.
const WITHHELD: [&str; 10] = [
    "authorization",
    "connection",
    "cookie",
    "expect",
    "keep-alive",
    "proxy-authorization",
    "te",
    "transfer-encoding",
    "upgrade",
    "x-auth-key",
];

/// The client may ask for less time than the manifest gives.
#[must_use]
pub fn timeout(headers: &HeaderMap, content: &Content) -> Duration {
    let most = content.manifest.timeouts.request;
    let asked = headers.get(TIMEOUT).and_then(|value| value.to_str().ok()).and_then(|text| text.trim().parse().ok());
    asked.map_or(most, |ms: u64| Duration::from_millis(ms.max(1)).min(most))
}

/// What the client asks for, up to what the manifest allows.
#[must_use]
pub fn priority(headers: &HeaderMap, content: &Content) -> u8 {
    let asked = headers.get(PRIORITY).and_then(|value| value.to_str().ok()).and_then(|text| text.trim().parse().ok());
    asked.map_or(0, |level: u8| level.min(content.manifest.scaling.priority))
}

/// The session's name as a number, the same in each scheduler.
#[must_use]
pub fn session(headers: &HeaderMap) -> Option<u64> {
    headers.get(SESSION).map(|name| dispatch::hash_name(name.as_bytes()))
}

/// The client's id when it is sound, else a fresh UUIDv7.
#[must_use]
pub fn request_id(headers: &HeaderMap) -> HeaderValue {
    let sound = |value: &&HeaderValue| {
        (1..=LONGEST_ID).contains(&value.len()) && value.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    if let Some(given) = headers.get(REQUEST_ID).filter(sound) {
        return given.clone();
    }
    let mut random = [0_u8; 10];
    fastrand::fill(&mut random);
    let id = uuid::Builder::from_unix_timestamp_millis(machine::unix_ms(), &random).into_uuid();
    let mut text = uuid::Uuid::encode_buffer();
    let text = id.hyphenated().encode_lower(&mut text);
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("-"))
}

/// JSON of a `RequestHead` without its end: `timeout_ms` is added when the request is sent.
#[must_use]
pub fn head(parts: &Parts, request_id: &[u8], length: Option<u64>, handed: bool) -> Vec<u8> {
    let mut head = Vec::with_capacity(512);
    head.extend_from_slice(b"{\"id\":");
    string(&mut head, request_id);
    head.extend_from_slice(b",\"method\":");
    string(&mut head, parts.method.as_str().as_bytes());
    if let Some(session) = parts.headers.get(SESSION) {
        head.extend_from_slice(b",\"session\":");
        string(&mut head, session.as_bytes());
    }
    if let Some(length) = length {
        let _ = write!(head, ",\"body_length\":{length}"); // writing to memory does not fail
    }
    if handed {
        head.extend_from_slice(b",\"body_handed\":true");
    }
    head.extend_from_slice(b",\"headers\":[");
    let mut first = true;
    for name in parts.headers.keys().filter(|name| !WITHHELD.contains(&name.as_str())) {
        head.extend_from_slice(if first { b"[" } else { b",[" });
        first = false;
        string(&mut head, name.as_str().as_bytes());
        head.push(b',');
        let mut values = parts.headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (Some(only), None) => string(&mut head, only.as_bytes()),
            _ => {
                let all: Vec<&[u8]> = parts.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
                string(&mut head, &all.join(&b", "[..]));
            }
        }
        head.push(b']');
    }
    head.push(b']');
    head
}

/// A JSON string; bytes that are no UTF-8 are replaced.
fn string(out: &mut Vec<u8>, text: &[u8]) {
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    if text.iter().all(is_plain) {
        out.push(b'"');
        out.extend_from_slice(text);
        return out.push(b'"');
    }
    let _ = serde_json::to_writer(out, &String::from_utf8_lossy(text)); // writing to memory does not fail
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;
    use omni_engine_protocol::frame::RequestHead;

    #[test]
    fn the_head_is_a_request_head_once_it_is_closed() {
        let (parts, ()) = Request::post("/ai/run/x")
            .header("X-Odd", &b"\xffq\"uote"[..])
            .header("accept", "a")
            .header("accept", "b")
            .header("authorization", "Bearer secret")
            .header("x-session-affinity", "s1")
            .body(())
            .unwrap()
            .into_parts();
        let mut json = head(&parts, b"id-1", Some(9), true);
        json.extend_from_slice(b",\"timeout_ms\":5}");
        let head: RequestHead = serde_json::from_slice(&json).unwrap();
        assert_eq!(
            head,
            RequestHead {
                id: "id-1".into(),
                method: "POST".into(),
                timeout_ms: 5,
                session: Some("s1".into()),
                headers: vec![
                    ("x-odd".into(), "\u{fffd}q\"uote".into()),
                    ("accept".into(), "a, b".into()),
                    ("x-session-affinity".into(), "s1".into()),
                ],
                body_length: Some(9),
                body_handed: true,
            }
        );
    }

    #[test]
    fn a_priority_is_what_was_asked_for_up_to_what_the_manifest_allows() {
        let content = |text: &str| {
            let name = omni_config::name::ModelName::try_from("m".to_owned()).unwrap();
            let snapshot = omni_node_protocol::id::SnapshotDigest::parse(&"0".repeat(64)).unwrap();
            Content::parse(&name, snapshot, Some(text.to_owned()), &omni_config::node::NodeConfig::default()).unwrap()
        };
        let (none, some) = (content(""), content("[scaling]\npriority = 5\n"));
        for (asked, allowed) in [("3", 3), ("9", 5), ("300", 0), ("-1", 0), ("high", 0)] {
            let mut headers = HeaderMap::new();
            headers.insert(PRIORITY, HeaderValue::from_static(asked));
            assert_eq!((priority(&headers, &none), priority(&headers, &some)), (0, allowed), "{asked}");
        }
        assert_eq!(priority(&HeaderMap::new(), &some), 0);
    }

    #[test]
    fn request_ids_are_echoed_when_sound() {
        let id = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_str(text).unwrap());
            request_id(&headers).to_str().unwrap().to_owned()
        };
        assert_eq!(id("abc-1"), "abc-1");
        for bad in ["", "with space", &"x".repeat(200)] {
            assert_eq!(id(bad).len(), 36, "{bad:?}");
        }
        assert_eq!(uuid::Uuid::parse_str(&id("")).unwrap().get_version_num(), 7);
    }
}
