//! Tests of the decision which requests are recorded, and of times.

use super::*;
use crate::resource::Resource;
use omni_sink::SinkClient;

/// A tracer whose collector is not there.
fn tracer(sample: f64) -> Tracer {
    let client = SinkClient::new("http://127.0.0.1:9/".to_owned(), None, Duration::from_millis(10)).unwrap();
    let resource = Resource { version: "1", host: None, instance: "i".to_owned() };
    Tracer::start(ExportSettings { client, headers: None, resource }, sample).unwrap()
}

fn incoming(flags: &str) -> TraceContext {
    let parent = format!("00-12345678901234567890123456789012-1234567890123456-{flags}");
    TraceContext::of_headers([parent.as_bytes()], [b"a=1".as_slice()]).unwrap()
}

#[test]
fn a_callers_decision_counts_and_others_are_sampled() {
    let (never, always) = (tracer(0.0), tracer(1.0));
    for tracer in [&never, &always] {
        let (context, recording) = tracer.begin(Some(incoming("01")));
        let (context, recording) = (context.unwrap(), recording.unwrap());
        assert_eq!((context.trace, context.tracestate()), (incoming("01").trace, Some("a=1")));
        let span = recording.request_span("r");
        assert_eq!((span.parent, span.id), (Some(incoming("01").span), context.span));
        let (context, recording) = tracer.begin(Some(incoming("00")));
        assert_eq!(context, Some(incoming("00")), "passed on as it came");
        assert!(recording.is_none());
    }
    let (context, recording) = never.begin(None);
    assert!(!context.unwrap().is_sampled() && recording.is_none());
    let (context, recording) = always.begin(None);
    let span = recording.unwrap().request_span("r");
    let context = context.unwrap();
    assert!(context.is_sampled());
    assert_eq!((span.trace, span.id, span.parent), (context.trace, context.span, None));
}

#[test]
fn a_tracer_without_an_export_passes_on_what_came() {
    let tracer = Tracer::default();
    assert!(matches!(tracer.begin(None), (None, None)));
    let (context, recording) = tracer.begin(Some(incoming("01")));
    assert!(context == Some(incoming("01")) && recording.is_none());
    assert_eq!(tracer.counts(), SpanCounts::default());
}

#[test]
fn the_share_is_about_that_of_the_configuration() {
    let tracer = tracer(0.25);
    let count = (0..10_000).filter(|_| tracer.begin(None).1.is_some()).count();
    assert!((2200..2800).contains(&count), "{count} of 10000");
}

#[test]
fn times_of_a_requests_spans_are_on_one_clock() {
    let tracer = tracer(1.0);
    let recording = tracer.begin(None).1.unwrap();
    let (arrived, second) = (recording.arrived(), Duration::from_secs(1));
    let inner = recording.span("inner", SpanKind::Internal, (arrived, arrived + second));
    assert_eq!(inner.times.1 - inner.times.0, 1_000_000_000);
    assert_eq!((inner.times.0, inner.parent), (recording.request_span("r").times.0, Some(recording.root)));
    let turned = recording.span("turned", SpanKind::Internal, (arrived + second, arrived));
    assert_eq!(turned.times.0, turned.times.1, "no span ends before it begins");
}
