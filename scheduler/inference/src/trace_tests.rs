//! Tests of the names of requests, and of the headers for a handler.

use super::*;
use omni_sink::SinkClient;
use omni_traces::{ExportSettings, Resource};
use std::time::Duration;

fn tracer(sample: f64) -> Tracer {
    let client = SinkClient::new("http://127.0.0.1:9/".to_owned(), None, Duration::from_millis(10)).unwrap();
    let resource = Resource { version: "1", host: None, instance: "i".to_owned() };
    Tracer::start(ExportSettings { client, headers: None, resource }, sample).unwrap()
}

#[test]
fn routes_have_names_in_place_of_the_clients_text() {
    for (method, path, expected) in [
        ("POST", "/v1/chat/completions", Some("/v1/chat/completions")),
        ("POST", "/v1/messages/count_tokens", Some("/v1/messages/count_tokens")),
        ("GET", "/v1/models", Some("/v1/models")),
        ("GET", "/v1/models/secret", Some("/v1/models/{model}")),
        ("POST", "/ai/run/secret", Some("/ai/run/{model}")),
        ("POST", "/ai/run/@cf/secret/model", Some("/ai/run/{model}")),
        ("POST", "/client/v4/accounts/secret/ai/run/@cf/secret", Some("/ai/run/{model}")),
        ("POST", "/client/v4/accounts/secret/ai/v1/chat/completions", Some("/v1/chat/completions")),
        ("GET", "/v1/chat/completions", None),
        ("POST", "/v1/chat/completions/secret", None),
        ("POST", "/secret", None),
        ("POST", "/", None),
        ("POST", "", None),
    ] {
        assert_eq!(route(&method.parse().unwrap(), path).as_deref(), expected, "{method} {path}");
    }
    assert_eq!(method_name(&"SECRET".parse().unwrap()), names::OTHER_METHOD);
    assert_eq!(method_name(&Method::DELETE), "DELETE");
}

/// Headers that a handler gets of a request with these.
fn handed_on(tracer: &Tracer, given: &[(&'static str, &'static str)]) -> Vec<(String, String)> {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        headers.append(*name, value.parse().unwrap());
    }
    let trace = RequestTrace::begin(tracer, (&Method::POST, "/ai/run/m"), &headers);
    let attempt = trace.attempt(names::RUN);
    assert_eq!((attempt.is_some(), trace.id().is_some()), (trace.is_recorded(), trace.context.is_some()));
    let mut headers = Vec::new();
    trace.add_headers(&mut headers, attempt.as_ref());
    headers
}

#[test]
fn a_handler_gets_the_context_that_its_spans_belong_to() {
    const SAMPLED: &str = "00-12345678901234567890123456789012-1234567890123456-01";
    const NOT_SAMPLED: &str = "00-12345678901234567890123456789012-1234567890123456-00";
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let off = Tracer::default();
    assert_eq!(handed_on(&off, &[]), []);
    assert_eq!(handed_on(&off, &[(TRACEPARENT, "secret"), (TRACESTATE, "a=1")]), []);
    assert_eq!(handed_on(&off, &[(TRACEPARENT, SAMPLED)]), [pair(TRACEPARENT, SAMPLED)]);
    let (never, always) = (tracer(0.0), tracer(1.0));
    for given in [SAMPLED, NOT_SAMPLED] {
        let headers = [(TRACEPARENT, given), (TRACESTATE, "a=1"), (TRACESTATE, "b=2")];
        let [(_, parent), state] = handed_on(&never, &headers).try_into().unwrap();
        assert_eq!(state, pair(TRACESTATE, "a=1,b=2"));
        assert_eq!((&parent[..36], &parent[52..]), (&given[..36], &given[52..]), "the trace and its flags stay");
        assert_eq!(parent == given, given == NOT_SAMPLED, "a recorded attempt is the handler's parent");
    }
    for (tracer, flags) in [(&never, "-00"), (&always, "-01")] {
        for given in [&[][..], &[(TRACEPARENT, "secret"), (TRACESTATE, "a=1")]] {
            let [(name, parent)] = handed_on(tracer, given).try_into().unwrap();
            assert_eq!((&*name, parent.len(), &parent[52..]), (TRACEPARENT, 55, flags), "a trace of its own: {parent}");
        }
    }
}
