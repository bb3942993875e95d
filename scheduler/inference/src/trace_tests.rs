//! Tests of the headers for a handler, and of the spans of an attempt.

use super::*;
use omni_engine_client::{InstanceName, Period, StartTimes, Swap};
use omni_sink::SinkClient;
use omni_traces::{ExportSettings, Resource};
use omni_usage::TokenSource;
use std::time::Duration;

fn tracer(sample: f64) -> Tracer {
    let client = SinkClient::new("http://127.0.0.1:9/".to_owned(), None, Duration::from_millis(10)).unwrap();
    let resource = Resource { version: "1", host: None, instance: "i".to_owned() };
    Tracer::start(ExportSettings { client, headers: None, resource }, sample).unwrap()
}

fn begin(tracer: &Tracer, headers: &HeaderMap) -> RequestTrace {
    RequestTrace::begin(tracer, headers, || RequestName { method: "POST", route: None })
}

/// Headers that a handler gets of a request with these.
fn handed_on(tracer: &Tracer, given: &[(&'static str, &'static str)]) -> Vec<(String, String)> {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        headers.append(*name, value.parse().unwrap());
    }
    let trace = begin(tracer, &headers);
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

/// A span by its name, with its parent, its beginning and end in seconds after the request's, and its attributes but
/// those of names.
fn shown(spans: &[Span], arrived: u64) -> Vec<String> {
    let seconds = |at: u64| (at - arrived) / 1_000_000_000;
    let one = |span: &Span| {
        let parent = spans.iter().find(|other| Some(other.id) == span.parent).map_or("request", |parent| &*parent.name);
        let text = |(key, value): &(&str, Value)| match value {
            Value::Text(text) => format!(" {key}={text}"),
            Value::List(text) => format!(" {key}=[{text}]"),
            Value::Number(number) => format!(" {key}={number}"),
        };
        let attributes: String = span.attributes.iter().map(text).collect();
        let (begin, end) = span.times;
        let failed = if span.is_error { " failed" } else { "" };
        format!("{parent}/{} {}..{}{failed}{attributes}", span.name, seconds(begin), seconds(end))
    };
    spans.iter().map(one).collect()
}

/// Beginning and end of a wait, in seconds.
type Wait = Option<(u64, u64)>;

/// Spans of an attempt that was submitted after one second, sent after `sent` and ended after nine.
fn attempt_spans(sent: Option<u64>, (environment, start, swap): (Wait, Wait, Wait), outcome: Outcome) -> Vec<String> {
    let trace = begin(&tracer(1.0), &HeaderMap::new());
    let mut attempt = trace.attempt(names::CHAT).unwrap();
    let arrived = attempt.request.recording.arrived();
    let at = |seconds: u64| arrived + Duration::from_secs(seconds);
    let instance = Arc::new(InstanceName { id: "i".to_owned(), version: "v".to_owned() });
    let period = |(from, until)| Period { from: at(from), until: at(until) };
    let start = StartTimes { environment: environment.map(period), instance: start.map(period) };
    let swap = swap.map(|(from, until)| Swap { from: at(from), until: at(until) });
    let sent = sent.map(|sent| SentTo { at: at(sent), instance, swap, start });
    let tokens = Tokens { input: 5, output: 3, cached: 2, reasoning: 0, source: TokenSource::Model };
    let units = Units { tokens: Some(tokens), bytes_out: 7, ..Units::default() };
    if sent.is_some() {
        attempt.on_finish("tool_calls");
        attempt.on_tools(ToolTimes { began: at(7), ended: at(8), calls: Some(2) });
    }
    let end = AttemptEnd { submitted: at(1), sent: sent.as_ref(), ended: at(9), outcome, units: &units };
    let spans: Vec<_> =
        attempt.queue_spans(&end).into_iter().chain(attempt.model_spans(("m", Api::OpenAi), &end)).collect();
    shown(&spans, attempt.request.recording.request_span("r").times.0)
}

#[test]
fn an_attempts_spans_are_nested_in_time() {
    const MODEL: &str = "gen_ai.operation.name=chat gen_ai.provider.name=omni gen_ai.request.model=m omni.api=openai \
                         omni.model.version=v omni.instance.id=i gen_ai.usage.input_tokens=5 gen_ai.usage.output_tokens=3 \
                         gen_ai.usage.cache_read.input_tokens=2 omni.bytes_out=7 gen_ai.response.finish_reasons=[tool_calls]";
    let expected = |mut parts: Vec<&str>, end: &str| {
        parts.extend(["request/queue 1..6", "chat m/tools 7..8 omni.tools.calls=2"]);
        let model = format!("request/chat m 6..9{} {MODEL}{end}", if end.is_empty() { "" } else { " failed" });
        parts.into_iter().map(str::to_owned).chain([model]).collect::<Vec<_>>()
    };
    let spans = |start, swap| attempt_spans(Some(6), (None, start, swap), Outcome::Complete);
    assert_eq!(spans(None, None), expected(vec![], ""));
    assert_eq!(spans(Some((2, 5)), Some((3, 4))), expected(vec!["queue/start 2..5", "queue/swap 3..4"], ""));
    assert_eq!(spans(Some((0, 8)), None), expected(vec!["queue/start 1..6"], ""), "no part is outside of the wait");
    assert_eq!(spans(Some((0, 1)), Some((6, 7))), expected(vec![], ""), "it was there before, and is after");
    let built = attempt_spans(Some(6), (Some((0, 3)), Some((3, 5)), None), Outcome::Complete);
    assert_eq!(built, expected(vec!["queue/environment 1..3", "queue/start 3..5"], ""));
    for (outcome, class) in
        [(Outcome::Failed, "failed"), (Outcome::Cancelled, "cancelled"), (Outcome::Deadline, "timeout")]
    {
        let end = format!(" error.type={class}");
        assert_eq!(attempt_spans(Some(6), (None, None, None), outcome), expected(vec![], &end));
        let queued = format!("request/queue 1..9 failed{end}");
        assert_eq!(attempt_spans(None, (None, None, None), outcome), [queued], "no instance got it");
    }
}
