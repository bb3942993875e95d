//! `omnictl doctor`: what this machine has of what a node needs, what is lost without it, and how to mend it.
//!
//! Needs no running node. The node's own programs try things ([`ask`]), [`verdict`] says what that means. A node that runs
//! knows where it listens, which flags and the service manager may have said. What always holds: what could not be tried is
//! said to be unknown, never to be missing.

mod ask;
mod verdict;

use std::path::Path;

use omni_control_api::Node;
use serde::Serialize;

use super::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::human::printable;
use crate::output::{Format, note};
use verdict::{Line, State};

/// The whole answer.
#[derive(Serialize)]
struct Answer {
    /// Whether a node can serve models here; null when that could not be found out.
    serves: Option<bool>,
    checks: Vec<Line>,
}

pub(super) async fn run(context: &mut Context<'_>, config: Option<&Path>) -> Result<Exit, Failure> {
    let running = match context.client.get("/v1/node").await {
        Ok(answer) => answer.value::<Node>().ok(),
        Err(_) => None, // there need not be one
    };
    let checks = verdict::lines(&ask::all(config), running.map(|node| node.warnings).as_deref());
    let serves = verdict::serves(&checks);
    match context.format {
        Format::Json => {
            let json = serde_json::to_string(&Answer { serves, checks });
            context.out.json(&json.map_err(|error| Failure::Render(error.into()))?)?;
        }
        Format::Table => show(context, &checks)?,
    }
    match serves {
        Some(true) => Ok(Exit::Ok),
        Some(false) => Err(Failure::Unfit),
        None => Err(Failure::Untold),
    }
}

fn show(context: &mut Context<'_>, checks: &[Line]) -> Result<(), Failure> {
    let width = |of: fn(&Line) -> &str| checks.iter().map(|line| of(line).chars().count()).max().unwrap_or_default();
    let (states, names) = (width(|line| line.state.as_str()), width(|line| &line.check));
    for Line { check, state, found, cost, mend, .. } in checks {
        context.out.line(format_args!("{:<states$}  {check:<names$}  {}", state.as_str(), printable(found)))?;
        for (what, text) in [("costs", cost), ("mend", mend)] {
            if let Some(text) = text {
                context.out.line(format_args!("{:<states$}  {what}: {}", "", printable(text)))?;
            }
        }
    }
    let degraded = checks.iter().filter(|line| line.state == State::Degraded).count();
    if degraded > 0 {
        note(format_args!("{degraded} degraded: what that costs stands below each"));
    }
    Ok(())
}
