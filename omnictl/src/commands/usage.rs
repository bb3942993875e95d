//! `omnictl usage`: what models were used for, by model and token.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use omni_control_api::{UsageRow, UsageSummary};

use super::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::human::{cpu_time, size};
use crate::output::Format;
use crate::table::{Align, Table};

pub(super) async fn run(context: &mut Context<'_>, since: Duration) -> Result<Exit, Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let from = now.saturating_sub(since).as_millis();
    let answer = context.client.get(&format!("/v1/usage?since={from}")).await?;
    match context.format {
        Format::Json => context.out.json(answer.json()?)?,
        Format::Table => context.out.text(table(&answer.value::<UsageSummary>()?))?,
    }
    Ok(Exit::Ok)
}

fn table(usage: &UsageSummary) -> Table<10> {
    let mut table = Table::new([
        ("MODEL", Align::Left),
        ("TOKEN", Align::Left),
        ("REQUESTS", Align::Right),
        ("COMPLETE", Align::Right),
        ("INPUT", Align::Right),
        ("CACHED", Align::Right),
        ("OUTPUT", Align::Right),
        ("TIME", Align::Right),
        ("GPU-TIME", Align::Right),
        ("ANSWERED", Align::Right),
    ]);
    for row in &usage.rows {
        table.row(cells(row));
    }
    table
}

fn cells(row: &UsageRow) -> [String; 10] {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    let time = |seconds: f64| cpu_time((seconds * 1e6) as u64);
    [
        row.model.clone(),
        row.token.clone().unwrap_or_default(),
        row.attempts.to_string(),
        row.complete.to_string(),
        row.input_tokens.to_string(),
        row.cached_tokens.to_string(),
        row.output_tokens.to_string(),
        time(row.run_seconds),
        if row.gpu_seconds > 0.0 { time(row.gpu_seconds) } else { String::new() },
        size(row.bytes_out),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_shows_counts_times_and_sizes() {
        let row = UsageRow {
            model: "chat".to_owned(),
            token: Some("team".to_owned()),
            attempts: 12,
            complete: 11,
            input_tokens: 5000,
            cached_tokens: 4000,
            output_tokens: 700,
            run_seconds: 90.5,
            gpu_seconds: 90.5,
            bytes_out: 2 << 20,
            ..UsageRow::default()
        };
        assert_eq!(cells(&row).join("|"), "chat|team|12|11|5000|4000|700|1m30s|1m30s|2MiB");
        assert_eq!(cells(&UsageRow::default()).join("|"), "||0|0|0|0|0|0.0s||0B");
    }
}
