//! What a client's headers say: to this node (time, priority, session, the request's id), and to the model.
//!
//! Called by [`super::run`] for each request. What always holds: nothing a client writes is an error here (what cannot be
//! understood counts as absent, what is too much is cut to what the manifest allows), and credentials reach no model.

use crate::clock::unix_ms;
use crate::model::content::Content;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use omni_engine_protocol::frame::RequestHead;
use omni_policy::dispatch;
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
    let id = uuid::Builder::from_unix_timestamp_millis(unix_ms(), &random).into_uuid();
    let mut text = uuid::Uuid::encode_buffer();
    let text = id.hyphenated().encode_lower(&mut text);
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("-"))
}

/// The head that the model gets; its `timeout_ms` is set when the request is sent. Text that is not UTF-8 is replaced.
#[must_use]
pub fn head(parts: &Parts, request_id: &[u8], length: Option<u64>, handed: bool) -> RequestHead {
    let names = parts.headers.keys().filter(|name| !WITHHELD.contains(&name.as_str()));
    let headers = names.map(|name| (name.as_str().to_owned(), joined(&parts.headers, name)));
    RequestHead {
        id: text(request_id),
        method: parts.method.as_str().to_owned(),
        timeout_ms: 0,
        session: parts.headers.get(SESSION).map(|session| text(session.as_bytes())),
        headers: headers.collect(),
        body_length: length,
        body_handed: handed,
    }
}

/// All values of a header in one.
fn joined(headers: &HeaderMap, name: &HeaderName) -> String {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(only), None) => text(only.as_bytes()),
        _ => {
            let all: Vec<&[u8]> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
            text(&all.join(&b", "[..]))
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    #[test]
    fn a_head_has_joined_values_and_no_credentials() {
        let (parts, ()) = Request::post("/ai/run/x")
            .header("X-Odd", &b"\xffq\"uote"[..])
            .header("accept", "a")
            .header("accept", "b")
            .header("authorization", "Bearer secret")
            .header("x-session-affinity", "s1")
            .body(())
            .unwrap()
            .into_parts();
        assert_eq!(
            head(&parts, b"id-1", Some(9), true),
            RequestHead {
                id: "id-1".into(),
                method: "POST".into(),
                timeout_ms: 0,
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
