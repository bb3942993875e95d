//! `omnictl doctor`: what a node needs of this machine, what is lost where it is missing, and how to mend it.
//!
//! Needs no running node. The node's own programs try things ([`ask`]), [`verdict`] interprets the results. A running
//! node is asked for its listeners, as its flags and the service manager may have chosen them. Invariant: a probe that
//! was not possible is reported as unknown, never as missing.

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
    /// True if a node can serve models here; null when unknown.
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
