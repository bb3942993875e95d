//! Attempt at one item: its request, the exchange with the API, and the report to the store.

use crate::exchange::{Received, exchange};
use crate::now;
use crate::outcome::{Outcome, outcome};
use crate::pace::Pace;
use crate::usage::usage;
use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use omni_inference::{BatchItem, DataApi, JobCounts};
use omni_jobs::{Claim, Interruption, ItemResult, JobError, UnixMillis};
use omni_request_error::Failure;
use omni_workers_ai::without_reference;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Longest result, in bytes: that of an answer which the store takes.
const LONGEST: usize = 16 << 20;
/// Attempts whose response broke off before the item fails.
const BROKEN: u32 = 3;
/// Time until a report is tried again that the store did not take.
const RETRY: Duration = Duration::from_secs(1);
/// Messages about results that the store does not take: every item in flight has one each second while a disk is full.
static NOT_STORED: Pace = Pace::new(Duration::from_secs(60));

/// End of an attempt.
#[derive(Debug, Clone, Default)]
pub(crate) struct Attempted {
    /// Time of an item that has a result.
    pub(crate) took: Option<Duration>,
    /// Time for which the model gets no further item.
    pub(crate) pause: Option<Duration>,
    /// The model could not start: its pause ends when it is ready.
    pub(crate) until_ready: bool,
    /// Owner of an item whose instance died while it had no other item.
    pub(crate) died_alone: Option<Arc<str>>,
}

/// Report of an attempt.
enum Report {
    Result(ItemResult),
    Failed(&'static str, &'static str),
}

/// Runs an item, which has to end by `until`.
pub(crate) async fn run(api: Arc<DataApi>, counts: Arc<JobCounts>, mut claim: Claim, until: UnixMillis) -> Attempted {
    let begun = Instant::now();
    let given_back = |pause| {
        count(&counts.given_back);
        Attempted { pause: Some(pause), ..Attempted::default() }
    };
    let request = match claim.request().await {
        Ok(request) => http_request(request, until.since(now())),
        Err(error) => {
            tracing::error!("the request of an item cannot be read: {}", omni_log::chain(&error));
            return given_back(RETRY);
        }
    };
    let Some(request) = request else {
        let report = Report::Failed("invalid_request", "The request cannot be sent to the model.");
        return reported(&counts, &mut claim, report, begun).await;
    };
    let (owner, batch) = (Arc::from(claim.owner()), Arc::from(claim.batch().to_string()));
    let item = BatchItem { owner, batch, number: claim.item() };
    let report = match exchange(&api, &item, request, LONGEST).await {
        Ok(received) => match outcome(received.failure.as_ref(), claim.attempt()) {
            Outcome::Result => report(received),
            // A claim that is dropped waits again.
            Outcome::Back(pause) => {
                let until_ready = matches!(received.failure, Some(Failure::CannotStart { .. }));
                return Attempted { until_ready, ..given_back(pause) };
            }
            Outcome::Died => {
                count(&counts.died);
                let died_alone = claim.is_suspect().then_some(item.owner);
                if let Err(error) = claim.interrupted(Interruption::InstanceDied, now()).await {
                    tracing::error!("the death of an item's instance cannot be stored: {}", omni_log::chain(&error));
                }
                return Attempted { died_alone, ..Attempted::default() };
            }
        },
        Err(_) if claim.attempt() < BROKEN => return given_back(RETRY),
        Err(_) => Report::Failed("no_response", "The response of the model broke off."),
    };
    reported(&counts, &mut claim, report, begun).await
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Stores the report. A store whose disk is full is asked again: the item has run. A response that it never takes is an
/// error of the item.
async fn reported(counts: &JobCounts, claim: &mut Claim, mut report: Report, begun: Instant) -> Attempted {
    let took = begun.elapsed();
    loop {
        let stored = match &report {
            Report::Result(result) => claim.complete(result.clone(), now()).await,
            Report::Failed(code, message) => claim.fail(code, message, now()).await,
        };
        match stored {
            Ok(_) => {
                let succeeded = matches!(&report, Report::Result(result) if result.status < 300);
                count(if succeeded { &counts.completed } else { &counts.failed });
                return Attempted { took: Some(took), ..Attempted::default() };
            }
            Err(JobError::Closed | JobError::NoBatch) => return Attempted::default(),
            Err(error) => {
                if NOT_STORED.is_due(Instant::now()) {
                    tracing::error!("the result of an item cannot be stored: {}", omni_log::chain(&error));
                }
                match &report {
                    _ if error.is_passing() => tokio::time::sleep(RETRY).await,
                    Report::Result(_) => {
                        report = Report::Failed("response_not_stored", "The response of the model cannot be stored.");
                    }
                    Report::Failed(..) => return Attempted { pause: Some(RETRY), ..Attempted::default() },
                }
            }
        }
    }
}

fn report(received: Received) -> Report {
    let Received { status, headers, body, failure: _ } = received;
    if is_events(&headers) {
        return Report::Failed("stream_not_supported", "A request of a batch cannot be streamed: leave `stream` out.");
    }
    let Some(body) = body else {
        return Report::Failed("response_too_large", "The response is too large for a batch.");
    };
    let request_id = headers.get("x-request-id").and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned();
    let usage = usage(&body);
    Report::Result(ItemResult { status, request_id, body: body.into(), usage })
}

fn is_events(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|media| media.as_bytes().starts_with(b"text/event-stream"))
}

