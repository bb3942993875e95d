//! Nanoseconds that traces add to a request, by what of it is recorded: context, header for the handler, spans and their delivery to
//! a collector on another thread. Medians of rounds that are interleaved.
//!
//! `cargo bench -p omni-traces --bench cost`
#![allow(clippy::unwrap_used, reason = "a failed step is a failed run")]

use omni_sink::SinkClient;
use omni_sink::testing::receive;
use omni_traces::{ExportSettings, Resource, SpanKind, TraceContext, Tracer, names};
use std::hint::black_box;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

const ROUNDS: usize = 15;
const PARENT: &[u8] = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

fn main() {
    let url = collector();
    let off = Tracer::default();
    let [never, seldom, always] = [0.0, 0.01, 1.0].map(|sample| tracer(&url, sample));
    let away = tracer("http://127.0.0.1:9", 1.0);
    let header = Some(PARENT);
    let mut cases = [
        Case::new("no collector, no header", &off, None, 1_000_000),
        Case::new("no collector, a header that is passed on", &off, header, 1_000_000),
        Case::new("sample = 0", &never, None, 1_000_000),
        Case::new("sample = 0, a header of a request that is not recorded", &never, header, 1_000_000),
        Case::new("sample = 0.01", &seldom, None, 100_000),
        Case::new("sample = 1, three spans", &always, None, 2_000),
        Case::new("sample = 1, three spans, collector away", &away, None, 2_000),
    ];
    for _ in 0..ROUNDS {
        for case in &mut cases {
            let began = Instant::now();
            (0..case.count).for_each(|_| request(case.tracer, case.parent));
            case.found.push(began.elapsed().as_nanos() as f64 / f64::from(case.count));
            thread::sleep(Duration::from_millis(50)); // for the delivery
        }
    }
    for Case { name, tracer, mut found, .. } in cases {
        found.sort_by(f64::total_cmp);
        println!("{name:<56} {:>7.0} ns, {:?}", found[ROUNDS / 2], tracer.counts());
    }
}

/// Requests of one kind, and the nanoseconds that they took in each round.
struct Case<'a> {
    name: &'static str,
    tracer: &'a Tracer,
    parent: Option<&'static [u8]>,
    count: u32,
    found: Vec<f64>,
}

impl<'a> Case<'a> {
    fn new(name: &'static str, tracer: &'a Tracer, parent: Option<&'static [u8]>, count: u32) -> Self {
        Self { name, tracer, parent, count, found: Vec::new() }
    }
}

/// Traces one request, as the scheduler does.
fn request(tracer: &Tracer, parent: Option<&[u8]>) {
    let incoming = TraceContext::of_headers(black_box(parent), []);
    let (context, recording) = tracer.begin(incoming);
    let header = context.as_ref().map(TraceContext::traceparent);
    black_box(header);
    let Some(recording) = recording else { return };
    let (arrived, now) = (recording.arrived(), Instant::now());
    for (name, kind) in [(names::QUEUE, SpanKind::Internal), ("chat model", SpanKind::Client)] {
        let mut span = recording.span(name, kind, (arrived, now));
        for key in [names::GEN_AI_OPERATION_NAME, names::GEN_AI_PROVIDER_NAME, names::OMNI_API] {
            span.set(key, "value");
        }
        span.set(names::GEN_AI_REQUEST_MODEL, "model".to_owned());
        span.set(names::OMNI_BYTES_OUT, 12);
        recording.send(span);
    }
    recording.send(recording.request_span("POST /v1/chat/completions".to_owned()));
}

fn tracer(url: &str, sample: f64) -> Tracer {
    let client = SinkClient::new(url.to_owned(), None, Duration::from_secs(5)).unwrap();
    let resource = Resource { version: "1", host: None, instance: "i".to_owned() };
    Tracer::start(ExportSettings { client, headers: None, resource }, sample).unwrap()
}

/// A collector that acknowledges everything.
fn collector() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
    thread::spawn(move || {
        for connection in listener.incoming() {
            let connection = connection.unwrap();
            thread::spawn(move || while acknowledge(&connection).is_some() {});
        }
    });
    url
}

fn acknowledge(mut connection: &TcpStream) -> Option<()> {
    receive(connection)?;
    connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").ok()
}
