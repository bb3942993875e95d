//! Makes and shows simulated cards, for scripts and tests that are not in Rust.

use omni_cuda_card::{Card, Settings, State, size};
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage:
  cuda-sim-card create DIR [--gpus N] [--memory 24GiB] [--driver 12.9] [--bandwidth 50GiB] [--fault-bandwidth 10GiB]
                           [--context 300MiB] [--no-concurrent-managed]
  cuda-sim-card show DIR        what became of the cards, as JSON
A bandwidth is per second; without one, moves take no time.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        // An option in its place is a mistake, and no directory.
        ["create", dir, options @ ..] if !dir.starts_with('-') => make(Path::new(dir), options),
        ["show", dir] if !dir.starts_with('-') => show(Path::new(dir)),
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn make(dir: &Path, options: &[&str]) -> Result<(), String> {
    let (mut gpus, mut common) = (1_u8, Settings::numbered(0));
    let mut options = options.iter();
    while let Some(option) = options.next() {
        if *option == "--no-concurrent-managed" {
            common.concurrent_managed = false;
            continue;
        }
        let value = options.next().ok_or_else(|| format!("{option} needs a value\n{USAGE}"))?;
        match *option {
            "--gpus" => gpus = value.parse().map_err(|_| format!("{value:?} is no number of cards"))?,
            "--memory" => common.memory = size(value)?,
            "--driver" => common.driver = version(value)?,
            "--bandwidth" => (common.to_device, common.to_host) = (size(value)?, size(value)?),
            "--fault-bandwidth" => common.by_fault = size(value)?,
            "--context" => common.context_bytes = size(value)?,
            _ => return Err(format!("{option} is unknown\n{USAGE}")),
        }
    }
    let settings: Vec<Settings> =
        (0..gpus).map(|index| Settings { uuid: Settings::numbered(index).uuid, ..common.clone() }).collect();
    Card::create(dir, &settings).map(drop).map_err(|error| format!("{}: {error}", dir.display()))
}

/// "12.9" is 12090.
fn version(text: &str) -> Result<u32, String> {
    let parts = text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let (major, minor): (u16, u8) = parts.ok_or_else(|| format!("{text:?} is no version like 12.9"))?;
    Ok(u32::from(major) * 1000 + u32::from(minor) * 10)
}

fn show(dir: &Path) -> Result<(), String> {
    let paths =
        (0..omni_cuda_card::CARDS).map(|number| dir.join(format!("nvidia{number}"))).filter(|path| path.exists());
    let card = |path: &Path| -> Result<String, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let card = Card::open(path).map_err(failed)?;
        Ok(json(&card.settings(), &card.state().map_err(failed)?))
    };
    let cards: Vec<String> = paths.map(|path| card(&path)).collect::<Result<_, _>>()?;
    println!("[{}]", cards.join(",\n "));
    Ok(())
}

/// Numbers, and names that need no escapes: no reason for a library in a crate that the driver links.
fn json(settings: &Settings, state: &State) -> String {
    let process = |process: &omni_cuda_card::Process| {
        let omni_cuda_card::Process { pid, start_time, device, managed, resident } = process;
        format!(
            r#"{{"pid":{pid},"start_time":{start_time},"device":{device},"managed":{managed},"resident":{resident}}}"#
        )
    };
    let moved = |one: &omni_cuda_card::Move| {
        let (pid, bytes, direction, cause) = (one.pid, one.bytes, one.direction.name(), one.cause.name());
        format!(r#"{{"pid":{pid},"bytes":{bytes},"direction":"{direction}","cause":"{cause}"}}"#)
    };
    let counters = &state.counters;
    let counters = [
        ("prefetch_to_device", counters.prefetch_to_device),
        ("prefetch_to_host", counters.prefetch_to_host),
        ("fault_to_device", counters.fault_to_device),
        ("fault_to_host", counters.fault_to_host),
        ("evicted", counters.evicted),
        ("discarded", counters.discarded),
        ("populated", counters.populated),
        ("prefetch_calls", counters.prefetch_calls),
    ]
    .map(|(name, value)| format!(r#""{name}":{value}"#))
    .join(",");
    format!(
        r#"{{"uuid":"{}","memory":{},"driver":{},"used":{},"processes":[{}],"counters":{{{counters}}},"moves":[{}]}}"#,
        settings.uuid_text(),
        settings.memory,
        settings.driver,
        state.used(),
        state.processes.iter().map(process).collect::<Vec<_>>().join(","),
        state.moves.iter().map(moved).collect::<Vec<_>>().join(","),
    )
}
