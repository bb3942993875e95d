//! Headers that a model may set on its response, and those that belong to the node, the connection or the whole site.
//!
//! Headers are checked before anything of a response is sent. Invariant: none is dropped silently; a response with a header that the model
//! may not set fails, and the failure names it. The Python engine checks the same and raises with a traceback; a model that bypasses the
//! engine is caught here.

use hyper::header::{HeaderName, HeaderValue};
use omni_request_error::Failure;

/// Most headers that a model may add.
const MOST: usize = 64;
/// Characters of a name that a failure repeats.
const SHOWN: usize = 60;

/// Framing and connection, which belong to the listener.
const OF_CONNECTION: [&str; 10] = [
    "connection",
    "content-length",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Headers about the node and the request.
const OF_NODE: [&str; 7] =
    ["content-type", "date", "server", "server-timing", "www-authenticate", "x-request-id", "x-should-retry"];
/// Headers whose effect covers the whole site, other models too.
const OF_SITE: [&str; 17] = [
    "accept-ch",
    "alt-svc",
    "authentication-info",
    "clear-site-data",
    "critical-ch",
    "expect-ct",
    "nel",
    "origin-agent-cluster",
    "public-key-pins",
    "report-to",
    "service-worker-allowed",
    "set-cookie",
    "set-cookie2",
    "set-login",
    "strict-transport-security",
    "surrogate-control",
    "use-as-dictionary",
];
/// Headers that make a proxy before the node send something else.
const TO_PROXY: [&str; 3] = ["x-lighttpd-send-file", "x-reproxy-url", "x-sendfile"];
/// Prefixes of headers that control proxies or browsers.
const FAMILIES: [&str; 5] = ["proxy-", "sec-", "x-accel-", "x-envoy-", "x-litespeed-"];
/// The only header with one of these prefixes that affects this response alone.
const OF_THE_RESPONSE: &str = "x-accel-buffering";

fn is_of_node(name: &str) -> bool {
    OF_CONNECTION.contains(&name) || OF_NODE.contains(&name) || name.starts_with("x-omni-")
}

fn is_of_others(name: &str) -> bool {
    let is_of_family = FAMILIES.iter().any(|family| name.starts_with(family)) && name != OF_THE_RESPONSE;
    OF_SITE.contains(&name) || TO_PROXY.contains(&name) || is_of_family
}

/// Checks that all of a model's headers can be sent.
///
/// # Errors
/// The first that cannot be sent, and why.
pub fn check(headers: &[(String, String)]) -> Result<(), Failure> {
    let refused = |name: &str, why: &str| {
        let shown: String = name.chars().take(SHOWN).flat_map(char::escape_default).collect();
        Failure::AnswerNotSendable(format!("the header `{shown}` {why}"))
    };
    if let Some((name, _)) = headers.get(MOST) {
        return Err(refused(name, &format!("is one more than the {MOST} that an answer may have")));
    }
    for (name, value) in headers {
        let Ok(checked) = HeaderName::from_bytes(name.as_bytes()) else {
            return Err(refused(name, "has no valid name"));
        };
        let name = checked.as_str();
        if is_of_node(name) {
            return Err(refused(name, "is the node's to set"));
        }
        if is_of_others(name) {
            return Err(refused(name, "would hold for more than this answer"));
        }
        if HeaderValue::from_bytes(value.as_bytes()).is_err() {
            return Err(refused(name, "has a value that cannot be sent"));
        }
    }
    Ok(())
}

/// Headers that were checked, as they are sent.
pub fn sendable(headers: &[(String, String)]) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    headers.iter().take(MOST).filter_map(|(name, value)| {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        let is_models = !is_of_node(name.as_str()) && !is_of_others(name.as_str());
        Some((name, HeaderValue::from_bytes(value.as_bytes()).ok()?)).filter(|_| is_models)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(name: &str, value: &str) -> Option<String> {
        check(&[(name.to_owned(), value.to_owned())]).err().map(|failure| failure.to_string())
    }

    #[test]
    fn a_refused_header_is_named() {
        let of_families = FAMILIES.map(|family| format!("{family}any"));
        let listed = OF_CONNECTION.iter().chain(&OF_NODE).chain(&OF_SITE).chain(&TO_PROXY);
        for name in listed.map(|name| (*name).to_owned()).chain(of_families) {
            for name in [name.clone(), name.to_uppercase()] {
                let why = why(&name, "x").expect(&name);
                assert!(why.contains(&format!("`{}`", name.to_lowercase())), "{why}");
            }
        }
        assert!(why("X-Omni-Model-Version", "1").unwrap().contains("the node's"));
        assert!(why("x-omni-anything", "1").is_some());
        for (name, value) in [("bad name", "x"), ("", "x"), ("x-y", "a\nb"), ("x-y", "a\0b")] {
            assert!(why(name, value).is_some(), "{name:?}: {value:?}");
        }
        let many = |count| (0..count).map(|n| (format!("x-{n}"), String::new())).collect::<Vec<_>>();
        assert_eq!(check(&many(MOST)), Ok(()));
        assert!(check(&many(MOST + 1)).unwrap_err().to_string().contains("`x-64`"));
    }

    #[test]
    fn the_engine_refuses_the_same_headers() {
        let engine = include_str!("../../../worker/python/omni/response.py");
        let listed = |set: &str| {
            let rest = engine.split_once(&format!("{set} = frozenset(")).unwrap().1;
            let mut names: Vec<&str> = rest.split_once("\n)").unwrap().0.split('"').skip(1).step_by(2).collect();
            names.sort_unstable();
            names
        };
        let sorted = |mut names: Vec<&'static str>| {
            names.sort_unstable();
            names
        };
        let of_node = OF_CONNECTION.into_iter().chain(OF_NODE).filter(|name| *name != "content-type"); // the response's type
        assert_eq!(listed("_OF_THE_NODE"), sorted(of_node.collect()));
        assert_eq!(listed("_OF_OTHERS"), sorted(OF_SITE.into_iter().chain(TO_PROXY).collect()));
        assert!(engine.contains(&format!("_FAMILIES = (\"{}\")\n", FAMILIES.join("\", \""))));
        assert!(engine.contains(&format!("!= \"{OF_THE_RESPONSE}\"")));
        assert!(engine.contains(&format!("MAX_HEADERS = {MOST}\n")));
    }

    #[test]
    fn headers_of_the_model_are_sent() {
        for name in
            ["retry-after", "location", "etag", "cache-control", "content-language", "x-accel-buffering", "vary"]
        {
            assert_eq!(why(name, "1"), None, "{name}");
        }
        let headers = [("X-A".to_owned(), "é".to_owned()), ("Date".to_owned(), "now".to_owned())];
        let sent: Vec<_> = sendable(&headers).map(|(name, value)| (name.to_string(), value)).collect();
        assert_eq!(sent, [("x-a".to_owned(), HeaderValue::from_bytes("é".as_bytes()).unwrap())]);
    }
}
