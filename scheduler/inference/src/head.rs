//! Headers of a client's request: those for this node (timeout, priority, session, request id), and the head for the model.
//!
//! Invariants: a timeout or priority that is no number is refused, and one that is too large is cut to the limit of the
//! manifest; a request id that is not valid is replaced; credentials reach no model.

use crate::trace::{TRACEPARENT, TRACESTATE};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use omni_engine_protocol::frame::RequestHead;
use omni_policy::dispatch;
use omni_request_error::Failure;
use omni_supervisor::clock::unix_ms;
use omni_supervisor::model::content::Content;
use std::time::Duration;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub(crate) const TIMEOUT: HeaderName = HeaderName::from_static("x-omni-timeout-ms");
const SESSION: HeaderName = HeaderName::from_static("x-session-affinity");
const PRIORITY: HeaderName = HeaderName::from_static("x-omni-priority");
/// Longest request id that is accepted from a client, in bytes.
const LONGEST_ID: usize = 128;
/// Headers that models do not get as they came: credentials, those of one connection, and those of a trace, which the
/// node makes.
const WITHHELD: [&str; 13] = [
    "authorization",
    "connection",
    "cookie",
    "expect",
    "keep-alive",
    "proxy-authorization",
    "te",
    TRACEPARENT,
    TRACESTATE,
    "transfer-encoding",
    "upgrade",
    "x-api-key",
    "x-auth-key",
];

/// Time for the request: that of the manifest, or less if the client asks for less.
///
/// # Errors
/// The client's value is no number.
pub fn timeout(headers: &HeaderMap, content: &Content) -> Result<Duration, Failure> {
    let limit = content.manifest.timeouts.request;
    let asked = number(headers, &TIMEOUT)?;
    Ok(asked.map_or(limit, |ms| Duration::from_millis(ms.max(1)).min(limit)))
}

/// Priority that the client asks for, up to that of the manifest.
///
/// # Errors
/// The client's value is no number.
pub fn priority(headers: &HeaderMap, content: &Content) -> Result<u8, Failure> {
    let asked = number(headers, &PRIORITY)?.unwrap_or(0);
    Ok(u8::try_from(asked).unwrap_or(u8::MAX).min(content.manifest.scaling.priority))
}

/// Whole number in a header, the largest there is for one beyond that; `None` without the header.
fn number(headers: &HeaderMap, name: &HeaderName) -> Result<Option<u64>, Failure> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Failure::BadRequest(format!("the header `{name}` is there twice")));
    }
    let digits = value.as_bytes().trim_ascii();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Failure::BadRequest(format!("the header `{name}` has to be a whole number, such as 1")));
    }
    let append = |number: u64, digit: &u8| number.saturating_mul(10).saturating_add(u64::from(*digit - b'0'));
    Ok(Some(digits.iter().fold(0, append)))
}

/// Hash of the session's name, the same in each scheduler.
#[must_use]
pub fn session(headers: &HeaderMap) -> Option<u64> {
    headers.get(SESSION).map(|name| dispatch::hash_name(name.as_bytes()))
}

/// Request id of the client if it is valid, else a new UUIDv7.
#[must_use]
pub fn request_id(headers: &HeaderMap) -> HeaderValue {
    let is_valid = |value: &&HeaderValue| {
        (1..=LONGEST_ID).contains(&value.len()) && value.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    if let Some(id) = headers.get(REQUEST_ID).filter(is_valid) {
        return id.clone();
    }
    let mut random = [0_u8; 10];
    fastrand::fill(&mut random);
    let id = uuid::Builder::from_unix_timestamp_millis(unix_ms(), &random).into_uuid();
    let mut text = uuid::Uuid::encode_buffer();
    let text = id.hyphenated().encode_lower(&mut text);
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("-"))
}

