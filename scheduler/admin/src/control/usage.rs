//! Usage of models: sums over the records in the node's log.

use super::{Refusal, json};
use hyper::{Response, StatusCode};
use omni_control_api::{UsageRow, UsageSummary};
use omni_inference::AnswerBody;
use omni_usage::{Outcome, UsageRecord, read_since};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::Path;
use tokio::sync::Semaphore;
use uuid::Uuid;

/// The log is read by one caller at a time.
static READER: Semaphore = Semaphore::const_new(1);

/// Usage of models and tokens since a time; `since`: milliseconds since the Unix epoch, the whole log if absent.
pub(super) async fn usage(dir: &Path, since: Option<&str>) -> Result<Response<AnswerBody>, Refusal> {
    let refusal = |status, kind, detail| Refusal { status, kind, detail };
    let since_unix_ms = since.map_or(Ok(0), str::parse).map_err(|_| {
        let detail = "`since` is a number: milliseconds since 1970".to_owned();
        refusal(StatusCode::BAD_REQUEST, "bad-request", detail)
    })?;
    let failed = |error: String| refusal(StatusCode::INTERNAL_SERVER_ERROR, "about:blank", error);
    let _turn = READER.acquire().await.map_err(|error| failed(error.to_string()))?; // it is never closed
    let dir = dir.to_owned();
    let read = tokio::task::spawn_blocking(move || sums(&dir, since_unix_ms)).await;
    let rows = read.map_err(|error| failed(error.to_string()))?;
    let rows = rows.map_err(|error| failed(format!("the usage records cannot be read: {error}")))?;
    Ok(json(&UsageSummary { since_unix_ms, rows }))
}

fn sums(dir: &Path, since_unix_ms: u64) -> io::Result<Vec<UsageRow>> {
    let mut rows = BTreeMap::new();
    let mut seen: HashSet<Uuid> = HashSet::new(); // a record comes twice after a kill between its copy and its removal
    read_since(dir, since_unix_ms, |record| {
        if seen.insert(record.id) {
            add(&mut rows, record);
        }
    })?;
    Ok(rows.into_values().collect())
}

fn add(rows: &mut BTreeMap<(String, Option<String>), UsageRow>, record: UsageRecord<'_>) {
    let UsageRecord { model, token, outcome, run_seconds, units, .. } = record;
    let (model, token) = (model.into_owned(), token.map(Cow::into_owned));
    let new = || UsageRow { model: model.clone(), token: token.clone(), ..UsageRow::default() };
    let row = rows.entry((model.clone(), token.clone())).or_insert_with(new);
    row.attempts += 1;
    row.complete += u64::from(outcome == Outcome::Complete);
    if let Some(tokens) = units.tokens {
        row.input_tokens = row.input_tokens.saturating_add(tokens.input);
        row.output_tokens = row.output_tokens.saturating_add(tokens.output);
        row.cached_tokens = row.cached_tokens.saturating_add(tokens.cached);
        row.reasoning_tokens = row.reasoning_tokens.saturating_add(tokens.reasoning);
    }
    row.images += units.images;
    row.audio_seconds += units.audio_seconds;
    row.run_seconds += run_seconds;
    row.gpu_seconds += units.gpu_seconds;
    row.bytes_in += units.bytes_in;
    row.bytes_out += units.bytes_out;
    for (unit, amount) in units.reported {
        let sum = row.reported.entry(unit).or_default();
        *sum = sum.saturating_add(amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_usage::{TokenSource, Tokens, Units};

    fn record(number: u64, token: Option<&'static str>, outcome: Outcome) -> UsageRecord<'static> {
        let tokens = Tokens { input: 5, output: 3, cached: 2, reasoning: 1, source: TokenSource::Model };
        UsageRecord {
            id: UsageRecord::new_id(number),
            request_id: "r".into(),
            ended_unix_ms: number,
            api: "openai".into(),
            model: "chat".into(),
            version: None,
            instance: None,
            token: token.map(Cow::from),
            trace_id: None,
            outcome,
            queue_seconds: 0.0,
            run_seconds: 0.5,
            units: Units {
                tokens: Some(tokens),
                gpu_seconds: 0.5,
                images: 1,
                audio_seconds: 1.5,
                bytes_in: 10,
                bytes_out: 20,
                reported: BTreeMap::from([("pages".to_owned(), 4)]),
            },
        }
    }

    #[test]
    fn each_record_counts_once_for_its_model_and_token() {
        let (once, other) = (record(1, Some("team"), Outcome::Complete), record(9, None, Outcome::Cancelled));
        let dir = tempfile::tempdir().unwrap();
        let records = [&once, &record(5, Some("team"), Outcome::Failed), &once, &other];
        let mut lines = Vec::new();
        records.iter().for_each(|record| record.write_line(&mut lines));
        std::fs::write(dir.path().join("1.jsonl"), lines).unwrap();
        let rows = sums(dir.path(), 0).unwrap();
        assert_eq!(rows.iter().map(|row| row.token.as_deref()).collect::<Vec<_>>(), [None, Some("team")]);
        let expected = UsageRow {
            model: "chat".to_owned(),
            token: Some("team".to_owned()),
            attempts: 2,
            complete: 1,
            input_tokens: 10,
            output_tokens: 6,
            cached_tokens: 4,
            reasoning_tokens: 2,
            images: 2,
            audio_seconds: 3.0,
            run_seconds: 1.0,
            gpu_seconds: 1.0,
            bytes_in: 20,
            bytes_out: 40,
            reported: BTreeMap::from([("pages".to_owned(), 8)]),
        };
        assert_eq!(rows[1], expected);
        assert_eq!(sums(dir.path(), 6).unwrap().iter().map(|row| row.attempts).sum::<u64>(), 1);
    }
}
