//! Record of one attempt at a request: who asked, what answered, what it used, how it ended.
//!
//! The form of the lines in the log and of what a sink gets: one JSON object a line. A reader passes over members that
//! it does not know.

use crate::line::Line;
use serde::Deserialize;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;
use uuid::Uuid;

/// Usage of one attempt. A request of several choices has an attempt for each, one that is sent again has another.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct UsageRecord<'a> {
    /// UUIDv7 of this attempt, unique: what comes twice is told by it.
    pub id: Uuid,
    /// Id of the request, which the client may have chosen: not unique.
    #[serde(borrow)]
    pub request_id: Cow<'a, str>,
    /// End of the attempt, in milliseconds since the Unix epoch.
    pub ended_unix_ms: u64,
    /// API of the request: `run`, `openai` or `anthropic`.
    #[serde(borrow)]
    pub api: Cow<'a, str>,
    /// Name of the model.
    #[serde(borrow)]
    pub model: Cow<'a, str>,
    /// Short version of the model that answered; `None` if no instance got the request.
    #[serde(borrow, default)]
    pub version: Option<Cow<'a, str>>,
    /// Id of the instance that got the request.
    #[serde(borrow, default)]
    pub instance: Option<Cow<'a, str>>,
    /// Name of the token that the client showed; `None` where the node has no tokens.
    #[serde(borrow, default)]
    pub token: Option<Cow<'a, str>>,
    /// Id of the trace that the request belongs to, 32 hexadecimal digits.
    #[serde(borrow, default)]
    pub trace_id: Option<Cow<'a, str>>,
    /// How it ended.
    pub outcome: Outcome,
    /// Time in the model's queue, in seconds.
    pub queue_seconds: f64,
    /// Time in the instance, in seconds; 0 if none got it.
    pub run_seconds: f64,
    /// Units used.
    #[serde(flatten)]
    pub units: Units,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Answered to the end.
    Complete,
    /// The model answered with an error, or broke off.
    Failed,
    /// The client went away before the end.
    Cancelled,
    /// The deadline passed before the end.
    Deadline,
}

/// Origin of the numbers of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TokenSource {
    /// The model said them.
    Model,
    /// The node counted pieces and bytes: an estimate.
    Counted,
}

/// Tokens of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Tokens {
    /// Tokens of the prompt, those from a cache included.
    pub input: u64,
    /// Tokens of the answer, reasoning included.
    pub output: u64,
    /// Tokens of the prompt that came from a cache.
    pub cached: u64,
    /// Tokens of the reasoning.
    pub reasoning: u64,
    /// Origin of the numbers.
    pub source: TokenSource,
}

/// Units that an attempt used. Zero and unknown units are left out of the line.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct Units {
    /// Tokens, for generated text, embeddings and ranks.
    pub tokens: Option<Tokens>,
    /// Seconds in an instance that has memory of a GPU.
    pub gpu_seconds: f64,
    /// Bytes of the request's body.
    pub bytes_in: u64,
    /// Bytes of the answer that the model sent.
    pub bytes_out: u64,
    /// Images that were made.
    pub images: u64,
    /// Seconds of the recording that was transcribed, as the model said.
    pub audio_seconds: f64,
    /// Units that the handler reported by `context.usage`.
    pub reported: BTreeMap<String, u64>,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Deadline => "deadline",
        }
    }
}

impl TokenSource {
    fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Counted => "counted",
        }
    }
}

impl UsageRecord<'_> {
    /// Id of a new attempt that ends at this time.
    #[must_use]
    pub fn new_id(unix_ms: u64) -> Uuid {
        thread_local! {
            // The system's chance is its seed: the time is the same on many nodes that start together.
            static CHANCE: RefCell<fastrand::Rng> =
                RefCell::new(fastrand::Rng::with_seed(Uuid::now_v7().as_u64_pair().1));
        }
        let mut random = [0_u8; 10];
        CHANCE.with_borrow_mut(|chance| chance.fill(&mut random));
        uuid::Builder::from_unix_timestamp_millis(unix_ms, &random).into_uuid()
    }

    /// Seconds of a duration, in whole microseconds.
    #[must_use]
    pub fn seconds(duration: Duration) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "a request takes no 285 years")]
        let micros = duration.as_micros() as f64;
        micros / 1e6
    }

    /// Appends the record's line.
    pub fn write_line(&self, line: &mut Vec<u8>) {
        let Self { id, request_id, ended_unix_ms, api, model, version, instance, token, .. } = self;
        let Self { trace_id, outcome, queue_seconds, run_seconds, units, .. } = self;
        let mut line = Line(line);
        line.raw("{\"id\":\"");
        line.raw(id.hyphenated().encode_lower(&mut Uuid::encode_buffer()));
        line.text("\",\"request_id\":\"", request_id, "\",\"ended_unix_ms\":");
        line.number("", *ended_unix_ms);
        line.text(",\"api\":\"", api, "\"");
        line.text(",\"model\":\"", model, "\"");
        if let Some(version) = version {
            line.text(",\"version\":\"", version, "\"");
        }
        if let Some(instance) = instance {
            line.text(",\"instance\":\"", instance, "\"");
        }
        if let Some(token) = token {
            line.text(",\"token\":\"", token, "\"");
        }
        if let Some(trace_id) = trace_id {
            line.text(",\"trace_id\":\"", trace_id, "\"");
        }
        line.raw(",\"outcome\":\"");
        line.raw(outcome.name());
        line.seconds("\",\"queue_seconds\":", *queue_seconds);
        line.seconds(",\"run_seconds\":", *run_seconds);
        units.write(&mut line);
        line.raw("}\n");
    }
}