/// Head for the model; its `timeout_ms` is set when the request is sent. Invalid UTF-8 is replaced.
#[must_use]
pub fn head(parts: &Parts, request_id: &[u8], length: Option<u64>, handed_over: bool) -> RequestHead {
    let names = parts.headers.keys().filter(|name| !WITHHELD.contains(&name.as_str()));
    let headers = names.map(|name| (name.as_str().to_owned(), joined(&parts.headers, name)));
    RequestHead {
        kind: None,
        id: text(request_id),
        method: parts.method.as_str().to_owned(),
        timeout_ms: 0,
        session: parts.headers.get(SESSION).map(|session| text(session.as_bytes())),
        headers: headers.collect(),
        body_length: length,
        body_handed: handed_over,
        parameters: None,
    }
}

/// Bytes that such a head takes in memory, roughly.
pub(crate) fn bytes(parts: &Parts) -> u64 {
    let pair = 2 * size_of::<String>();
    let headers = parts.headers.iter().map(|(name, value)| (pair + name.as_str().len() + value.len()) as u64);
    size_of::<RequestHead>() as u64 + headers.sum::<u64>()
}

/// All values of a header, joined by commas.
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
            .header("traceparent", "not checked")
            .header("x-session-affinity", "s1")
            .body(())
            .unwrap()
            .into_parts();
        assert_eq!(
            head(&parts, b"id-1", Some(9), true),
            RequestHead {
                kind: None,
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
                parameters: None,
            }
        );
    }

    /// A model with this manifest.
    fn content(manifest: &str) -> Content {
        let name = omni_config::name::ModelName::try_from("m".to_owned()).unwrap();
        let snapshot = omni_node_protocol::id::SnapshotDigest::parse(&"0".repeat(64)).unwrap();
        Content::parse(&name, snapshot, Some(manifest.to_owned()), &omni_config::node::NodeConfig::default()).unwrap()
    }

    fn headers(name: HeaderName, value: &'static [u8]) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_bytes(value).unwrap())])
    }

    #[test]
    fn timeout_and_priority_are_limited_by_the_manifest() {
        let (none, some) = (content(""), content("[scaling]\npriority = 5\n[timeouts]\nrequest = \"9s\"\n"));
        for (asked, allowed) in [("3", 3), ("9", 5), ("300", 5), ("99999999999999999999999", 5), ("0", 0), (" 2 ", 2)] {
            let headers = headers(PRIORITY, asked.as_bytes());
            assert_eq!((priority(&headers, &none), priority(&headers, &some)), (Ok(0), Ok(allowed)), "{asked}");
        }
        assert_eq!(priority(&HeaderMap::new(), &some), Ok(0));
        for (asked, allowed) in [("1", 1), ("0", 1), ("8999", 8999), ("60000", 9000), ("99999999999999999999999", 9000)]
        {
            let asked_for = timeout(&headers(TIMEOUT, asked.as_bytes()), &some);
            assert_eq!(asked_for, Ok(Duration::from_millis(allowed)), "{asked}");
        }
        assert_eq!(timeout(&HeaderMap::new(), &some), Ok(Duration::from_secs(9)));
    }

    #[test]
    fn a_timeout_or_priority_that_is_no_number_is_refused_by_name() {
        let content = content("");
        for value in
            [&b""[..], b"soon", b"-1", b"+1", b"1.5", b"1e3", b"10s", b"0x1", b"1 2", b"\xff", "\u{661}".as_bytes()]
        {
            let refusals = [
                (TIMEOUT, timeout(&headers(TIMEOUT, value), &content).map(drop)),
                (PRIORITY, priority(&headers(PRIORITY, value), &content).map(drop)),
            ];
            for (name, refusal) in refusals {
                let failure = refusal.expect_err("a refusal");
                assert_eq!(failure.status(), 400);
                assert!(failure.to_string().contains(name.as_str()), "{failure}");
            }
        }
    }

    #[test]
    fn a_timeout_that_is_there_twice_is_refused() {
        let mut twice = headers(TIMEOUT, b"1000");
        twice.append(TIMEOUT, HeaderValue::from_static("2000"));
        let failure = timeout(&twice, &content("")).expect_err("a refusal");
        assert_eq!((failure.status(), failure.to_string().contains(TIMEOUT.as_str())), (400, true), "{failure}");
    }

    #[test]
    fn valid_request_ids_are_echoed_and_others_replaced() {
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
