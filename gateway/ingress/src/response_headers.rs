//! Headers that a model gives its answer: those that are its to give, and those that are the node's, the connection's or the
//! whole site's word.
//!
//! Asked by [`super::run`] before anything of an answer is sent. What always holds: none is dropped in silence; an answer with one
//! that is not the model's to give fails, and the failure names it. The engine says the same to an author with a traceback; a
//! model that goes past the engine comes to here.

use hyper::header::{HeaderName, HeaderValue};
use omni_request_error::Failure;

/// Most headers that a model may add.
const MOST: usize = 64;
/// Longest part of a name that a failure repeats, in characters.
const SHOWN: usize = 60;

/// Framing and the connection, which are the listener's.
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
/// What the node says of itself and of the request.
const OF_NODE: [&str; 7] =
    ["content-type", "date", "server", "server-timing", "www-authenticate", "x-request-id", "x-should-retry"];
/// What holds for everything behind the node's name, other models too.
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
/// What makes a proxy before the node send something else.
const TO_PROXY: [&str; 3] = ["x-lighttpd-send-file", "x-reproxy-url", "x-sendfile"];
/// Families of names by which proxies, or browsers, are told what to do; and the one of them that is about this answer alone.
const FAMILIES: [&str; 5] = ["proxy-", "sec-", "x-accel-", "x-envoy-", "x-litespeed-"];
const OF_THE_ANSWER: &str = "x-accel-buffering";

fn is_of_node(name: &str) -> bool {
    OF_CONNECTION.contains(&name) || OF_NODE.contains(&name) || name.starts_with("x-omni-")
}

fn is_of_others(name: &str) -> bool {
    let is_of_family = FAMILIES.iter().any(|family| name.starts_with(family)) && name != OF_THE_ANSWER;
    OF_SITE.contains(&name) || TO_PROXY.contains(&name) || is_of_family
}

/// Whether all of a model's headers can be sent.
///
/// # Errors
/// One cannot: which, and why.
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
pub fn written(headers: &[(String, String)]) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
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
    fn an_answer_with_a_header_that_is_not_the_models_names_it() {
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
    fn the_engine_refuses_the_same() {
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
        let of_node = OF_CONNECTION.into_iter().chain(OF_NODE).filter(|name| *name != "content-type"); // the answer's type
        assert_eq!(listed("_OF_THE_NODE"), sorted(of_node.collect()));
        assert_eq!(listed("_OF_OTHERS"), sorted(OF_SITE.into_iter().chain(TO_PROXY).collect()));
        assert!(engine.contains(&format!("_FAMILIES = (\"{}\")\n", FAMILIES.join("\", \""))));
        assert!(engine.contains(&format!("!= \"{OF_THE_ANSWER}\"")));
        assert!(engine.contains(&format!("MAX_HEADERS = {MOST}\n")));
    }

    #[test]
    fn what_is_the_models_to_say_is_sent() {
        for name in
            ["retry-after", "location", "etag", "cache-control", "content-language", "x-accel-buffering", "vary"]
        {
            assert_eq!(why(name, "1"), None, "{name}");
        }
        let headers = [("X-A".to_owned(), "é".to_owned()), ("Date".to_owned(), "now".to_owned())];
        let sent: Vec<_> = written(&headers).map(|(name, value)| (name.to_string(), value)).collect();
        assert_eq!(sent, [("x-a".to_owned(), HeaderValue::from_bytes("é".as_bytes()).unwrap())]);
    }
}
