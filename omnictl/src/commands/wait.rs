//! `omnictl wait`: until a model is ready, or stopped.

use std::time::Duration;

use omni_config::ModelName;
use omni_control_api::{Model, State};

use super::follow::Patience;
use super::{Context, status};
use crate::cli::WaitFor;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Format;

/// True if the wanted state is reached; `None` while it still can be.
fn reached(wanted: WaitFor, model: &Model) -> Option<bool> {
    match (wanted, model.state) {
        (WaitFor::Ready, State::Ready) | (WaitFor::Stopped, State::Stopped | State::Failed) => Some(true),
        (WaitFor::Ready, State::Failed) if model.retry_in_seconds.is_none() => Some(false),
        (WaitFor::Ready, State::Preparing | State::Starting | State::Draining | State::Stopped | State::Failed)
        | (WaitFor::Stopped, State::Preparing | State::Starting | State::Ready | State::Draining) => None,
    }
}

pub(super) async fn run(
    context: &mut Context<'_>,
    name: &ModelName,
    wanted: WaitFor,
    timeout: Duration,
) -> Result<Exit, Failure> {
    let patience = Patience::new(name, timeout);
    loop {
        let answer = context.ask(name, "").await?;
        let model: Model = answer.value()?;
        match reached(wanted, &model) {
            Some(true) => {
                match context.format {
                    Format::Json => context.out.json(answer.json()?)?,
                    Format::Table => context.out.line(format_args!("{name}: {}", model.state.as_str()))?,
                }
                return Ok(Exit::Ok);
            }
            Some(false) => return Err(Failure::NotReady { model: name.clone(), reason: status::reason(&model) }),
            None => {}
        }
        patience.pause(model.state.as_str()).await?;
    }
}
