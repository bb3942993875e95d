//! `omnictl upgrade`: a new process of the program that is on disk takes over the node.

use omni_control_api::Upgrade;
use std::time::Duration;

use super::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Format;

/// The daemon waits for the end of the scheduler before it, and then for its successor to begin; it gives each a bound.
const LIMIT: Duration = Duration::from_mins(3);

pub(super) async fn run(context: &mut Context<'_>) -> Result<Exit, Failure> {
    let answer = context.client.post_within(LIMIT, "/v1/node/upgrade").await?;
    match context.format {
        Format::Json => context.out.json(answer.json()?)?,
        Format::Table => {
            let Upgrade { pid, changes } = answer.value()?;
            context.out.line(format_args!("omni-scheduler serves with pid {pid}; models go on"))?;
            for change in changes {
                context.out.line(format_args!("changed: {change}"))?;
            }
        }
    }
    Ok(Exit::Ok)
}
