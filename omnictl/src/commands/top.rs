//! `omnictl top`: what the running models use.

use std::io::{IsTerminal, stdout};
use std::time::{Duration, Instant};

use omni_control_api::{Top, TopRow};

use super::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::human::{cpu_time, size};
use crate::output::Format;
use crate::table::{Align, Table};

/// How often the table is drawn anew.
const REFRESH: Duration = Duration::from_secs(2);
/// To the first column of the first line, and erase everything from there.
const CLEAR: &str = "\x1b[H\x1b[J";

pub(super) async fn run(context: &mut Context<'_>, once: bool) -> Result<Exit, Failure> {
    let mut earlier: Option<(Top, Instant)> = None;
    loop {
        let answer = context.client.get("/v1/top").await?;
        match context.format {
            Format::Json => context.out.json(answer.json()?)?,
            Format::Table => {
                let (now, taken) = (answer.value::<Top>()?, Instant::now());
                let since = earlier.as_ref().map(|(top, at)| (top, taken.duration_since(*at)));
                if !once && stdout().is_terminal() {
                    context.out.text(CLEAR)?;
                }
                context.out.text(table(&now, since))?;
                earlier = Some((now, taken));
            }
        }
        context.out.flush()?;
        if once {
            return Ok(Exit::Ok);
        }
        tokio::time::sleep(REFRESH).await;
    }
}

fn table(top: &Top, earlier: Option<(&Top, Duration)>) -> Table<10> {
    let mut table = Table::new([
        ("MODEL", Align::Left),
        ("STATE", Align::Left),
        ("CPU%", Align::Right),
        ("CPU-TIME", Align::Right),
        ("MEMORY", Align::Right),
        ("OF", Align::Right),
        ("GPU", Align::Right),
        ("PIDS", Align::Right),
        ("RUNNING", Align::Right),
        ("ANSWERED", Align::Right),
    ]);
    for row in &top.models {
        table.row([
            row.name.clone(),
            row.state.as_str().to_owned(),
            earlier.and_then(|(top, elapsed)| cpu_percent(row, top, elapsed)).unwrap_or_default(),
            cpu_time(row.cpu_usec),
            size(row.memory_bytes),
            size(row.memory_limit_bytes),
            row.gpu_bytes.map(size).unwrap_or_default(),
            row.pids.to_string(),
            row.in_flight.to_string(),
            row.requests.to_string(),
        ]);
    }
    table
}

/// Processor use since the earlier look, in percent of one core; `None` for an instance that was not there then.
fn cpu_percent(row: &TopRow, earlier: &Top, elapsed: Duration) -> Option<String> {
    let before = earlier.models.iter().find(|before| before.name == row.name)?;
    // A counter that went back belongs to a new instance.
    let used = row.cpu_usec.checked_sub(before.cpu_usec)?;
    let percent = used as f64 / elapsed.as_micros().max(1) as f64 * 100.0;
    Some(format!("{percent:.1}"))
}

#[cfg(test)]
mod tests {
    use omni_control_api::State;

    use super::*;

    #[test]
    fn processor_use_is_the_difference_of_two_samples() {
        let row = |name: &str, cpu_usec| TopRow {
            name: name.to_owned(),
            state: State::Ready,
            memory_bytes: 0,
            memory_limit_bytes: 0,
            gpu_bytes: None,
            cpu_usec,
            pids: 1,
            in_flight: 0,
            requests: 0,
        };
        let earlier = Top { models: vec![row("a", 1_000_000), row("b", 5_000_000)] };
        let second = Duration::from_secs(1);
        for (now, expected) in [
            (row("a", 1_500_000), Some("50.0")),
            (row("a", 1_000_000), Some("0.0")),
            (row("b", 7_000_000), Some("200.0")),
            (row("b", 10), None),
            (row("new", 10), None),
        ] {
            assert_eq!(cpu_percent(&now, &earlier, second).as_deref(), expected);
        }
    }
}