/// The request of an item, which has to end within this time; `None`: its path cannot be one.
fn http_request(request: omni_jobs::Request, left: Duration) -> Option<Request<Full<Bytes>>> {
    let omni_jobs::Request { endpoint, model, body } = request;
    let (path, body) = match endpoint {
        Some(endpoint) => (endpoint, body),
        None => (format!("/ai/run/{}", encoded(&model)), without_reference(body)),
    };
    let left = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1);
    let request = Request::post(path)
        .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
        .header("x-omni-timeout-ms", HeaderValue::from(left));
    request.body(Full::new(Bytes::from(body))).ok()
}

/// A name as one segment of a path.
fn encoded(name: &str) -> String {
    let mut segment = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.') {
            segment.push(char::from(byte));
        } else {
            let _ = write!(segment, "%{byte:02X}"); // a text takes everything
        }
    }
    segment
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Store with a batch of one item, and a bound of ten bytes for results.
    #[tokio::test]
    async fn a_response_that_the_store_never_takes_is_an_error_of_its_item() {
        let dir = std::env::temp_dir().join(format!("omni-jobs-executor-{}", std::process::id()));
        let limits = omni_jobs::Limits { result: 10, ..omni_jobs::Limits::default() };
        let store = omni_jobs::JobStore::open(&dir, limits, now()).unwrap();
        let batch = store.queue("", "m", vec![b"{}".to_vec()], now()).await.unwrap().id;
        store.tend(now()).await.unwrap();
        let mut claim = store.claim(batch, "m", 1).await.unwrap().remove(0);
        let usage = omni_jobs::Usage::default();
        let result = ItemResult { status: 200, request_id: String::new(), body: vec![b'1'; 11], usage };
        let (counts, begun) = (JobCounts::default(), Instant::now());
        let report = reported(&counts, &mut claim, Report::Result(result), begun);
        let attempted = tokio::time::timeout(Duration::from_secs(10), report).await.unwrap();
        assert!(attempted.took.is_some());
        assert_eq!((counts.completed.into_inner(), counts.failed.into_inner()), (0, 1));
        let counts = store.batch(omni_jobs::Scope::Node, batch).await.unwrap().counts;
        assert_eq!((counts.total, counts.failed), (1, 1));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn requests_of_both_apis() {
        let of = |endpoint: Option<&str>, model: &str, body: &str| {
            let (endpoint, model) = (endpoint.map(str::to_owned), model.to_owned());
            let request = omni_jobs::Request { endpoint, model, body: body.into() };
            http_request(request, Duration::from_millis(1500)).unwrap()
        };
        let chat = of(Some("/v1/chat/completions"), "m", "{}");
        assert_eq!(
            (chat.uri().path(), &chat.headers()["x-omni-timeout-ms"]),
            ("/v1/chat/completions", &"1500".parse().unwrap())
        );
        assert_eq!(of(None, "@cf/a/b", "{}").uri().path(), "/ai/run/%40cf%2Fa%2Fb");
    }
}