impl Units {
    fn write(&self, line: &mut Line<'_>) {
        let Self { tokens, gpu_seconds, bytes_in, bytes_out, images, audio_seconds, reported } = self;
        if let Some(Tokens { input, output, cached, reasoning, source }) = tokens {
            line.number(",\"tokens\":{\"input\":", *input);
            line.number(",\"output\":", *output);
            line.number(",\"cached\":", *cached);
            line.number(",\"reasoning\":", *reasoning);
            line.text(",\"source\":\"", source.name(), "\"}");
        }
        if *gpu_seconds > 0.0 {
            line.seconds(",\"gpu_seconds\":", *gpu_seconds);
        }
        line.number(",\"bytes_in\":", *bytes_in);
        line.number(",\"bytes_out\":", *bytes_out);
        if *images > 0 {
            line.number(",\"images\":", *images);
        }
        if *audio_seconds > 0.0 {
            line.seconds(",\"audio_seconds\":", *audio_seconds);
        }
        for (number, (unit, amount)) in reported.iter().enumerate() {
            line.text(if number == 0 { ",\"reported\":{\"" } else { ",\"" }, unit, "\":");
            line.number("", *amount);
        }
        if !reported.is_empty() {
            line.raw("}");
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn record(number: u64) -> UsageRecord<'static> {
        UsageRecord {
            id: UsageRecord::new_id(1_700_000_000_000 + number),
            request_id: format!("request-{number}").into(),
            ended_unix_ms: 1_700_000_000_000 + number,
            api: "openai".into(),
            model: "@cf/meta/llama".into(),
            version: Some("0123456789ab".into()),
            instance: Some("a1b2c3d4e5f6".into()),
            token: None,
            trace_id: None,
            outcome: Outcome::Complete,
            queue_seconds: 0.25,
            run_seconds: UsageRecord::seconds(Duration::from_micros(1_500_001)),
            units: Units { bytes_in: number, bytes_out: 7, ..Units::default() },
        }
    }

    /// The record's line, which reads back.
    fn line(record: &UsageRecord<'_>) -> String {
        let mut line = Vec::new();
        record.write_line(&mut line);
        assert_eq!(&serde_json::from_slice::<UsageRecord<'_>>(&line).unwrap(), record);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn a_line_has_what_is_known_and_reads_back() {
        let mut record = UsageRecord { id: Uuid::from_u128(7), ..record(1) };
        assert_eq!(
            line(&record),
            "{\"id\":\"00000000-0000-0000-0000-000000000007\",\"request_id\":\"request-1\",\
             \"ended_unix_ms\":1700000000001,\"api\":\"openai\",\"model\":\"@cf/meta/llama\",\
             \"version\":\"0123456789ab\",\"instance\":\"a1b2c3d4e5f6\",\"outcome\":\"complete\",\
             \"queue_seconds\":0.250000,\"run_seconds\":1.500001,\"bytes_in\":1,\"bytes_out\":7}\n"
        );
        record.request_id = "line\nbreak \"and\" quotes \u{2028}".into();
        record.token = Some("team".into());
        record.trace_id = Some("0af7651916cd43dd8448eb211c80319c".into());
        let tokens = Tokens { input: 5, output: 3, cached: 2, reasoning: 1, source: TokenSource::Counted };
        let reported = BTreeMap::from([("images".to_owned(), 2), ("pages".to_owned(), 3)]);
        let (images, audio_seconds) = (4, 2.5);
        record.units =
            Units { tokens: Some(tokens), gpu_seconds: 0.5, images, audio_seconds, reported, ..record.units };
        let line = line(&record);
        assert_eq!(line.matches('\n').count(), 1, "one line, whatever a client calls its request: {line}");
        assert!(line.contains(",\"trace_id\":\"0af7651916cd43dd8448eb211c80319c\",\"outcome\""), "{line}");
        let tail = "\"tokens\":{\"input\":5,\"output\":3,\"cached\":2,\"reasoning\":1,\"source\":\"counted\"},\
                    \"gpu_seconds\":0.500000,\"bytes_in\":1,\"bytes_out\":7,\"images\":4,\
                    \"audio_seconds\":2.500000,\"reported\":{\"images\":2,\"pages\":3}}\n";
        assert!(line.ends_with(tail), "{line}");
    }

    #[test]
    fn every_outcome_and_source_reads_back() {
        for outcome in [Outcome::Complete, Outcome::Failed, Outcome::Cancelled, Outcome::Deadline] {
            line(&UsageRecord { outcome, ..record(1) });
        }
        for source in [TokenSource::Model, TokenSource::Counted] {
            let tokens = Some(Tokens { input: 1, output: 2, cached: 0, reasoning: 0, source });
            line(&UsageRecord { units: Units { tokens, ..Units::default() }, ..record(1) });
        }
    }

    #[test]
    fn members_of_a_later_version_are_passed_over() {
        let mut line = Vec::new();
        record(1).write_line(&mut line);
        let later = String::from_utf8(line).unwrap().replacen('{', "{\"later\":[1],", 1);
        assert_eq!(serde_json::from_str::<UsageRecord<'_>>(&later).unwrap().request_id, "request-1");
    }

    #[test]
    fn ids_are_of_version_7_in_the_order_of_time() {
        let ids: Vec<Uuid> = (0..100).map(UsageRecord::new_id).collect();
        assert!(ids.is_sorted() && ids.iter().all(|id| id.get_version_num() == 7));
    }
}
